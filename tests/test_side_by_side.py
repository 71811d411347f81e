"""Runs side by side: how many at once, which come first, and how far each is; without any training."""

import json
from types import SimpleNamespace

import pytest

from onebit.comparison import running
from onebit.comparison.running import Process, how_far, run_all
from onebit.training.config import Config
from onebit.training.locks import Lock
from onebit.training.runfolder import LOCK, METRICS
from training_runs import small_config

LOOKS = {"a": 1, "b": 6, "c": 2, "d": 1, "e": 3, "f": 1}  # until each has ended


@pytest.fixture
def begun(monkeypatch):
    """The names of the runs that have begun, in order."""
    names = []

    def begin(_, run):
        names.append(run.name)
        codes = iter([None] * LOOKS[run.name])
        popen = SimpleNamespace(poll=lambda: next(codes, 0), returncode=0, stdin=None, terminate=None)
        return Process(run, popen)

    monkeypatch.setattr(running, "_start", begin)
    monkeypatch.setattr(running, "POLL_SECONDS", 0)
    return names


def jobs_named(names):
    return [SimpleNamespace(name=name, label=name, config=Config()) for name in names]


@pytest.mark.parametrize("most", [1, 2, 4, 9])
def test_never_more_at_once_than_asked_and_never_fewer_than_can_be(begun, tmp_path, most):
    left, ended = set(LOOKS), []

    def watch(under_way, over):
        ended.extend(run.name for run in over)
        left.difference_update(run.name for run in over)
        at_once = len(under_way) + len(over)  # what ran until this look
        assert at_once == min(most, len(left) + len(over))

    assert run_all(tmp_path, jobs_named(LOOKS), most, watch) == ([], 0)
    assert begun == list(LOOKS)
    assert sorted(ended) == list(LOOKS)


def test_what_is_busy_comes_last(begun, tmp_path):
    """Workers of a comparison that was killed are still saving it."""
    (tmp_path / "a").mkdir()
    lock, looks = Lock(tmp_path / "a" / LOCK), []
    assert lock.take()

    def watch(_, over):
        looks.extend(run.name for run in over)
        if set(looks) == {"c", "d"}:
            lock.release()

    assert run_all(tmp_path, jobs_named("acd"), 2, watch) == ([], 0)
    assert begun == ["c", "d", "a"]


@pytest.mark.parametrize(
    ("two_stage", "at", "expected"),
    [
        (False, None, ""), (False, (1, 0), ""), (False, (1, 2), "2/3"), (False, (2, 1), ""),
        (True, (1, 1), "1/3 of stage 1"), (True, (2, 4), "4/7 of stage 2"), (True, (3, 1), ""),
    ],
)  # fmt: skip
def test_how_far_a_run_is(tmp_path, two_stage, at, expected):
    """Of the epochs of the stage that it is in."""
    stages = {"two_stage": True, "stage2_epochs": 7, "activation_bits": 1} if two_stage else {}
    run = SimpleNamespace(name="run", label="run", config=small_config(epochs=3, **stages))
    (tmp_path / "run").mkdir()
    if at is not None:
        record = {"kind": "epoch", "stage": at[0], "epoch": at[1], "step": 5}
        (tmp_path / "run" / METRICS).write_text(json.dumps(record) + "\n")
    assert how_far(tmp_path, run) == expected
