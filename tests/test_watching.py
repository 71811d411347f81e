"""What people see of runs while they go, without a terminal: lines that say where each is."""

import json
from types import SimpleNamespace

import pytest

from onebit.comparison import watching as of_comparisons
from onebit.comparison.watching import Display
from onebit.training import watching
from onebit.training.watching import PlainLines, epoch_line
from training_runs import small_config

EPOCH = {
    "kind": "epoch", "epoch": 4, "loss_s": 1.2345, "loss_p": 0.00123, "train_top1": 50.24, "held_out_top1": 40.11,
    "test_top1": 30.06, "flipped_kernels": 0.0123, "lr": 0.05,
}  # fmt: skip


def test_an_epoch_in_a_line():
    shown = "epoch 4/200  loss 1.234 + 0.0012  train 50.2 %  held out 40.1 %  test 30.1 %  flipped 1.23 %  lr 0.05"
    assert epoch_line(EPOCH, 200) == shown
    few = {key: EPOCH[key] for key in ("epoch", "loss_s", "loss_p", "train_top1", "lr")}
    assert epoch_line(few, 4) == "epoch 4/4  loss 1.234 + 0.0012  train 50.2 %  lr 0.05"


def test_lines_of_a_run_that_goes_on(capsys, monkeypatch):
    """Epochs are counted from 1, updates by how many are done."""
    shown = PlainLines()
    shown.stage("pcnn wrn22", 0, 1, 390)
    shown.stage("pcnn wrn22", 3, 200, 390)
    shown.step(3, 122, 2.5, 1234.0)  # too soon
    monkeypatch.setattr(watching, "LINE_SECONDS", -1.0)
    shown.step(3, 123, 2.30259, 1234.0)
    shown.record(EPOCH | {"kind": "final"})
    shown.record(EPOCH)
    assert capsys.readouterr().err.splitlines() == [
        "pcnn wrn22: 1 epoch of 390 updates",
        "pcnn wrn22: 200 epochs of 390 updates, from epoch 4",
        "epoch 4/200  update 123/390  loss 2.303  1234 images/s",
        epoch_line(EPOCH, 200),
    ]


@pytest.fixture
def clock(monkeypatch):
    """What a display takes for the time, in seconds."""
    now = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(of_comparisons, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def job(folder, name, **summary):
    """A run, finished if there is a summary of it."""
    (folder / name).mkdir()
    if summary:
        (folder / name / "summary.json").write_text(json.dumps(summary))
    return SimpleNamespace(name=name, label=name, config=small_config(epochs=5))


def test_lines_of_a_comparison(tmp_path, capsys, clock):
    """The time that is left is by the runs of this call; what was done before took none of it."""
    runs = [job(tmp_path, "a", test_top1=90.0, training_seconds=9.0), *(job(tmp_path, name) for name in "bcde")]
    with Display(tmp_path, runs, 2, quiet=False) as display:
        clock.seconds += 300
        (tmp_path / "b" / "summary.json").write_text('{"test_top1": 91.234, "training_seconds": 299.6}')
        display.watch(runs[2:4], [runs[1]])
        (tmp_path / "c" / "error.txt").write_text("stopped at step 3\n")
        record = {"kind": "epoch", "stage": 1, "epoch": 2, "step": 5}
        (tmp_path / "d" / "metrics.jsonl").write_text(json.dumps(record) + "\n")
        display.watch(runs[3:], [runs[2]])
    assert capsys.readouterr().err.splitlines() == [
        f"5 runs, 2 at a time, 1 of them done before; all of it goes into {tmp_path}",
        "[2/5] b: 91.23 % in 300 s (about 15 min to go)",
        "under way: c begins, d begins",
        "[3/5] c failed: stopped at step 3",
    ]


def test_a_line_a_minute_about_what_is_under_way(tmp_path, capsys, clock):
    runs = [job(tmp_path, name) for name in "ab"]
    record = {"kind": "epoch", "stage": 1, "epoch": 2, "step": 5}
    (tmp_path / "b" / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    with Display(tmp_path, runs, 2, quiet=False) as display:
        capsys.readouterr()
        for seconds in (59, 2, 59, 2):
            clock.seconds += seconds
            display.watch(runs, [])
    assert capsys.readouterr().err.splitlines() == ["under way: a begins, b 2/5"] * 2


def test_a_single_run_is_not_at_a_time(tmp_path, capsys, clock):
    with Display(tmp_path, [job(tmp_path, "a")], 2, quiet=False):
        assert capsys.readouterr().err == f"1 run; all of it goes into {tmp_path}\n"
    with Display(tmp_path, [], 2, quiet=True):
        assert capsys.readouterr().err == ""
