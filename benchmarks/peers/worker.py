"""A worker: one row of a table, in a process and an environment of its own.

It reads a request a line from stdin, JSON, and answers each with a line on stdout. Arrays go by .npy files.

    {"do": "load", "entry": ..., "file": ..., "images": ..., ...}   -> {"way": ..., "versions": ...}
    {"do": "time", "seconds": 0.05, "most": 20}                     -> {"seconds": [...]}
    anything that fails                                             -> {"error": ...}
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from .environments import DISTRIBUTIONS
from .runner import CannotRunError, Job, Runner, Ways

TRIAL_CALLS = 5
TRIAL_SECONDS = 1.0  # at most, for each way


class Worker:
    """The net that it was given, and the answers to requests."""

    def __init__(self) -> None:
        self.runner: Runner | None = None
        self.x: Any = None

    def load(
        self, entry: str, file: str, batch: int, images: str, folder: str, outputs: str, engine: str | None
    ) -> dict[str, Any]:
        """Make a net ready in the fastest way that its peer has, and save its outputs."""
        job = Job(Path(file), batch, np.load(images, allow_pickle=False), Path(folder), engine)
        module, function = entry.split(":")
        ways: Ways = getattr(importlib.import_module(f"{__package__}.{module}"), function)(job)
        way, self.runner = _fastest(ways, job)
        self.x = self.runner.enter(job.images[:batch])
        batches = [job.images[at : at + batch] for at in range(0, len(job.images), batch)]
        made = [np.array(self.runner.leave(self.runner.run(self.runner.enter(each)))) for each in batches]
        np.save(outputs, np.concatenate(made))
        return {"way": way or self.runner.note, "versions": _versions()}

    def time(self, seconds: float, most: int) -> dict[str, Any]:
        """Time some calls. Those before them do not count: others had the core and its caches since."""
        if self.runner is None:
            raise CannotRunError("no net is loaded")
        _timed(self.runner, self.x, seconds / 4, most)
        return {"seconds": _timed(self.runner, self.x, seconds, most)}


def _timed(runner: Runner, x: Any, seconds: float, most: int) -> list[float]:
    """The times of calls, as many as fit: one at least."""
    run, taken = runner.run, [0.0] * 0
    while not taken or (sum(taken) < seconds and len(taken) < most):
        start = time.perf_counter()
        run(x)
        taken.append(time.perf_counter() - start)
    return taken


def _fastest(ways: Ways, job: Job) -> tuple[str, Runner]:
    """The way with the best time; a way that fails is passed over if there is another."""
    if len(ways) == 1:
        return next((name, make()) for name, make in ways.items())
    best: tuple[float, str, Runner] | None = None
    failed = ""
    for name, make in ways.items():
        try:
            runner = make()
            x = runner.enter(job.images[: job.batch])
            runner.run(x)
            taken = min(_timed(runner, x, TRIAL_SECONDS, TRIAL_CALLS))
        except Exception as error:  # noqa: BLE001 whatever the peer raises
            traceback.print_exc()
            failed = f"{name}: {_in_short(error)}"
            continue
        if best is None or taken < best[0]:
            best = (taken, name, runner)
    if best is None:
        raise CannotRunError(failed)
    return best[1], best[2]


def _versions() -> dict[str, str]:
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _in_short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    if isinstance(error, CannotRunError):  # says it all
        return str(error)
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def main() -> None:
    """Answer requests until there are no more."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to the log, not among the replies
    if hasattr(os, "sched_setaffinity"):  # all workers on one core, which is never idle for long then
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    worker = Worker()
    actions: dict[str, Callable[..., dict[str, Any]]] = {"load": worker.load, "time": worker.time}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = actions[request.pop("do")](**request)
        except Exception as error:  # noqa: BLE001 the driver says it in the row
            traceback.print_exc()
            reply = {"error": _in_short(error)}
        print(json.dumps(reply), file=replies)


if __name__ == "__main__":
    main()
