"""Several processes, as torchrun starts them."""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from training_runs import assert_same_run, call, command, records, small_flags, small_run, start, torchrun

KEYS = {"epochs": 6, "checkpoint_steps": 2}


def finished(process):
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return out, err


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two processes, uninterrupted."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    finished(torchrun(2, "train", *small_flags(**KEYS), "--out", str(run)))
    return run


def workers(process):
    """torchrun's children, by rank."""
    if not sys.platform.startswith("linux"):
        pytest.skip("looks for child processes in /proc")
    found = {}
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        environment = dict(
            e.split("=", 1) for e in Path(f"/proc/{child}/environ").read_text().split("\0") if "=" in e
        )
        if "RANK" in environment:
            found[int(environment["RANK"])] = int(child)
    return found


def test_two_processes_give_the_updates_of_one(tmp_path):
    """Of a net without batch statistics: the same batch, by halves."""
    worker = str(Path(__file__).parent / "training_worker.py")
    code, _, err = command(str(tmp_path / "one"), module=(worker,))
    assert code == 0, err
    options = ["--nproc-per-node", "2", "--standalone", worker]
    finished(start(*options, str(tmp_path / "two"), module=("-m", "torch.distributed.run")))
    one, two = load_file(tmp_path / "one"), load_file(tmp_path / "two")
    assert len(one["losses"]) == 4
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


def test_only_one_process_writes_and_speaks(whole):
    out_lines = [record["epoch"] for record in records(whole, "epoch")]
    assert out_lines == [1, 2, 3, 4, 5, 6]
    assert len(records(whole, "final")) == 1
    names = {path.name for path in whole.iterdir()}
    assert names == {
        ".lock", "config.toml", "environment.json", "metrics.jsonl", "last.safetensors", "last.state.safetensors",
        "best.safetensors", "summary.json",
    }  # fmt: skip


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_worker_is_replaced_and_the_run_goes_on(tmp_path, whole, rank):
    run = tmp_path / "run"
    process = torchrun(2, "train", *small_flags(**KEYS), "--out", str(run), max_restarts=2)
    limit = time.monotonic() + 60
    while not (run / "last.safetensors").exists():
        assert process.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.01)
    os.kill(workers(process)[rank], signal.SIGKILL)
    out, err = finished(process)
    assert "top-1" in out
    assert "Traceback" not in err
    assert_same_run(whole, run)


def test_sigterm_stops_all_at_the_same_update(tmp_path, whole, capsys):
    """And the run goes on to the same end with two processes, and to some end with one.

    There the batch stays what it was; batch norm sees other parts of it, so the weights only come close.
    """
    run = tmp_path / "run"
    process = torchrun(2, "train", *small_flags(**KEYS), "--out", str(run))
    while not (run / "last.safetensors").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert err.count("stopped and saved") == 1
    shutil.copytree(run, tmp_path / "alone")
    finished(torchrun(2, "train", "--resume", str(run)))
    assert_same_run(whole, run)
    code, _, err = call(capsys, "train", "--resume", str(tmp_path / "alone"))
    assert code == 0, err
    assert [r["epoch"] for r in records(tmp_path / "alone", "epoch")] == [1, 2, 3, 4, 5, 6]
    assert records(tmp_path / "alone", "final")[0]["step"] == 30


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_at_once_saves(tmp_path, number):
    """As a terminal has it: to torchrun, both processes and their decoders; and torchrun passes it on."""
    run = tmp_path / "run"
    words = [
        "--nproc-per-node",
        "2",
        "--standalone",
        "-m",
        "onebit",
        "train",
        *small_flags(**KEYS | {"epochs": 30}),
    ]
    process = start(*words, "--out", str(run), module=("-m", "torch.distributed.run"), start_new_session=True)
    while not (run / "last.safetensors").exists():
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert err.count("stopped and saved") == 1, err


def test_a_foreign_run_is_not_touched_by_a_restart(tmp_path):
    """The first attempt refuses it; the next ones, which torchrun makes, must as well."""
    run = tmp_path / "run"
    small_run(run, seed=3, epochs=1)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    process = torchrun(1, "train", *small_flags(seed=5), "--out", str(run), max_restarts=1)
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert err.count("holds a run already") == 2
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_a_batch_that_can_not_be_shared(tmp_path):
    process = torchrun(2, "train", *small_flags(batch_size=33), "--out", str(tmp_path / "run"))
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "--batch-size 33: 2 processes can't share it equally" in err
    assert not (tmp_path / "run").exists()
