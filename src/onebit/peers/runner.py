"""What a program has to offer, so that it can be timed; and how that is done."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from onebit.errors import ExportError
from onebit.runnable import Floats

TRIAL_CALLS = 5
TRIAL_SECONDS = 1.0  # at most, for each way

Bursts = list[list[float]]  # the seconds of calls, a list for each round


class CannotRunError(Exception):
    """Why a row has no figures."""


def _unchanged(x: Any) -> Any:
    return x


class Runner(NamedTuple):
    """A net, ready. Only `run` is timed: layouts that a program prefers are made before and undone after.

    run     of what `enter` made, one batch
    enter   images (batch, channels, height, width) as the program wants them
    leave   what `run` made, as an array with the channels in second place
    """

    run: Callable[[Any], Any]
    enter: Callable[[Floats], Any] = _unchanged
    leave: Callable[[Any], Floats] = _unchanged


# The ways in which a program can run a net, by name; the fastest is taken. Making one may be slow, or fail.
Ways = dict[str, Callable[[], Runner]]


def timed(run: Callable[[Any], Any], x: Any, seconds: float, most: int) -> list[float]:
    """The times of calls, as many as fit: one at least."""
    taken: list[float] = []
    total = 0.0
    while not taken or (total < seconds and len(taken) < most):
        start = time.perf_counter()
        run(x)
        taken.append(time.perf_counter() - start)
        total += taken[-1]
    return taken


def burst(run: Callable[[Any], Any], x: Any, seconds: float, most: int) -> list[float]:
    """The times of some calls. Those before them do not count: others had the core and its caches since.

    A call that takes longer than a burst counts at once: its caches are warm for most of it.
    """
    first = timed(run, x, seconds / 4, most)
    return first if first[0] > seconds else timed(run, x, seconds, most)


def fastest(ways: Ways, images: Floats) -> tuple[str, Runner]:
    """The way with the best time for this batch; one that fails is passed over if there is another."""
    best: tuple[float, str, Runner] | None = None
    failures: list[Exception] = []
    for name, make in ways.items():
        try:
            runner = make()
            x = runner.enter(images)
            runner.run(x)
            taken = min(timed(runner.run, x, TRIAL_SECONDS, TRIAL_CALLS)) if len(ways) > 1 else 0.0
        except Exception as error:  # noqa: BLE001 whatever the program raises
            failures.append(error)
            continue
        if best is None or taken < best[0]:
            best = (taken, name, runner)
    if best is None:
        raise CannotRunError(in_short(failures[-1])) from failures[-1]
    return best[1], best[2]


def in_short(error: BaseException) -> str:
    """An error in one line."""
    if isinstance(error, CannotRunError | ExportError):  # says it all
        return str(error)
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def outputs_of(runner: Runner, images: Floats, batch: int) -> Floats:
    """What a net makes of images, batch by batch. Each is copied, for a program may use its memory again."""
    parts = [images[at : at + batch] for at in range(0, len(images), batch)]
    return np.concatenate([np.array(runner.leave(runner.run(runner.enter(part)))) for part in parts])


def times_faster(own: Bursts, other: Bursts) -> float:
    """The median over rounds of the ratio within a round: a slow moment falls on both."""
    pairs = zip(own, other, strict=True)
    return statistics.median(statistics.median(theirs) / statistics.median(ours) for ours, theirs in pairs)
