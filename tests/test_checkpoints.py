"""Files that switch together, whatever happens in between."""

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from onebit.errors import UserError, WorkError
from onebit.training import checkpoints
from onebit.training.checkpoints import recover, switch
from onebit.training.runfolder import RunFolder
from training_runs import call, command, records, small_flags, small_run


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


OLD = {"weights": b"old" * 1000, "state": b"old state", "other": b"untouched"}
NEW = {"weights": b"new", "state": b"new state", "best": b"made now"}


class Killed(BaseException):
    """What comes in the place of SIGKILL: nothing in the code catches it."""


OPERATIONS = [(Path, "open"), (Path, "replace"), (Path, "unlink"), (os, "fsync")]


def die_at(monkeypatch, moment):
    """End before the `moment`-th operation on the disk; the number of operations if there are fewer."""
    count = 0

    def counting(operation):
        def counted(*args, **kwargs):
            nonlocal count
            count += 1
            if count == moment:
                raise Killed
            return operation(*args, **kwargs)

        return counted

    for owner, name in OPERATIONS:
        monkeypatch.setattr(owner, name, counting(getattr(owner, name)))
    return lambda: count


def test_death_at_every_moment_leaves_all_or_nothing(tmp_path, monkeypatch):
    outcomes = set()
    for moment in range(1, 100):
        folder = tmp_path / str(moment)
        folder.mkdir()
        for name, content in OLD.items():
            (folder / name).write_bytes(content)
        with monkeypatch.context() as patch:
            counted = die_at(patch, moment)
            try:
                switch(folder, NEW)
            except Killed:
                pass
            else:
                assert counted() < moment
                break
        with monkeypatch.context() as patch:  # and death again, in the middle of the recovery
            die_at(patch, 1 + moment % 3)
            with contextlib.suppress(Killed):
                recover(folder)
        recover(folder)
        found = contents(folder)
        assert found in (OLD, OLD | NEW)
        outcomes.add(found == OLD)
    assert outcomes == {True, False}
    assert moment > 12


def test_everything_is_on_the_disk_before_it_counts(tmp_path, monkeypatch):
    """For a loss of power: files and folder are synced before `.commit` appears, and it before any rename."""
    events = []
    opened = {}
    path_open, replace, fsync, os_open = Path.open, Path.replace, os.fsync, os.open

    def noting_open(path, *args, **kwargs):
        file = path_open(path, *args, **kwargs)
        opened[file.fileno()] = path.name
        return file

    def noting_os_open(path, *args, **kwargs):
        descriptor = os_open(path, *args, **kwargs)
        opened[descriptor] = Path(path).name
        return descriptor

    monkeypatch.setattr(Path, "open", noting_open)
    monkeypatch.setattr(os, "open", noting_os_open)
    monkeypatch.setattr(os, "fsync", lambda number: (events.append(("sync", opened[number])), fsync(number)))
    monkeypatch.setattr(Path, "replace", lambda p, to: (events.append(("rename", to.name)), replace(p, to))[1])
    switch(tmp_path, {"a": b"1", "b": b"2"})
    commit = events.index(("rename", ".commit"))
    folder = ("sync", tmp_path.name)
    assert {("sync", ".a.next"), ("sync", ".b.next"), ("sync", ".commit.next"), folder} <= set(events[:commit])
    assert events[commit + 1] == folder
    assert events.index(("rename", "a")) > commit + 1
    assert events[-1] == folder


def test_a_list_of_files_that_is_none(tmp_path):
    for content in (b"", b"\xff", b"{", b"3"):
        (tmp_path / ".commit").write_bytes(content)
        with pytest.raises(UserError, match="not a list of files"):
            recover(tmp_path)


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    switch(tmp_path, OLD)

    def full(path, content):
        if "state" in path.name:
            path.write_bytes(content[:3])
            raise OSError(28, "No space left on device")
        path.write_bytes(content)

    monkeypatch.setattr(checkpoints, "_write", full)
    with pytest.raises(WorkError, match="no space left on the disk; what was saved before is whole"):
        switch(tmp_path, NEW)
    assert contents(tmp_path) == OLD


def test_a_failed_first_write_does_not_speak_of_what_was_saved_before(tmp_path, monkeypatch):
    def refused(path, content):
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(checkpoints, "_write", refused)
    (tmp_path / "other").write_bytes(b"somebody's")
    with pytest.raises(WorkError, match=r"can't be written \(Permission denied\); nothing of it was saved$"):
        switch(tmp_path, NEW)
    assert contents(tmp_path) == {"other": b"somebody's"}


def test_a_command_that_fails_names_a_checkpoint_only_if_there_is_one(tmp_path, monkeypatch, capsys):
    run = tmp_path / "run"
    words = ["train", *small_flags(epochs=1), "--out", str(run), "--quiet"]
    write = checkpoints._write

    def full(path, content):
        if "last" in path.name:
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(checkpoints, "_write", full)
    code, _, err = call(capsys, *words)
    assert code == 1
    assert err.endswith("nothing of it was saved. There is no checkpoint yet: the same command begins anew\n")
    monkeypatch.undo()
    assert call(capsys, *words)[0] == 0  # as it was told to
    monkeypatch.setattr(checkpoints, "_write", full)
    with pytest.raises(WorkError, match="what was saved before is whole"):
        switch(run, {"last.safetensors": b""})


def test_metrics_that_cannot_be_written(tmp_path):
    folder = RunFolder(tmp_path)
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(WorkError, match="Is a directory; nothing was saved yet"):
        folder.log({"step": 1})
    (tmp_path / "last.state.safetensors").write_bytes(b"")
    with pytest.raises(WorkError, match="Is a directory; the last checkpoint is whole"):
        folder.log({"step": 1})


def test_a_list_of_names_can_not_lead_elsewhere(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".x.next").write_bytes(b"")
    (folder / ".commit").write_text('["../escaped", "x"]')
    recover(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


@pytest.fixture
def small_disk(tmp_path):
    """A real file system with room for the run's first checkpoint and not for many more."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1000k", "tmpfs", str(disk)],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"a small disk can't be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_said_and_the_checkpoint_stays_whole(tmp_path, small_disk):
    whole = small_run(tmp_path / "whole", width=4, epochs=8)
    run = small_disk / "run"
    words = ["train", *small_flags(width=4, epochs=8, keep_every=1), "--out", str(run)]
    code, _, err = command(*words)
    assert code == 1, err
    assert "no space left on the disk" in err.splitlines()[-1]
    assert f"onebit train --resume {run}" in err.splitlines()[-1]
    kept = sorted(run.glob("epoch*.safetensors"))
    assert kept
    for path in kept:  # make room
        path.unlink()
    code, out, err = command("train", "--resume", str(run), "--keep-every", "0")
    assert code == 0, err
    assert f"top-1 {whole['test_top1']:.2f} %" in out
    assert [r["epoch"] for r in records(run, "epoch")] == list(range(1, 9))
