"""The table of a comparison, from the runs that are finished."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from onebit.comparison.plan import Contestant, Plan, Run
from onebit.comparison.running import failure_of, summary_of
from onebit.counting import Storage, bits_of, storage
from onebit.jsonfields import json_text
from onebit.training.nets import build_trained, read_weights


class Row(NamedTuple):
    """What a contestant came to, with the learning rates that did best on held-out images."""

    method: str
    weight_bits: int
    activation_bits: int
    parameters: int
    bytes: int
    top1: float  # on the test images, mean over the seeds
    spread: float | None  # standard deviation over the seeds; None for a single one
    seeds: int
    lr: float
    minutes: float  # of training, mean over the seeds
    failed: int  # runs of this contestant, at any learning rate
    kernel_rate: float | str = 1.0  # by what that of the kernels was multiplied


class Point(NamedTuple):
    """A contestant at one learning rate and one of its kernels: what the choice of them goes by."""

    method: str
    lr: float
    kernel_rate: float | str
    finished: int  # runs, of as many as there are seeds
    held_out_top1: (
        float | None
    )  # after the last epoch, mean over the seeds; None: no run is finished, or none held out
    top1: float | None


def grid(folder: Path, plan: Plan, runs: Sequence[Run]) -> list[Point]:
    """Every contestant at every rate, in the order of the plan's contestants."""
    by_rates: dict[tuple[str, float, float | str], list[Run]] = {}
    for contestant in plan.contestants:
        for run in runs:
            if run.contestant == contestant:
                by_rates.setdefault((contestant.label, run.lr, run.kernel_rate), []).append(run)
    found = []
    for place, mine in by_rates.items():
        done = [run for run in mine if summary_of(folder, run)]
        held, top1 = (_scores(folder, done, key) for key in ("held_out_top1", "test_top1"))
        found.append(Point(*place, len(done), _mean(held), _mean(top1)))
    return found


def rows(folder: Path, plan: Plan, runs: Sequence[Run], points: Sequence[Point]) -> list[Row]:
    """A row for every contestant with finished runs, best first; `points` are those of `grid`."""
    found = [row for contestant in plan.contestants if (row := _row(folder, contestant, runs, points))]
    return sorted(found, key=lambda row: -row.top1)


def at_the_edge(table: Sequence[Row], plan: Plan) -> list[str]:
    """Methods with the largest or the smallest rate of the grid as their best: another may be better still.

    Of the kernels' rates only the largest is an end: 1 is what all else learns with.
    """
    numbers = [rate for rate in plan.kernel_rates if isinstance(rate, float)]
    return [row.method for row in table if _is_end(row.lr, plan.lrs) or _is_top(row.kernel_rate, numbers)]


def _is_end(rate: float, of: Sequence[float]) -> bool:
    return len(of) >= 3 and rate in {min(of), max(of)}  # of two, each is an end


def _is_top(rate: float | str, of: Sequence[float]) -> bool:
    return len(of) >= 2 and rate == max(of)


def _row(folder: Path, contestant: Contestant, runs: Sequence[Run], points: Sequence[Point]) -> Row | None:
    mine = [point for point in points if point.method == contestant.label and point.finished]
    if not mine:
        return None
    # A rate with which some of the seeds failed is not one to choose while another does for all.
    best = max(mine, key=lambda point: (point.finished, point.held_out_top1 or 0.0))
    of_contestant = [run for run in runs if run.contestant == contestant]
    at_best = [run for run in of_contestant if (run.lr, run.kernel_rate) == (best.lr, best.kernel_rate)]
    chosen = [run for run in at_best if summary_of(folder, run)]
    top1 = _scores(folder, chosen, "test_top1")
    kept, (weight_bits, activation_bits) = _counted(folder, chosen[0])
    return Row(
        contestant.label,
        weight_bits,
        activation_bits,
        kept.parameters,
        kept.bytes,
        statistics.mean(top1),
        statistics.stdev(top1) if len(top1) > 1 else None,
        len(top1),
        best.lr,
        statistics.mean(_scores(folder, chosen, "training_seconds")) / 60,
        sum(failure_of(folder, run) is not None for run in of_contestant),
        best.kernel_rate,
    )


def _scores(folder: Path, runs: Sequence[Run], key: str) -> list[float]:
    """A number of each run's summary, where it has it."""
    summaries = [summary_of(folder, run) or {} for run in runs]
    return [float(summary[key]) for summary in summaries if summary.get(key) is not None]


def _mean(numbers: Sequence[float]) -> float | None:
    return statistics.mean(numbers) if numbers else None


def _counted(folder: Path, run: Run) -> tuple[Storage, tuple[int, int]]:
    net = build_trained(read_weights(folder / run.name))
    return storage(net), bits_of(net)


HEADINGS = ("method", "W/A", "parameters", "bytes", "top-1 %", "lr", "kernels", "minutes")


def cells(row: Row) -> tuple[str, ...]:
    """A row as people read it."""
    top1 = f"{row.top1:.2f}" if row.spread is None else f"{row.top1:.2f} ± {row.spread:.2f}"
    bits = f"{row.weight_bits}/{row.activation_bits}"
    minutes = f"{row.minutes:.1f}" if row.minutes >= 1 else f"{row.minutes:.2g}"
    kernels = row.kernel_rate if isinstance(row.kernel_rate, str) else f"{row.kernel_rate:g}"
    return (row.method, bits, f"{row.parameters:,}", f"{row.bytes:,}", top1, f"{row.lr:g}", kernels, minutes)


def missing_cells(method: str) -> tuple[str, ...]:
    """The row of a contestant without a finished run."""
    return (method, "", "", "", "failed", "", "", "")


def as_markdown(table: Sequence[Row], missing: Sequence[str], title: str) -> str:
    """For a document."""
    lines = [title, "", f"| {' | '.join(HEADINGS)} |", f"|---|---|{'---:|' * (len(HEADINGS) - 2)}"]
    lines += [f"| {' | '.join(row)} |" for row in [*map(cells, table), *map(missing_cells, missing)]]
    return "\n".join(lines) + "\n"


def as_csv(table: Sequence[Row]) -> str:
    """For a spreadsheet."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    writer.writerows(table)
    return text.getvalue()


def as_json(table: Sequence[Row], facts: dict[str, Any]) -> str:
    """For a program; facts are about the comparison as a whole."""
    return json_text(facts | {"rows": [row._asdict() for row in table]}, indent=2) + "\n"
