"""The table of a comparison, from the runs that are finished."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from onebit.comparison.plan import Contestant, Plan, Run
from onebit.comparison.running import failure_of, summary_of
from onebit.counting import Storage, bits_of, storage
from onebit.training.nets import build_trained, read_weights
from onebit.training.runfolder import METRICS


class Row(NamedTuple):
    """What a contestant came to, with the learning rate that did best on held-out images."""

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


def rows(folder: Path, plan: Plan, runs: Sequence[Run]) -> list[Row]:
    """A row for every contestant with finished runs, best first."""
    found = [row for contestant in plan.contestants if (row := _row(folder, contestant, runs))]
    return sorted(found, key=lambda row: -row.top1)


def _row(folder: Path, contestant: Contestant, runs: Sequence[Run]) -> Row | None:
    mine = [run for run in runs if run.contestant == contestant]
    summaries = {run.name: summary for run in mine if (summary := summary_of(folder, run))}
    if not summaries:
        return None
    by_lr: dict[float, list[Run]] = {}
    for run in mine:
        if run.name in summaries:
            by_lr.setdefault(run.lr, []).append(run)
    # A rate with which some of the seeds failed is not one to choose while another does for all.
    lr = max(by_lr, key=lambda lr: (len(by_lr[lr]), _held_out(folder, by_lr[lr])))
    chosen = by_lr[lr]
    top1 = [float(summaries[run.name]["test_top1"]) for run in chosen]
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
        lr,
        statistics.mean(float(summaries[run.name]["training_seconds"]) for run in chosen) / 60,
        sum(failure_of(folder, run) is not None for run in mine),
    )


def _held_out(folder: Path, runs: Sequence[Run]) -> float:
    """Mean accuracy on held-out images after the last epoch; 0 if none are held out (one learning rate, then)."""
    last: list[float] = []
    for run in runs:
        records = map(json.loads, (folder / run.name / METRICS).read_text().splitlines())
        last.append([float(record.get("held_out_top1", 0)) for record in records if record["kind"] == "epoch"][-1])
    return statistics.mean(last)


def _counted(folder: Path, run: Run) -> tuple[Storage, tuple[int, int]]:
    net = build_trained(read_weights(folder / run.name))
    return storage(net), bits_of(net)


HEADINGS = ("method", "W/A", "parameters", "bytes", "top-1 %", "lr", "minutes")


def cells(row: Row) -> tuple[str, ...]:
    """A row as people read it."""
    top1 = f"{row.top1:.2f}" if row.spread is None else f"{row.top1:.2f} ± {row.spread:.2f}"
    bits = f"{row.weight_bits}/{row.activation_bits}"
    return (row.method, bits, f"{row.parameters:,}", f"{row.bytes:,}", top1, f"{row.lr:g}", f"{row.minutes:.2f}")


def as_markdown(table: Sequence[Row], title: str) -> str:
    """For a document."""
    lines = [title, "", f"| {' | '.join(HEADINGS)} |", f"|---|---|{'---:|' * (len(HEADINGS) - 2)}"]
    lines += [f"| {' | '.join(cells(row))} |" for row in table]
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
    return json.dumps(facts | {"rows": [row._asdict() for row in table]}, indent=2) + "\n"
