"""What a peer has to offer, so that it can be timed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class CannotRunError(Exception):
    """Why a row has no figures."""


class Job(NamedTuple):
    """What a peer is asked to run.

    file     the .onebit file
    images   (N, channels, height, width), N a multiple of batch; for calibration, too
    folder   for files that one worker leaves to others, or to the next run
    engine   of onebit: None for its own choice
    """

    file: Path
    batch: int
    images: Floats
    folder: Path
    engine: str | None = None


def _unchanged(x: Any) -> Any:
    return x


class Runner(NamedTuple):
    """A net, ready. Only `run` is timed: layouts that a peer prefers are made before and undone after.

    run     of what `enter` made, one batch
    enter   images (batch, channels, height, width) as the peer wants them
    leave   what `run` made, as an array with the channels in second place
    note    what else is to be said of it
    """

    run: Callable[[Any], Any]
    enter: Callable[[Floats], Any] = _unchanged
    leave: Callable[[Any], Floats] = _unchanged
    note: str = ""


# The ways in which a peer can run a job, by name; the worker takes the fastest. Making one may be slow, or fail.
Ways = dict[str, Callable[[], Runner]]
