"""Real processes, really killed: at any moment, and what is left goes on to the same end."""

import json
import random
import signal
import time

import pytest

from training_runs import assert_same_run, call, command, records, small_flags, start

# A checkpoint after each update: whoever is killed is likely to be killed while saving.
KEYS = {"epochs": 6, "checkpoint_steps": 1}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "whole"
    code, _, err = command("train", *small_flags(**KEYS), "--out", str(run))
    assert code == 0, err
    return run


def wait_for(condition, process, seconds=60):
    limit = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.01)


def killed_until_done(run, kills, seed):
    """Kill -9 after a random time from the first sign of life on, `kills` times; then let it finish."""
    moments = random.Random(seed)
    words = ["train", *small_flags(**KEYS), "--out", str(run), "--resume"]
    for _ in range(kills):
        process = start(*words)
        lock = run / ".lock"
        if lock.exists():
            lock.unlink()  # its return is the sign that this process has begun
        wait_for(lock.exists, process)
        time.sleep(moments.uniform(0, 0.6))
        process.kill()
        process.communicate()
    code, _, err = command(*words)
    assert code == 0, err


@pytest.mark.parametrize("seed", [0])
def test_kill_9_twice(tmp_path, whole, seed):
    killed_until_done(tmp_path / "run", 2, seed)
    assert_same_run(whole, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_kill_9_many_times(tmp_path, whole, seed):
    """Five kills in each of four runs of about as many seconds."""
    killed_until_done(tmp_path / "run", 6, seed)
    assert_same_run(whole, tmp_path / "run")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_says_how_to_go_on(tmp_path, whole, number, code):
    run = tmp_path / "run"
    process = start("train", *small_flags(**(KEYS | {"checkpoint_steps": 0})), "--out", str(run))
    wait_for((run / "metrics.jsonl").exists, process)
    wait_for(lambda: (run / "metrics.jsonl").stat().st_size > 0, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert err.splitlines()[-1] == f"onebit train: stopped and saved; go on with: onebit train --resume {run}"
    assert len(records(run, "final")) == 0
    code, out, err = command("train", "--resume", str(run))
    assert code == 0, err
    assert "top-1" in out
    assert_same_run(whole, run)


def test_two_processes_can_not_train_in_one_folder(tmp_path):
    run = tmp_path / "run"
    first = start("train", *small_flags(epochs=50), "--out", str(run))
    wait_for((run / "last.safetensors").exists, first)
    code, _, err = command("train", "--resume", str(run))
    assert code == 2
    assert "another process is training there" in err.splitlines()[-1]
    first.kill()
    first.communicate()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--epochs", "9"], "--epochs 9: the run in {run} began with 6, and a resumed run keeps it"),
        (["--lr", "0.5"], "--lr 0.5: the run in {run} began with 0.1"),
        (["--recipe", "digits-pcnn22"], "--width 16: the run in {run} began with 2"),
        (["--epochs", "0"], "--epochs 0: use at least 1"),
    ],
)
def test_a_resumed_run_keeps_what_it_began_with(whole, capsys, words, what):
    code, _, err = call(capsys, "train", "--resume", str(whole), *words)
    assert code == 2
    assert what.format(run=whole) in err.splitlines()[-1]


def test_the_same_command_with_resume_begins_or_goes_on(tmp_path, whole, capsys):
    run = tmp_path / "run"
    words = ["train", *small_flags(**KEYS), "--out", str(run), "--resume", "--quiet"]
    for _ in range(2):
        code, out, err = call(capsys, *words)
        assert (code, err) == (0, "")
        assert "top-1" in out
    assert_same_run(whole, run)


def test_eval_says_what_the_summary_says(whole, capsys):
    summary = json.loads((whole / "summary.json").read_text())
    code, out, err = call(capsys, "eval", str(whole), "--json")
    assert code == 0, err
    result = json.loads(out)
    assert result["images"] == 449  # all test images; the run was limited to 200 of them
    assert summary["test_images"] == 200
    assert 0 <= result["top1"] <= result["top5"] <= 100
    code, out, _ = call(capsys, "eval", str(whole), "--which", "best")
    assert code == 0
    assert out.startswith("pcnn wrn22, width 2, J = 1, W1A32 on digits: top-1 ")
