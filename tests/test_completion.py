"""Tab completion, in the shells that are there."""

import os
import shlex
import shutil
import subprocess
import sys

import pytest

from onebit import zoo
from onebit.commands import COMMANDS
from onebit.methods import METHODS
from onebit.training.config import METHOD_NAMES
from onebit.training.recipes import recipe_names
from terminals import environment, piped

# What bash does when a tab is typed behind the words; `compopt` is for an interactive shell.
ASK = """
compopt() { :; }
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
function_of() { local words=($(complete -p onebit)); echo "${words[-2]}"; }
"$(function_of)"
printf '%s\\n' "${COMPREPLY[@]}"
"""
WITHOUT = (
    "import sys; sys.modules['pydantic'] = None; import onebit.commands; sys.exit(onebit.commands.entry_point())"
)


def script(folder, shell, **options):
    code, out, err = piped("completion", shell, **options)
    assert code == 0, err
    path = folder / f"onebit.{shell}"
    path.write_text(out)
    return path, err


@pytest.fixture(scope="module")
def bash(tmp_path_factory):
    path, err = script(tmp_path_factory.mktemp("completion"), "bash")
    assert err == ""
    return path


def completed(path, line, folder):
    words = ["onebit", *shlex.split(line), *([""] if line.endswith(" ") or not line else [])]
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK, "bash", str(path), *words], cwd=folder, env=environment(), check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", list(COMMANDS)),
        ("in", ["inspect"]),
        ("--ver", ["--version"]),
        ("train --rec", ["--recipe"]),
        ("train --recipe digits", ["digits-pcnn22", "digits-wrn22"]),
        ("train --recipe ", recipe_names()),
        ("train --recipe digits-pcnn22 --method x", ["xnor"]),
        ("train --data c", ["cifar10", "cifar100"]),
        ("train --model ", ["wrn22", "wrn40", "resnet18", "vgg16"]),
        ("train --resume RU", ["RUN"]),
        ("compare --methods pcnn b", ["binaryconnect", "bnn", "bwn", "bireal"]),
        ("compare --budget ", ["paper", "cpu", "smoke"]),
        ("eval RUN --which ", ["last", "best"]),
        ("eval RUN/", ["RUN/last.safetensors"]),
        ("eval net.onebit --data im", ["imagefolder", "imagenet"]),
        ("eval net.onebit --threads ", ["auto"]),
        ("bench net.onebit --threads ", ["auto"]),
        ("bench net.onebit --isa av", ["avx512", "avx2"]),
        ("export RUN --float-bits ", ["32", "16", "8"]),
        ("export --qui", ["--quiet"]),
        ("inspect ne", ["net.onebit"]),
        ("doctor --data-dir ", ["RUN"]),
        ("completion ", ["bash", "zsh", "fish"]),
        ("zo", ["zoo"]),
        ("zoo ", zoo.names()),
    ],
)
def test_bash(line, expected, bash, tmp_path):
    (tmp_path / "RUN").mkdir()
    (tmp_path / "RUN" / "last.safetensors").touch()
    (tmp_path / "net.onebit").touch()
    assert sorted(completed(bash, line, tmp_path)) == sorted(expected)


def test_every_command_and_its_quiet(bash, tmp_path):
    for command in COMMANDS:
        assert completed(bash, f"{command} --quie", tmp_path) == ["--quiet"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_take_the_script(shell, tmp_path):
    path, _ = script(tmp_path, shell)
    for word in (*COMMANDS, *METHODS, *recipe_names()):
        assert word in path.read_text()
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: its script is not tried")
    subprocess.run([shell, "-n", str(path)], check=True)
    if shell == "fish":
        line = f"source {shlex.quote(str(path))}; complete -C 'onebit train --recipe digits'"
        done = subprocess.run(["fish", "--no-config", "-c", line], capture_output=True, text=True, check=True)
        assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["digits-pcnn22", "digits-wrn22"]
    else:
        line = f'autoload -Uz compinit; compinit -u; eval "$(cat {shlex.quote(str(path))})"; echo $_comps[onebit]'
        done = subprocess.run(
            ["zsh", "-f", "-c", line], env=os.environ | {"ZDOTDIR": str(tmp_path)}, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        assert done.stdout.strip() == "_shtab_onebit"


def test_a_command_whose_packages_lack_does_not_spoil_the_others(tmp_path):
    path, err = script(tmp_path, "bash", command=[sys.executable, "-c", WITHOUT])
    assert "onebit train is left out: it needs pydantic (see onebit doctor)\n" in err
    names = completed(path, "", tmp_path)
    assert {"train", "compare"}.isdisjoint(names)
    assert {"eval", "export", "inspect", "doctor", "completion"} <= set(names)
    assert completed(path, "eval --whi", tmp_path) == ["--which"]


def test_the_methods_are_those_that_there_are():
    assert tuple(METHODS) == METHOD_NAMES
