"""Pipes, sockets and devices with the names of files: they are refused, and nobody waits for them."""

import os
import signal
import socket
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import onebit
from data_files import cifar10_python, image_folder
from onebit.classifying import classify, find_images
from onebit.commands.eval import is_packed
from onebit.data.catalog import load_data
from onebit.data.cifar import CIFARS
from onebit.data.download import fetch
from onebit.data.pickles import read_pickle
from onebit.errors import UserError
from onebit.imagefiles import BadImageError, read_pixels
from onebit.paths import open_regular
from onebit.reproduction.records import read_record
from onebit.training.runfolder import METRICS, SUMMARY, RunFolder
from training_runs import call

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
