"""One run of a table: every row is made ready, then all are timed in turns."""

from __future__ import annotations

import statistics
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from onebit.peers.agreement import Agreement, compare
from onebit.peers.runner import times_faster

from .driving import Contestant, Setting
from .nets import Files
from .rows import BASELINE, JUDGE, OURS, Row
from .runner import CannotRunError, Floats


class Effort(NamedTuple):
    """How long is measured.

    rounds    in each of them every row has a burst
    seconds   of a burst, about; a burst has one call at least
    most      calls of a burst
    """

    rounds: int = 30
    seconds: float = 0.1
    most: int = 400


QUICK = Effort(rounds=5, seconds=0.05, most=100)


@dataclass
class Result:
    """A row after a run. Times are in seconds, a list for each round; without them `failure` says why."""

    failure: str = ""
    way: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    agreement: Agreement | None = None
    bursts: list[list[float]] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Of all calls."""
        return statistics.median(self._calls())

    @property
    def p10(self) -> float:
        """The time that a tenth of the calls stayed under: what it takes when nothing else disturbs."""
        return float(np.percentile(self._calls(), 10))

    def times_faster(self, other: Result) -> float:
        """The median over rounds of the ratio within a round: a slow moment falls on both rows."""
        return times_faster(self.bursts, other.bursts)

    def _calls(self) -> list[float]:
        return [taken for burst in self.bursts for taken in burst]


Run = dict[Row, Result]


def run_once(files: Files, batch: int, rows: list[Row], effort: Effort, setting: Setting) -> Run:
    """Measure the rows. Never more than one worker computes: each is asked only when the others have answered."""
    folder = files.same.parent
    results: Run = {row: Result() for row in rows}
    outputs: dict[Row, Floats] = {}
    ready: list[Contestant] = []
    with ExitStack() as stack:
        for row in rows:
            saved = folder / f"{rows.index(row)}.npy"
            request = {
                "entry": row.entry,
                "file": str(getattr(files, row.net)),
                "batch": batch,
                "images": str(files.images),
                "folder": str(folder),
                "outputs": str(saved),
                "engine": setting.engine,
            }
            _show(f"loading {row.name} ({row.net})")
            try:
                contestant = stack.enter_context(Contestant(row, setting, folder / f"{rows.index(row)}.log"))
                reply = contestant.ask("load", threads=contestant.threads, **request)
            except CannotRunError as error:
                results[row].failure = str(error)
                continue
            results[row].way, results[row].versions = reply["way"], reply["versions"]
            outputs[row] = np.load(saved, allow_pickle=False)
            ready.append(contestant)
        for number in range(effort.rounds):
            _show(f"round {number + 1} of {effort.rounds}")
            for contestant in list(ready):
                try:
                    reply = contestant.ask("time", seconds=effort.seconds, most=effort.most)
                    results[contestant.row].bursts.append(reply["seconds"])
                except CannotRunError as error:
                    results[contestant.row] = Result(failure=str(error))
                    ready.remove(contestant)
    _show("")
    _judge(results, outputs)
    return results


def _judge(results: Run, outputs: dict[Row, Floats]) -> None:
    for row, found in outputs.items():
        judge = BASELINE if row.net == "twin" else JUDGE
        if judge in outputs and row != judge:
            try:
                results[row].agreement = compare(found, outputs[judge])
            except ValueError as error:
                results[row] = Result(failure=str(error))


def middle(runs: list[Run]) -> Run:
    """The run whose ratio of onebit to the baseline is the middle one: all figures of a table are of one run.

    If either has failed, the run whose baseline (or, without it, the first row that ran) is the middle one.
    """

    def key(run: Run) -> float:
        ran = [row for row, result in run.items() if result.bursts]
        if OURS in ran and BASELINE in ran:
            return run[OURS].times_faster(run[BASELINE])
        return run[ran[0]].median if ran else 0.0

    return sorted(runs, key=key)[len(runs) // 2]


def _show(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
