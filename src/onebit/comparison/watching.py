"""What people see of a comparison while it goes: a bar over all runs, or plain lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from onebit.comparison.running import Job, failure_of, how_far, summary_of
from onebit.console import counted, progress_bars, say, start

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LINE_SECONDS = 60.0  # a plain line about runs under way comes no more often


class Display:
    """A context in which `watch` shows how far the runs are."""

    def __init__(self, folder: Path, runs: Sequence[Job], jobs: int, *, quiet: bool) -> None:
        self._folder, self._runs, self._jobs, self._quiet = folder, runs, jobs, quiet
        self._done = sum(self._is_over(run) for run in runs)
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._begun = self._spoken = time.monotonic()
        self._done_before = self._done

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            self._progress = progress_bars()
            self._task = self._progress.add_task("runs", total=len(self._runs), completed=self._done, note="")
            start(self._progress)
        before = f", {self._done} of them done before" if self._done else ""
        at_once = f", {self._jobs} at a time" if len(self._runs) > 1 else ""
        runs = counted(len(self._runs), "run") + at_once
        self.say(f"{runs}{before}; all of it goes into {self._folder}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()

    def say(self, line: str) -> None:
        """A line above the bar."""
        if self._quiet:
            return
        if self._progress is not None:
            self._progress.console.print(line, soft_wrap=True)
        else:
            say(line)

    def watch(self, under_way: Sequence[Job], ended: Sequence[Job]) -> None:
        """See `run_all`."""
        for run in ended:
            summary, failure = summary_of(self._folder, run), failure_of(self._folder, run)
            self._done += bool(summary or failure)
            if summary:
                result = f"{summary['test_top1']:.2f} % in {summary['training_seconds']:.0f} s"
                self.say(f"[{self._done}/{len(self._runs)}] {run.name}: {result}{self._left()}")
            elif failure:
                self.say(f"[{self._done}/{len(self._runs)}] {run.name} failed: {failure.why}")
        if self._progress is not None and self._task is not None:
            now = "  ".join(f"{run.label} {self._epoch(run)}" for run in under_way[:4])
            self._progress.update(self._task, completed=self._done, note=now)
        elif under_way and time.monotonic() - self._spoken > LINE_SECONDS:
            self._spoken = time.monotonic()
            self.say("under way: " + ", ".join(f"{run.name} {self._epoch(run)}" for run in under_way))

    def _left(self) -> str:
        """How long it will take yet, if it goes on as it did."""
        per_run = (time.monotonic() - self._begun) / (self._done - self._done_before)
        minutes = per_run * (len(self._runs) - self._done) / 60
        return f" (about {minutes:.0f} min to go)" if minutes >= 1 and self._progress is None else ""

    def _is_over(self, run: Job) -> bool:
        return summary_of(self._folder, run) is not None or failure_of(self._folder, run) is not None

    def _epoch(self, run: Job) -> str:
        return how_far(self._folder, run) or "begins"
