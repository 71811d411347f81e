"""What the runs of an entry came to: the learning rate that did best on held-out images, over all seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from onebit.comparison.running import failure_of, how_far
from onebit.reproduction.plans import RUNS, Entry, Experiment, Target
from onebit.reproduction.records import Record, known_record


class Outcome(NamedTuple):
    """An entry of a table, as far as its runs are finished.

    state     'finished', 'unfinished' (some runs are missing), 'failed', 'not in this budget'
    chosen    the records that count: those of the best learning rates
    missing   a line for each run that is not finished
    failed    a line for each run that failed for good: a learning rate that is too large, say
    """

    entry: Entry
    state: str
    chosen: tuple[Record, ...]
    missing: tuple[str, ...]
    failed: tuple[str, ...] = ()

    @property
    def top1(self) -> float | None:
        """Mean over the seeds."""
        return statistics.mean(record.top1 for record in self.chosen) if self.chosen else None

    @property
    def top5(self) -> float | None:
        """Mean over the seeds."""
        return statistics.mean(record.top5 for record in self.chosen) if self.chosen else None

    @property
    def spread(self) -> float | None:
        """Half of the range over the seeds: with two or three of them a deviation would say no more."""
        found = [record.top1 for record in self.chosen]
        return (max(found) - min(found)) / 2 if len(found) > 1 else None

    def as_json(self, heads: Sequence[str]) -> dict[str, Any]:
        """For a program."""
        first = self.chosen[0] if self.chosen else None
        return {
            **dict(zip(heads, self.entry.where, strict=True)),
            "paper_top1": self.entry.top1,
            "paper_top5": self.entry.top5,
            "state": self.state,
            "top1": self.top1,
            "top5": self.top5,
            "spread": self.spread,
            "lr": first and first.config["lr"],
            "kernel_rate": first and kernel_rate_of(first),
            "epochs": first and first.epochs,
            "parameters": first and first.parameters,
            "bytes": first and first.bytes,
            "runs": [record.name for record in self.chosen],
            "missing": list(self.missing),
            "failed": list(self.failed),
        }


def outcomes(target: Target, out: Path) -> list[Outcome]:
    """Of every entry."""
    records = {run.name: known_record(out, run) for run in target.experiments}
    return [_outcome(entry, records, out) for entry in target.entries]


def _outcome(entry: Entry, records: dict[str, Record | None], out: Path) -> Outcome:
    if not entry.runs:
        return Outcome(entry, "not in this budget", (), ())
    found = [record for run in entry.runs if (record := records[run.name])]
    without = {run: failure_of(out / RUNS, run) for run in entry.runs if records[run.name] is None}
    failed = tuple(f"{run.name}: {failure.why}" for run, failure in without.items() if failure)
    missing = tuple(_how_far(out, run) for run, failure in without.items() if not failure)
    state = "unfinished" if missing else "finished" if found else "failed"
    return Outcome(entry, state, _best(found), missing, failed)


def _best(found: Sequence[Record]) -> tuple[Record, ...]:
    """The records of the learning rates and the decay with most seeds and the best mean on held-out images."""
    by_rate: dict[tuple[float, float | str, bool], list[Record]] = {}
    for record in found:
        chosen = (record.config["lr"], kernel_rate_of(record), record.config.get("decay_kernels", True))
        by_rate.setdefault(chosen, []).append(record)
    if not by_rate:
        return ()
    if len(by_rate) == 1:
        return tuple(found)
    best = max(by_rate, key=lambda rate: _merit(by_rate[rate]))
    return tuple(by_rate[best])


def kernel_rate_of(record: Record) -> float | str:
    """By what the rate of the kernels was multiplied; records were without it when it was always 1."""
    rate: float | str = record.config.get("kernel_rate", 1.0)
    return rate


def _merit(records: list[Record]) -> tuple[int, float]:
    return len(records), statistics.mean(record.held_out_top1 or 0.0 for record in records)


def _how_far(out: Path, run: Experiment) -> str:
    """How far a run is that is not finished."""
    epoch = how_far(out / RUNS, run)
    return f"{run.name}: {f'in epoch {epoch}' if epoch else 'not begun'}"
