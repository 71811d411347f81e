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
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from onebit.machine import cores
from onebit.peers.runner import burst, fastest, in_short, outputs_of

from .environments import DISTRIBUTIONS
from .runner import CannotRunError, Job, Runner, Ways


class Worker:
    """The net that it was given, and the answers to requests."""

    def __init__(self) -> None:
        self.runner: Runner | None = None
        self.x: Any = None

    def load(
        self,
        entry: str,
        file: str,
        batch: int,
        images: str,
        folder: str,
        outputs: str,
        engine: str | None,
        threads: int,
    ) -> dict[str, Any]:
        """Make a net ready in the fastest way that its peer has, and save its outputs."""
        _stay_on(threads)
        job = Job(Path(file), batch, np.load(images, allow_pickle=False), Path(folder), engine, threads)
        module, function = entry.split(":")
        ways: Ways = getattr(importlib.import_module(f"{__package__}.{module}"), function)(job)
        way, self.runner = fastest(ways, job.images[:batch])
        self.x = self.runner.enter(job.images[:batch])
        np.save(outputs, outputs_of(self.runner, job.images, batch))
        return {"way": way, "versions": _versions()}

    def time(self, seconds: float, most: int) -> dict[str, Any]:
        """Time some calls."""
        if self.runner is None:
            raise CannotRunError("no net is loaded")
        return {"seconds": burst(self.runner.run, self.x, seconds, most)}


def _stay_on(count: int) -> None:
    """Keep to some cores: all workers have the same ones, which are never idle for long then."""
    if (there := cores()) < count:
        raise CannotRunError(f"{count} threads need {count} cores; there are {there}")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-count:])


def _versions() -> dict[str, str]:
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def main() -> None:
    """Answer requests until there are no more."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to the log, not among the replies
    worker = Worker()
    actions: dict[str, Callable[..., dict[str, Any]]] = {"load": worker.load, "time": worker.time}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = actions[request.pop("do")](**request)
        except Exception as error:  # noqa: BLE001 the driver says it in the row
            traceback.print_exc()
            reply = {"error": in_short(error)}
        print(json.dumps(reply), file=replies)


if __name__ == "__main__":
    main()
