"""Pipes, sockets and devices with the names of files: they are refused, and nobody waits for them."""

import os
import signal
import socket
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import onebit
from data_files import cifar10_python, image_folder
from onebit.classifying import classify, find_images
from onebit.commands.eval import is_packed
from onebit.comparison import running
from onebit.data.catalog import load_data
from onebit.data.cifar import CIFARS
from onebit.data.download import fetch
from onebit.data.pickles import read_pickle
from onebit.errors import UserError, WorkError
from onebit.imagefiles import BadImageError, read_pixels
from onebit.paths import append_regular, open_regular
from onebit.reproduction.records import read_record
from onebit.training.checkpoints import switch
from onebit.training.runfolder import LOCK, METRICS, SUMMARY, RunFolder
from training_runs import call, small_config, small_flags, small_run

NOT_REGULAR = "not a regular file"


@contextmanager
def nobody_waits(*pipes):
    """Who reads a pipe that nobody writes waits for ever; here, until the alarm, which lets all go and fails."""

    def late(number, frame):
        for pipe in pipes:
            os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))
        pytest.fail("waits for a pipe")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "elsewhere" / "pipe"
    path.parent.mkdir()
    os.mkfifo(path)
    return path


@pytest.fixture
def special(tmp_path, pipe, monkeypatch):
    """One of each kind; and links to them."""
    folder = tmp_path / "special"
    folder.mkdir()
    with monkeypatch.context() as patch, socket.socket(socket.AF_UNIX) as listening:
        patch.chdir(folder)  # the names of sockets are short
        listening.bind("socket.png")
    os.mkfifo(folder / "b.png")
    (folder / "zeros.png").symlink_to("/dev/zero")
    (folder / "link.png").symlink_to(pipe)
    return folder


def test_only_regular_files_are_opened(special, tmp_path):
    with nobody_waits(special / "b.png"):
        for path in sorted(special.iterdir()):
            with pytest.raises(OSError, match=NOT_REGULAR):
                open_regular(path)
        with pytest.raises(IsADirectoryError):
            open_regular(special)
        with pytest.raises(FileNotFoundError):
            open_regular(special / "none")
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "to-file").symlink_to(tmp_path / "file")
    for path in (tmp_path / "file", str(tmp_path / "to-file")):
        with open_regular(path) as file:
            assert file.read() == b"content"


def test_a_file_that_becomes_a_pipe_meanwhile_is_refused(tmp_path, pipe, monkeypatch):
    """Between the look at the name and the opening somebody puts a pipe there."""
    file = tmp_path / "file"
    file.write_bytes(b"content")
    real = os.open

    def replaced(path, *arguments):
        pipe.replace(path)
        return real(path, *arguments)

    with monkeypatch.context() as patch, nobody_waits(file):
        patch.setattr(os, "open", replaced)
        descriptors = len([*Path("/dev/fd").iterdir()])
        with pytest.raises(OSError, match=NOT_REGULAR):
            open_regular(file)
        assert len([*Path("/dev/fd").iterdir()]) == descriptors


def test_a_folder_with_pipes_is_classified(special, capsys):
    Image.new("L", (9, 7), 99).save(special / "good.png")
    with nobody_waits(special / "b.png"):
        code, out, err = call(capsys, "run", "zoo:digits-w1a1", str(special))
        outcomes = list(classify(onebit.load("zoo:digits-w1a1"), find_images([str(special / "*.png")]), 1))
    assert code == 1
    assert [line.split()[0] for line in out.splitlines()[1:]] == [str(special / "good.png")]
    for name in ("b.png", "link.png", "socket.png", "zeros.png"):
        assert f"{special / name}: {NOT_REGULAR}" in err
    assert "4 of 5 images could not be read" in err
    assert [bool(outcome.problem) for outcome in outcomes] == [True, False, True, True, True]


def test_an_image_that_is_a_pipe_is_no_image(pipe):
    with nobody_waits(pipe), pytest.raises(BadImageError, match=f"^{NOT_REGULAR}"):
        read_pixels(pipe, (3, 8, 8))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_training_image_that_is_a_pipe_is_named_or_skipped(tmp_path, workers):
    root = image_folder(tmp_path / "data", classes=2, train=2)
    pipe = root / "train" / "n00000001" / "train_0.JPEG"
    pipe.unlink()
    os.mkfifo(pipe)
    rows = [np.arange(4)]
    with nobody_waits(pipe):
        data = load_data("imagefolder", str(root), image_size=16, workers=workers)
        with pytest.raises(UserError, match=f"{pipe.name}: .*{NOT_REGULAR}"):
            list(data.train.batches(rows))
        data = load_data("imagefolder", str(root), image_size=16, workers=workers, on_bad_image="skip")
        (batch,) = data.train.batches(rows)
    assert batch.labels.tolist() == [0, 0, 1]
    assert data.skipped == {str(pipe)}


