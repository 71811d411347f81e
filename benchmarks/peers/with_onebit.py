"""onebit itself."""

from __future__ import annotations

from typing import Any

import onebit
from onebit.peers import onebit_net

from .runner import Job, Ways


def packed(job: Job) -> Ways:
    """The file, as a user loads it."""
    options: Any = {} if job.engine is None else {"engine": job.engine}
    net = onebit.load(job.file, threads=job.threads, **options)
    name = f"{net.info()['engine']}, {net.info()['isa']}"
    return {f"{name}, {layout}": make for layout, make in onebit_net.ways(net).items()}
