"""The command line, as real processes."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from onebit.data.digits import load_digits


def onebit_command(*words, **options):
    command = [sys.executable, "-m", "onebit", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, **options)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["demo", "--epochs", "0"], "--epochs 0: use at least 1"),
        (["demo", "--projections", "3"], "--projections 3: use 1, 2, 4, 8 or 16"),
        (["demo", "--epochs", "many"], "invalid int value: 'many'"),
        (["dmo"], "did you mean demo?"),
        (["fly"], "invalid choice: 'fly'"),
        (["train", "--epochs", "0"], "--epochs 0: use at least 1"),
        (["eval", "nowhere"], "nowhere: no such file or run folder"),
    ],
)
def test_a_users_mistake_is_one_line_and_code_2(words, hint):
    done = onebit_command(*words)
    assert done.returncode == 2
    assert hint in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_version_and_help():
    version = onebit_command("--version")
    assert (version.returncode, version.stdout.split()[0]) == (0, "onebit")
    for words in (["--help"], ["train", "--help"], ["eval", "--help"], ["demo", "--help"]):
        done = onebit_command(*words)
        assert done.returncode == 0
        assert len(words) == 1 or f"onebit {words[0]} " in done.stdout.split("examples:")[1]


def test_import_needs_no_torch():
    """Neither `import onebit` nor the data; and what needs torch says how to get it."""
    code = """
import sys
sys.modules["torch"] = None  # as if it were not installed
import onebit, onebit.data.digits, onebit.commands
onebit.data.digits.load_digits()
assert onebit.__version__ and "binarize" in dir(onebit)
try:
    onebit.binarize
except ImportError as error:
    assert "pip install 'onebit[train]'" in str(error), error
else:
    raise AssertionError("no error")
try:
    onebit.nothing
except AttributeError:
    pass
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_public_names_are_what_they_say():
    code = """
import onebit, onebit.models
for name in onebit.__all__:
    assert getattr(onebit, name) is not None
assert callable(onebit.binarize) and onebit.models.wrn22
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_digits_are_whole():
    train, test = load_digits()
    assert train.images.shape == (1348, 1, 8, 8)
    assert test.images.shape == (449, 1, 8, 8)
    assert train.images.dtype == np.float32
    assert abs(float(train.images.mean())) < 1e-5
    assert abs(float(train.images.std()) - 1) < 1e-5
    assert np.bincount(train.labels).min() > 120
    assert np.bincount(test.labels).min() > 35
    # real images: a nearest-mean classifier already knows most of them
    means = np.stack([train.images[train.labels == d].mean(0).ravel() for d in range(10)])
    guess = torch.cdist(torch.from_numpy(test.images.reshape(449, -1)), torch.from_numpy(means)).argmin(1)
    assert (guess.numpy() == test.labels).mean() > 0.8


def test_a_reader_that_has_had_enough_gets_no_message():
    """As with `onebit train --list-recipes | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "onebit", "train", "--list-recipes"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


ENDS_BADLY = """
import atexit, os, sys
import onebit.commands
class AtTheEnd:
    def __del__(self, abort=os.abort):
        abort()
at_the_end = AtTheEnd()
if sys.argv[1] == "raise":
    onebit.commands.main = lambda: 1 / 0
if sys.argv[1] == "speak":
    onebit.commands.main = lambda: atexit.register(print, "last words") and 0
sys.exit(onebit.commands.entry_point())
"""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--version"], 0, "onebit "),
        (["demo", "--epochs", "many"], 2, "invalid int value"),  # argparse leaves with SystemExit
        (["train"], 2, "say what to train"),
        (["raise"], 1, "ZeroDivisionError"),
        (["speak"], 0, "last words"),  # what libraries do at exit, such as to stop their processes, is still done
    ],
)
def test_under_torchrun_nothing_can_spoil_the_end(words, code, said):
    """What happens while Python takes itself down, there a thread of gloo's, is left out; all else stays."""
    for processes, expected in (("2", code), ("1", -signal.SIGABRT)):
        environment = os.environ | {"WORLD_SIZE": processes, "RANK": "0", "PYTHONUNBUFFERED": ""}
        command = [sys.executable, "-c", ENDS_BADLY, *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == expected, done.stderr
        assert said in done.stdout + done.stderr
