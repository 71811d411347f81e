"""Commands that are printed as advice work as they are printed: `onebit` on the PATH or not, activated or not."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from onebit import advice
from terminals import environment, piped

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
ELSEWHERE = "/usr/bin:/bin"  # a PATH on which this environment is not


@pytest.fixture
def clone(tmp_path):
    """A folder in which the environment is `.venv`, as `make` has it; the programs in it are the real ones."""
    (tmp_path / ".venv").symlink_to(BIN.parent)
    return tmp_path


def said(words, folder, path):
    """What a mistake is answered with, and the command that the answer names."""
    done = subprocess.run(
        [*words, "zoo", "--hlp"],
        cwd=folder,
        env=environment(PATH=path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("onebit zoo: there is no --hlp; did you mean --help? see ")
    return done.stderr.strip().partition("see ")[2]


@pytest.mark.parametrize(
    ("words", "path", "expected"),
    [
        ([".venv/bin/onebit"], ELSEWHERE, ".venv/bin/onebit"),
        ([".venv/bin/python", "-m", "onebit"], ELSEWHERE, ".venv/bin/python -m onebit"),
        ([str(BIN / "onebit")], ELSEWHERE, str(BIN / "onebit")),
        (["onebit"], f"{BIN}:{ELSEWHERE}", "onebit"),
        ([str(BIN / "onebit")], f"{BIN}:{ELSEWHERE}", "onebit"),
        ([".venv/bin/onebit"], f"{BIN}:{ELSEWHERE}", "onebit"),
        ([str(BIN / "python"), "-m", "onebit"], f"{BIN}:{ELSEWHERE}", "onebit"),
    ],
)
def test_the_advice_after_a_mistake_works_as_it_is_printed(clone, words, path, expected):
    if "/" not in words[0]:
        words = ["/usr/bin/env", f"PATH={path}", *words]
    named = said(words, clone, path)
    assert named == f"{expected} zoo --help"
    done = subprocess.run(
        ["sh", "-c", named], cwd=clone, env=environment(PATH=path), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: onebit zoo ")


def test_another_onebit_on_the_path_is_not_ours(clone):
    other = clone / "other"
    other.mkdir()
    (other / "onebit").write_text("#!/bin/sh\nexit 3\n")
    (other / "onebit").chmod(0o755)
    named = said([".venv/bin/onebit"], clone, f"{other}:{ELSEWHERE}")
    assert named == ".venv/bin/onebit zoo --help"


def test_a_program_with_a_space_in_its_path_is_quoted(tmp_path):
    folder = tmp_path / "my files"
    folder.mkdir()
    (folder / "env").symlink_to(BIN.parent)
    named = said([str(folder / "env" / "bin" / "onebit")], tmp_path, ELSEWHERE)
    assert shlex.split(named) == ["my files/env/bin/onebit", "zoo", "--help"]
    assert subprocess.run(["sh", "-c", named], cwd=tmp_path, capture_output=True, check=False).returncode == 0


def test_help_says_how_its_examples_are_typed(clone):
    for words in (["--help"], ["run", "--help"]):
        done = subprocess.run(
            [".venv/bin/onebit", *words], cwd=clone, env=environment(PATH=ELSEWHERE),
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.endswith("Here `onebit` is not on the PATH: type .venv/bin/onebit in its place.\n")
        code, out, err = piped(*words, PATH=f"{BIN}:{ELSEWHERE}")
        assert (code, err) == (0, "")
        assert "not on the PATH" not in out


def test_the_card_of_a_net_names_commands_that_run(clone):
    done = subprocess.run(
        [".venv/bin/onebit", "zoo", "digits-w1a1"], cwd=clone, env=environment(PATH=ELSEWHERE),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (line,) = [line for line in done.stdout.splitlines() if "its layers" in line]
    command = line.partition("  ")[0]
    shown = subprocess.run(
        ["sh", "-c", command], cwd=clone, env=environment(PATH=ELSEWHERE),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "layer" in shown.stdout


def test_packages_are_installed_for_the_python_that_runs(monkeypatch, clone):
    monkeypatch.chdir(clone)
    monkeypatch.setattr(sys, "executable", str(clone / ".venv" / "bin" / "python3"))
    monkeypatch.setenv("PATH", ELSEWHERE)
    assert advice.install_extra("cli") == ".venv/bin/python3 -m pip install 'onebit[cli]'"
    monkeypatch.setenv("PATH", f"{clone / '.venv' / 'bin'}:{ELSEWHERE}")
    assert advice.install_extra("cli") == "pip install 'onebit[cli]'"
    words = shlex.split(advice.install("--dry-run numpy"))
    done = subprocess.run([*words], capture_output=True, text=True, check=False)
    assert "Requirement already satisfied: numpy" in done.stdout


def test_setuptools_does_not_take_advice_for_pip_at_work(monkeypatch, clone):
    """Its hook would give up its own distutils, without which torch.compile fails."""

    class Hook:
        def find_spec(self, name, path=None, target=None):
            asked.append(name)

    asked = []
    monkeypatch.setattr(sys, "executable", str(clone / ".venv" / "bin" / "python3"))
    monkeypatch.setattr(sys, "meta_path", [Hook(), *sys.meta_path])
    monkeypatch.setenv("PATH", ELSEWHERE)
    advice.install("numpy")
    assert "pip" not in asked


def test_without_pip_there_is_uv(monkeypatch, clone):
    tools = clone / "tools"
    tools.mkdir()
    (tools / "uv").write_text("#!/bin/sh\n")
    (tools / "uv").chmod(0o755)
    monkeypatch.chdir(clone)
    monkeypatch.setattr(sys, "executable", str(clone / ".venv" / "bin" / "python3"))
    monkeypatch.setattr(advice.importlib.machinery.PathFinder, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", f"{tools}:{ELSEWHERE}")
    assert advice.install("numpy") == "uv pip install --python .venv/bin/python3 numpy"


def test_an_extra_is_the_lightest_that_brings_the_package():
    """`cli` where it is enough, not `train`, which brings PyTorch."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    brought = {
        extra: {re.match(r"[\w-]+", line)[0] for line in lines} for extra, lines in extras.items() if extra != "dev"
    }
    for package, extra in advice.EXTRAS.items():
        able = [name for name, packages in brought.items() if package in packages]
        fewest = min((("torch" in brought[name], len(brought[name])) for name in able), default=None)
        assert extra in able, package
        assert ("torch" in brought[extra], len(brought[extra])) == fewest, package
    assert set(advice.EXTRAS) == set.union(*brought.values()), "all that an extra brings"


def test_no_other_file_says_how_to_start_or_to_install():
    """What is printed goes through `advice`, but for names of commands in passing and the examples of --help."""
    source = ROOT / "src" / "onebit"
    for path in source.rglob("*.py"):
        if path.name != "advice.py":
            for line in path.read_text().splitlines():
                assert "pip install" not in line, path
                assert not re.search(r'f".*onebit \w+ --', line), f"{path}: {line}"


def test_the_path_of_the_shell_may_be_empty(clone):
    kept = {key: value for key, value in os.environ.items() if key != "PATH"}
    done = subprocess.run(
        [".venv/bin/onebit", "dmo"], cwd=clone, env=kept, capture_output=True, text=True, check=False
    )
    assert done.stderr == ("onebit dmo: there is no such command; did you mean demo? see .venv/bin/onebit --help\n")
