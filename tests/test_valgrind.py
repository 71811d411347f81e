"""Whole nets under valgrind: the engine reads nothing that was never written, and nothing beyond its memory."""

import shutil
import subprocess
import sys

import pytest
import torch

import onebit
import onebit.machine
import onebit.native
from onebit.modelfile import write_model
from packed_nets import lived_in
from wire_models import wire_models

SCRIPT = """
import sys
import numpy as np
import onebit

net = onebit.load(sys.argv[1], threads=int(sys.argv[2]), isa=sys.argv[4])
shape = (3, *net.model.graph.input_shape)
images = np.empty(shape, np.float32) if sys.argv[3] == "nothing" else np.full(shape, 0.5, np.float32)
net(images)
net(images[:1])
print("ran", net.isa)
"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed"),
]


def errors_in_the_engine(path, threads, isa, images="numbers"):
    """The errors whose stack has a function of ours; Python's own are its own affair."""
    command = ["valgrind", "--leak-check=no", "--num-callers=12", sys.executable, "-c", SCRIPT]
    ran = subprocess.run(
        [*command, str(path), str(threads), images, isa], capture_output=True, text=True, check=False
    )
    assert f"ran {isa}" in ran.stdout, ran.stderr[-2000:]
    reports = ran.stderr.split("== \n")
    return [report for report in reports if "_native" in report and " at 0x" in report]


@pytest.fixture(scope="module")
def isa():
    """The fastest kernels that valgrind knows the instructions of."""
    return "avx2" if onebit.native.native().has_isa("avx2") else "scalar"


@pytest.fixture(scope="module")
def wrn22(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("nets") / "wrn22.onebit"
    net = lived_in(onebit.models.wrn22(16, num_projections=2, activation_bits=1))
    onebit.export(net, path, torch.zeros(1, 3, 32, 32))
    return path


@pytest.mark.parametrize("threads", [1, 2])
def test_a_whole_net(wrn22, threads, isa):
    if threads > onebit.machine.cores():
        pytest.skip("this machine has one core")
    assert errors_in_the_engine(wrn22, threads, isa) == []


@pytest.mark.parametrize("which", range(len(wire_models())))
def test_every_operation(tmp_path, which, isa):
    write_model(wire_models()[which], tmp_path / "net.onebit")
    assert errors_in_the_engine(tmp_path / "net.onebit", 1, isa) == []


def test_that_errors_are_seen(wrn22, isa):
    """Images that were never written: their signs depend on nothing."""
    assert errors_in_the_engine(wrn22, 1, isa, images="nothing")
