"""Rows timed in turns: each has a burst of calls in every round, so a slow moment of the machine falls on all."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from onebit.benching.contestants import OURS, Nets, Row, make_ready
from onebit.engine import Engine
from onebit.peers.agreement import draw_images
from onebit.peers.runner import burst, in_short, times_faster
from onebit.runnable import Floats

LEAST_IMAGES = 8  # by which outputs are compared,
MOST_NUMBERS = 1 << 28  # unless they have more than these; one batch may have
MOST_CALLS = 100_000  # of a burst


class Effort(NamedTuple):
    """How long is measured: rounds, and about how many seconds of each a row has; one call at least."""

    rounds: int = 10
    seconds: float = 0.1


@dataclass
class Table:
    """All rows with batches of one size, timed; the first is onebit's.

    had_core   the share of the time in which this process had a core; less than 1 where others had it
    """

    batch: int
    rows: list[Row]
    had_core: float = 1.0

    def milliseconds(self, row: Row) -> float:
        """Of one call: the median of all."""
        return 1e3 * statistics.median(taken for burst in row.bursts for taken in burst)

    def times_onebit(self, row: Row) -> float:
        """How many times as long as onebit it takes: the median over rounds of the ratio within a round."""
        return times_faster(self.rows[0].bursts, row.bursts)


def rows_of(names: list[str]) -> list[Row]:
    """Ours, and two of each program."""
    peers = [Row(name, net) for name in names for net in ("same", "twin")]
    return [Row(OURS, "file"), *peers]


def measure(
    nets: Nets, names: list[str], batch: int, effort: Effort, advance: Callable[[], None]
) -> tuple[Table, list[float]]:
    """A table of rows, and the seconds of each step of the engine for one image. Every turn calls `advance`."""
    table = Table(batch, rows_of(names))
    shape = nets.engine.model.graph.input_shape
    batches = min(-(-LEAST_IMAGES // batch), MOST_NUMBERS // (batch * math.prod(shape)))
    images = draw_images(batch * max(1, batches), shape)
    for row in table.rows:
        make_ready(row, nets, images, batch)
        advance()
    steps = []
    began, computed = time.perf_counter(), time.process_time()
    for _ in range(effort.rounds):
        for row in table.rows:
            _time(row, effort.seconds)
            advance()
        steps.append(time_steps(nets.engine, images[:batch], effort.seconds))
    table.had_core = min(1.0, (time.process_time() - computed) / (time.perf_counter() - began))
    for row in table.rows:
        row.runner = row.x = None  # their memory is for the next table
    return table, [statistics.median(of_step) for of_step in zip(*steps, strict=True)]


def turns(names: list[str], batches: list[int], effort: Effort) -> int:
    """How often `measure` advances for all these batches."""
    return len(rows_of(names)) * (1 + effort.rounds) * len(batches)


def _time(row: Row, seconds: float) -> None:
    if row.runner is None:
        return
    try:
        row.bursts.append(burst(row.runner.run, row.x, seconds, MOST_CALLS))
    except Exception as error:
        if row.name == OURS:
            raise
        row.failure, row.runner, row.bursts = in_short(error), None, []


def time_steps(engine: Engine, images: Floats, seconds: float) -> list[float]:
    """The seconds of each step for one image: medians over as many calls as fit."""
    calls: list[list[float]] = []
    counted = burst(lambda x: calls.append(engine.step_seconds(x)), images, seconds, MOST_CALLS)
    return [float(middle) / len(images) for middle in np.median(calls[-len(counted) :], axis=0)]
