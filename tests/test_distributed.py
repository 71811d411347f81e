"""One process against two real ones (gloo): the same update from the same batch."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import distributed_worker
from children import child

WORKER = Path(__file__).with_name("distributed_worker.py")
MODES = ["w1a32", "w1a1", "by_hand", "no_sync", "bucket_view", "unwrapped_group"]
RIVALS = ["rival-bwn", "rival-mcn"]
UNUSED = ["unused", "unused_bucket_view"]
GROUPS = ["local", "own_group", "ddp_of_own_group"]


def two_processes(folder, *modes):
    """Exit codes and errors."""
    words = [[sys.executable, WORKER, folder, rank, 2, *modes] for rank in range(2)]
    workers = [child(list(map(str, each)), stderr=subprocess.PIPE, text=True) for each in words]
    errors = [worker.communicate(timeout=240)[1] for worker in workers]
    return [worker.returncode for worker in workers], errors


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Weights by mode: of one process, where that can be, and of each of two, which do one mode after another."""
    folder = tmp_path_factory.mktemp("trained")
    for mode in MODES + RIVALS:
        distributed_worker.main(folder, 0, 1, mode)
    codes, errors = two_processes(folder, *MODES, *RIVALS, *UNUSED, *GROUPS)
    assert codes == [0, 0], errors
    return lambda mode, rank, processes: torch.load(folder / f"{mode}.{rank}-of-{processes}")


@pytest.mark.parametrize("mode", MODES)
def test_two_processes_give_the_update_of_one(mode, trained):
    alone, first, second = trained(mode, 0, 1), trained(mode, 0, 2), trained(mode, 1, 2)
    for name, expected in alone.items():
        torch.testing.assert_close(first[name], expected, rtol=1e-11, atol=1e-13)
        assert torch.equal(first[name], second[name])


@pytest.mark.parametrize("mode", RIVALS)
def test_what_rivals_do_at_the_step_is_the_same_in_two_processes(mode, trained):
    """BWN's clip and centring, MCN's loss and absolute values."""
    alone, first, second = trained(mode, 0, 1), trained(mode, 0, 2), trained(mode, 1, 2)
    for name, expected in alone.items():
        torch.testing.assert_close(first[name], expected, rtol=1e-11, atol=1e-13)
        assert torch.equal(first[name], second[name])
    if mode == "rival-bwn":
        assert alone["2.weight"].abs().max() == 1  # it was clipped


@pytest.mark.parametrize("mode", UNUSED)
def test_a_layer_that_one_process_does_not_use(mode, trained):
    """Its delta is 0 there; both processes must still end with the same weights."""
    first, second = trained(mode, 0, 2), trained(mode, 1, 2)
    for name, weights in first.items():
        assert torch.equal(weights, second[name])


@pytest.mark.parametrize("mode", GROUPS[1:])
def test_the_mean_is_over_the_group(mode, trained):
    """A group of one process learns as that process does by itself, whatever others there are."""
    for rank in range(2):
        alone, grouped = trained("local", rank, 2), trained(mode, rank, 2)
        for name, weights in alone.items():
            torch.testing.assert_close(grouped[name], weights, rtol=1e-11, atol=1e-13)
    assert not torch.equal(trained(mode, 0, 2)["2.C"], trained(mode, 1, 2)["2.C"])


def test_the_unwrapped_model_is_refused(tmp_path):
    codes, errors = two_processes(tmp_path, "unwrapped")
    assert codes == [1, 1]
    assert all("Pass the wrapped model" in each for each in errors)
