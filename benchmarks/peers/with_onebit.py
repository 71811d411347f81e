"""onebit itself."""

from __future__ import annotations

from typing import Any

import numpy as np

import onebit

from .runner import Floats, Job, Runner, Ways


def packed(job: Job) -> Ways:
    """The file, as a user loads it."""
    options: Any = {} if job.engine is None else {"engine": job.engine}

    net = onebit.load(job.file, **options)
    name = f"{net.info()['engine']}, {net.info()['isa']}"
    return {
        f"{name}, channels first": lambda: Runner(net),
        f"{name}, channels last": lambda: Runner(net, by_pixels),
    }


def by_pixels(images: Floats) -> Floats:
    """The same images, which lie in memory pixel by pixel."""
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