def test_pipes_in_place_of_data_and_records(tmp_path, pipe):
    archive = CIFARS["cifar10"].archive
    os.mkfifo(tmp_path / archive.name)
    os.mkfifo(tmp_path / METRICS)
    os.mkfifo(tmp_path / SUMMARY)
    with nobody_waits(pipe, tmp_path / archive.name, tmp_path / METRICS, tmp_path / SUMMARY):
        with pytest.raises(UserError, match=NOT_REGULAR):
            fetch(archive, tmp_path)
        with pytest.raises(UserError, match=NOT_REGULAR):
            read_pickle(pipe)
        with pytest.raises(OSError, match=NOT_REGULAR):
            read_record(pipe)
        assert not is_packed(str(pipe))
        assert RunFolder(tmp_path).place() == (1, 0)
        assert RunFolder(tmp_path).summary() is None


def listened_to(path):
    """A pipe that somebody reads: to open it would not even fail. The end that reads."""
    os.mkfifo(path)
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK)


@pytest.mark.parametrize("is_read", [False, True])
def test_only_regular_files_are_appended_to(tmp_path, is_read):
    path = tmp_path / "pipe"
    reader = listened_to(path)
    if not is_read:
        os.close(reader)
    with nobody_waits(path), pytest.raises(OSError, match=NOT_REGULAR):
        append_regular(path)
    with pytest.raises(IsADirectoryError):
        append_regular(tmp_path)
    for _ in range(2):
        with append_regular(tmp_path / "file") as file:
            file.write(b"x")
    assert (tmp_path / "file").read_bytes() == b"xx"
    if is_read:
        os.close(reader)


def test_a_file_that_becomes_a_pipe_before_it_is_appended_to(tmp_path, monkeypatch):
    file, pipe = tmp_path / "file", tmp_path / "pipe"
    file.touch()
    reader, real = listened_to(pipe), os.open

    def replaced(path, *arguments):
        pipe.replace(path)
        return real(path, *arguments)

    with monkeypatch.context() as patch, nobody_waits(file):
        patch.setattr(os, "open", replaced)
        descriptors = len([*Path("/dev/fd").iterdir()])
        with pytest.raises(OSError, match=NOT_REGULAR):
            append_regular(file)
        assert len([*Path("/dev/fd").iterdir()]) == descriptors
    os.close(reader)


def test_a_lock_that_is_a_pipe(tmp_path, capsys):
    """In a folder to train in, to go on in, to compare in; and in that of a run which is compared."""
    run, fresh, several = tmp_path / "run", tmp_path / "fresh", tmp_path / "several"
    small_run(run, epochs=1)
    (run / SUMMARY).unlink()
    (run / LOCK).unlink(missing_ok=True)
    fresh.mkdir()
    several.mkdir()
    locks = [folder / LOCK for folder in (run, fresh, several)]
    for lock in locks:
        os.mkfifo(lock)
    with nobody_waits(*locks):
        for words in (
            ["train", "--resume", str(run)],
            ["train", *small_flags(), "--out", str(fresh)],
            ["compare", "--methods", "pcnn", *small_flags(), "--out", str(several)],
        ):
            code, _, err = call(capsys, *words, "--quiet")
            path = Path(words[-1]) / LOCK
            assert (code, err.splitlines()[-1]) == (
                2,
                f"onebit {words[0]}: {path}: {NOT_REGULAR} (a pipe, a socket or a device)",
            )
        assert not RunFolder(run).is_busy()


def test_pipes_in_place_of_what_a_run_writes(tmp_path):
    run, log = tmp_path / "run", tmp_path / "run" / METRICS
    run.mkdir()
    os.mkfifo(log)
    files = [run / ".a.next", run / ".commit.next", run / "a"]
    with nobody_waits(log, *files):
        with pytest.raises(WorkError, match=f"{METRICS}: {NOT_REGULAR}"):
            RunFolder(run).log({"kind": "epoch"})
        for file in files:
            os.mkfifo(file)
        switch(run, {"a": b"content"})
    assert (run / "a").read_bytes() == b"content"
    log.unlink()
    for epoch in (1, 2):
        RunFolder(run).log({"epoch": epoch})
    assert log.read_text() == '{"epoch": 1}\n{"epoch": 2}\n'


def test_what_a_compared_run_says_is_no_pipe(tmp_path, monkeypatch):
    run = SimpleNamespace(name="run", label="run", config=small_config())
    said = tmp_path / "run" / "output.txt"
    said.parent.mkdir()
    os.mkfifo(said)
    monkeypatch.setattr(running, "prepare", lambda folder, run: ["train", "--no-such-flag"])
    with nobody_waits(said):
        process = running._start(tmp_path, run)
        process.popen.wait()
        process.popen.stdin.close()
    assert "--no-such-flag" in said.read_text()


def test_a_batch_of_cifar_that_is_a_pipe(tmp_path):
    folder, _ = cifar10_python(tmp_path)
    batch = folder / "data_batch_3"
    batch.unlink()
    os.mkfifo(batch)
    with nobody_waits(batch), pytest.raises(UserError, match="data_batch_3: not there"):
        load_data("cifar10", str(tmp_path))


def test_the_alarm_of_these_tests_rings(pipe, monkeypatch):
    """Else none of them could fail."""
    monkeypatch.setattr(signal, "alarm", lambda seconds: signal.setitimer(signal.ITIMER_REAL, min(seconds, 0.2)))
    with pytest.raises(pytest.fail.Exception, match="waits"), nobody_waits(pipe):
        Path(pipe).read_bytes()
