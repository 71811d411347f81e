"""Runs side by side, each in a process of its own, as many at once as there are cores."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from onebit.paths import write_whole
from onebit.training.checkpoints import switch
from onebit.training.config import Config
from onebit.training.interrupts import Interrupts
from onebit.training.recipes import to_toml
from onebit.training.runfolder import RunFolder
from onebit.training.schedule import stages

ERROR = "error.txt"  # in the folder of a run whose loss became infinite: it would again
POLL_SECONDS = 0.1


class Job(Protocol):
    """A run that is planned."""

    @property
    def name(self) -> str:
        """Of its folder."""

    @property
    def label(self) -> str:
        """For people."""

    @property
    def config(self) -> Config:
        """What is to be trained."""


class Failure(NamedTuple):
    """A run that did not come to its end."""

    run: Job
    why: str


class Process(NamedTuple):
    """A run that is under way."""

    run: Job
    popen: subprocess.Popen[bytes]


def summary_of(folder: Path, run: Job) -> dict[str, Any] | None:
    """The summary of a run that is finished."""
    return RunFolder(folder / run.name).summary()


def failure_of(folder: Path, run: Job) -> Failure | None:
    """Why a run failed for good, if it did."""
    path = folder / run.name / ERROR
    return Failure(run, path.read_text().strip()) if path.is_file() else None


def how_far(folder: Path, run: Job) -> str:
    """Of a run that is not finished: such as '3/5'; '' if it has not begun."""
    stage, epoch = RunFolder(folder / run.name).place()
    planned = stages(run.config)
    if not epoch or stage > len(planned):
        return ""
    return f"{epoch}/{planned[stage - 1].epochs}" + (f" of stage {stage}" if len(planned) > 1 else "")


def run_all(
    folder: Path, runs: Sequence[Job], jobs: int, watch: Callable[[Sequence[Job], Sequence[Job]], None]
) -> tuple[list[Failure], int]:
    """Bring all runs to their ends; what failed, and the signal that stopped it (0: none).

    `watch` is called with the runs under way and the runs that have just ended. A run on which the workers of a
    killed comparison are still at work is left for last: they are saving it.
    """
    waiting = [run for run in runs if summary_of(folder, run) is None and failure_of(folder, run) is None]
    failures = [failure for run in runs if (failure := failure_of(folder, run))]
    under_way: list[Process] = []
    with Interrupts() as interrupts:
        try:
            while (waiting and not interrupts.received) or under_way:
                if len(under_way) < jobs and not interrupts.received:
                    free = [run for run in waiting if not RunFolder(folder / run.name).is_busy()]
                    starting = free[: jobs - len(under_way)]
                    under_way += [_start(folder, run) for run in starting]
                    waiting = [run for run in waiting if run not in starting]
                ended = [process for process in under_way if process.popen.poll() is not None]
                under_way = [process for process in under_way if process not in ended]
                failures += [failure for p in ended if (failure := _outcome(folder, p, bool(interrupts.received)))]
                watch([p.run for p in under_way], [p.run for p in ended])
                if interrupts.received:
                    _stop(under_way)
                time.sleep(POLL_SECONDS)
        finally:
            _stop(under_way)
            for process in under_way:
                process.popen.communicate()
    return failures, interrupts.received


def prepare(folder: Path, run: Job) -> list[str]:
    """Say in the folder of a run what is asked for; return the words of the `onebit` command that does it."""
    where = folder / run.name
    where.mkdir(parents=True, exist_ok=True)
    write_whole(where / "asked.toml", to_toml(run.config).encode())  # not `switch`: a run may be at work here
    return ["train", "--recipe", str(where / "asked.toml"), "--out", str(where), "--resume"]


def _start(folder: Path, run: Job) -> Process:
    words, where = [*prepare(folder, run), "--quiet"], folder / run.name
    said = where / "output.txt"
    said.unlink(missing_ok=True)  # a pipe of that name would be waited for
    with said.open("xb") as output:
        popen = subprocess.Popen(  # noqa: S603 our own interpreter and module; no shell
            [sys.executable, "-m", "onebit.commands.compare_worker", *words],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the comparison, which passes it on
        )
    return Process(run, popen)


def _outcome(folder: Path, process: Process, interrupted: bool) -> Failure | None:
    """What to say of a process that has ended."""
    if process.popen.stdin is not None:
        process.popen.stdin.close()
    code, where = process.popen.returncode, folder / process.run.name
    if code == 0 or (interrupted and code in {128 + signal.SIGTERM, 128 + signal.SIGINT, -signal.SIGTERM}):
        return None
    lines = (where / "output.txt").read_text(errors="replace").strip().splitlines()
    why = lines[-1].removeprefix("onebit train: ") if lines else f"the process ended with code {code}"
    if code < 0:
        why = f"the process was ended by signal {-code}"
    for advice in (
        ". Use a smaller --lr",
        ". Go on with: ",
    ):  # of a single run; here it is the comparison that goes on
        why = why.partition(advice)[0]
    if code == 2 and why.startswith("stopped at step"):
        switch(where, {ERROR: (why + "\n").encode()})
    return Failure(process.run, why)


def _stop(processes: list[Process]) -> None:
    for process in processes:
        if process.popen.poll() is None:
            process.popen.terminate()
