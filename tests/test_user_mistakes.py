"""What new users run into: files where folders belong, folders that can't be written, packages that lack."""

import errno
import os
import sys
from pathlib import Path

import pytest

from onebit.paths import write_whole
from terminals import piped
from training_runs import call, small_flags, small_run

WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(",")))
import onebit.commands
sys.exit(onebit.commands.entry_point())
"""


def without(packages, *words):
    return piped(packages, *words, command=[sys.executable, "-c", WITHOUT])


COMMANDS_WITH_FOLDERS = [
    ["train", *small_flags()],
    ["demo", "--epochs", "1"],
    ["compare", "--methods", "float", "--budget", "smoke"],
    ["reproduce", "table-memory"],
]


@pytest.mark.parametrize("words", COMMANDS_WITH_FOLDERS, ids=lambda words: words[0])
def test_a_file_in_the_place_of_a_folder_is_said_before_the_work(words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    for out in ("file", "file/deep/down"):
        code, printed, err = call(capsys, *words, "--out", out)
        assert (code, printed) == (2, "")
        where = tmp_path / out if words[0] == "reproduce" else out
        at = tmp_path / "file" if words[0] == "reproduce" else "file"
        assert err == f"onebit {words[0]}: --out {where}: {at} is a file; name a folder\n"


@pytest.mark.parametrize("words", COMMANDS_WITH_FOLDERS, ids=lambda words: words[0])
def test_a_folder_that_can_not_be_written_is_said_before_the_work(words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(os, "access", lambda at, mode: Path(at) != tmp_path)
    code, printed, err = call(capsys, *words, "--out", str(tmp_path / "out"))
    assert (code, printed) == (2, "")
    assert err.endswith(f"--out {tmp_path / 'out'}: {tmp_path} can't be written to; name another folder\n")
    assert err.count("\n") == 1


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def run(tmp_path):
    small_run(tmp_path / "run", epochs=1)
    return str(tmp_path / "run")


def test_a_full_disk_is_one_line_with_the_files_name_and_code_1(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(os, "fsync", full)
    told = os.strerror(errno.ENOSPC)
    for words, line in [
        (["export", run], f"{run}/net.onebit: can't be written ({told})"),
        (["export", "zoo:digits-w1a1", "--to", "npz", "-o", f"{tmp_path}/n.npz"],
         f"{tmp_path}/n.npz: can't be written ({told})"),
        (["report", run], f"{run}/report.html: {told}"),
        (["inspect", "zoo:digits-w1a1", "--images", str(tmp_path)],
         f"{tmp_path}/00-blocks.0.conv1.png: {told}"),
    ]:  # fmt: skip
        code, _, err = call(capsys, *words)
        assert (code, err.splitlines()[-1]) == (1, f"onebit {words[0]}: {line}")
    assert [each.name for each in tmp_path.iterdir()] == ["run"], "nothing half written is left"
    assert not [*Path(run).glob("*net.onebit*"), *Path(run).glob("*.html*")]


def test_what_is_not_written_keeps_what_was_there(tmp_path, monkeypatch):
    file = tmp_path / "file"
    write_whole(file, b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError) as raised:
        write_whole(file, b"new")
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(file))
    assert file.read_bytes() == b"old"
    assert [*tmp_path.iterdir()] == [file]


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077], ids=oct)
def test_who_may_read_what_is_written_is_as_with_any_new_file(mask, tmp_path):
    before = os.umask(mask)
    try:
        write_whole(tmp_path / "file", b"")
        after = os.umask(mask)
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~mask
    assert after == mask


def test_a_report_into_no_folder_is_refused_before_the_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("onebit.report.gathering.runs_in", lambda folder: [folder])
    monkeypatch.setattr("onebit.report.gathering.check_runs", lambda _: None)
    monkeypatch.setattr("onebit.report.gathering.gather", lambda *_, **__: pytest.fail("the work has begun"))
    code, _, err = call(capsys, "report", "run", "-o", str(tmp_path / "none" / "r.html"))
    out = tmp_path / "none" / "r.html"
    assert (code, err) == (2, f"onebit report: --out {out}: there is no folder {out.parent}\n")


def test_a_recipe_that_is_not_there(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine").write_text("epochs = 1\n")
    for name, told in [
        ("digits-pcn22", "no such recipe; did you mean digits-pcnn22? onebit train --list-recipes names them"),
        ("qqqq", "no such recipe; onebit train --list-recipes names them"),
        ("mine", "a recipe of your own is a file that ends in .toml"),
    ]:
        code, _, err = call(capsys, "train", "--recipe", name)
        assert (code, err) == (2, f"onebit train: --recipe {name}: {told}\n")


def test_one_image_that_can_not_be_read_is_one_line(tmp_path, capsys):
    (tmp_path / "bad.png").write_bytes(b"no image")
    code, out, err = call(capsys, "run", "zoo:digits-w1a1", str(tmp_path / "bad.png"))
    assert (code, out) == (1, "")
    assert err == f"onebit run: {tmp_path / 'bad.png'}: not an image of a known kind, or empty\n"


@pytest.mark.parametrize("command", ["eval", "export"])
def test_what_is_not_there_is_said_before_torch_is_asked_for(command, tmp_path):
    for name in ("none", "none.onebit", "none.safetensors"):
        code, out, err = without("torch,pydantic", command, str(tmp_path / name))
        assert (code, out) == (2, "")
        assert err == f"onebit {command}: {tmp_path / name}: no such file or run folder\n"


def test_a_package_that_lacks_is_named_as_it_is_installed(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    for package, words, told in [
        ("PIL", ["run", "zoo:digits-w1a1", str(tmp_path / "a.png")], "needs pillow: pip install 'onebit[cli]'"),
        ("rich", ["bench", "zoo:digits-w1a1"], "needs rich: pip install 'onebit[cli]'"),
        ("numpy", ["inspect", "zoo:digits-w1a1"], "needs numpy: pip install numpy"),
        ("torch", ["demo"], "needs torch: pip install 'onebit[train]'"),
    ]:
        assert without(package, *words) == (2, "", f"onebit {words[0]}: {told}\n")
