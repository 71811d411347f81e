"""Shared by all tests."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest
import torch

from children import end_children
from loops import small_net

# Each example prints its own reproduction line on failure; time limits would make a slow machine fail.
hypothesis.settings.register_profile("onebit", deadline=None, max_examples=60, print_blob=True)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=1000, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "onebit"))


SOURCE = Path(os.environ.get("ONEBIT_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))

# As in an environment that is activated: what is advised begins with `onebit` (else: tests/test_advice.py).
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])

# What a shell puts into the background ignores Ctrl-C, and so do its children: a test of it would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if "PYTEST_XDIST_WORKER" in os.environ:  # side by side, each with threads for all cores, they would be slower
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    """Every test starts from the same random state, alone or in company."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_child_left():
    """A test that fails in the middle leaves no process behind."""
    yield
    end_children()


@pytest.fixture
def batch():
    """Images and labels for `net`."""
    return torch.randn(6, 2, 7, 7, dtype=torch.float64), torch.randint(0, 3, (6,))


@pytest.fixture
def net(batch):
    """A small net in float64 with two projection layers and no batch statistics."""
    net = small_net()
    net(batch[0])
    return net


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory):
    """A folder with real photographs: CIFAR-10, and folders of Tiny ImageNet; for slow tests."""
    if not (SOURCE / "unpack").is_file():
        pytest.skip(f"no data to test with in {SOURCE} ($ONEBIT_TEST_DATA)")
    folder = tmp_path_factory.mktemp("data")
    subprocess.run([sys.executable, str(SOURCE / "unpack"), str(folder)], check=True, capture_output=True)
    return folder
