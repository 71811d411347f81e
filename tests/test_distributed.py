"""One process against two real ones (gloo): the same update from the same batch."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from children import child

WORKER = Path(__file__).with_name("distributed_worker.py")


def start(mode, rank, world_size, folder):
    rendezvous, output = folder / f"rendezvous-{world_size}", folder / f"weights-{world_size}"
    command = [sys.executable, WORKER, mode, rank, world_size, rendezvous, output]
    return child([str(word) for word in command], stderr=subprocess.PIPE, text=True)


def finish(process):
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


def run(mode, world_size, folder):
    workers = [start(mode, rank, world_size, folder) for rank in range(world_size)]
    outcomes = [finish(worker) for worker in workers]
    assert [code for code, _ in outcomes] == [0] * world_size, outcomes
    return [torch.load(folder / f"weights-{world_size}.{rank}") for rank in range(world_size)]


@pytest.mark.parametrize("mode", ["w1a32", "w1a1", "by_hand", "no_sync", "bucket_view", "unwrapped_group"])
def test_two_processes_give_the_update_of_one(mode, tmp_path):
    (alone,) = run(mode, 1, tmp_path)
    first, second = run(mode, 2, tmp_path)
    for name, expected in alone.items():
        torch.testing.assert_close(first[name], expected, rtol=1e-11, atol=1e-13)
        assert torch.equal(first[name], second[name])


@pytest.mark.parametrize("method", ["bwn", "mcn"])
def test_what_rivals_do_at_the_step_is_the_same_in_two_processes(method, tmp_path):
    """BWN's clip and centring, MCN's loss and absolute values."""
    (alone,) = run(f"rival-{method}", 1, tmp_path)
    first, second = run(f"rival-{method}", 2, tmp_path)
    for name, expected in alone.items():
        torch.testing.assert_close(first[name], expected, rtol=1e-11, atol=1e-13)
        assert torch.equal(first[name], second[name])
    if method == "bwn":
        assert alone["2.weight"].abs().max() == 1  # it was clipped


@pytest.mark.parametrize("mode", ["unused", "unused_bucket_view"])
def test_a_layer_that_one_process_does_not_use(mode, tmp_path):
    """Its delta is 0 there; both processes must still end with the same weights."""
    first, second = run(mode, 2, tmp_path)
    for name, weights in first.items():
        assert torch.equal(weights, second[name])


def test_the_unwrapped_model_is_refused(tmp_path):
    workers = [start("unwrapped", rank, 2, tmp_path) for rank in range(2)]
    for code, errors in map(finish, workers):
        assert code == 1
        assert "Pass the wrapped model" in errors
