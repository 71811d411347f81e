"""One style for all commands: results to stdout, progress and remarks to stderr, colours on terminals only."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

LINE_SECONDS = 30.0  # without a terminal, a line about progress comes no more often
PLAIN_WIDTH = 120  # of tables that go to a file or a pipe


def console(*, stderr: bool = False) -> Console:
    """Where tables and bars are printed."""
    from rich.console import Console

    class OurConsole(Console):
        def on_broken_pipe(self) -> None:
            """Leave it to `main`, which knows what a reader that has had enough means."""
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    return OurConsole(file=stream, width=None if stream.isatty() else PLAIN_WIDTH, highlight=False)


def say(line: str) -> None:
    """A remark for people, beside the results."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def print_table(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, width: int | None = None
) -> None:
    """A table to stdout, at most `width` wide; the first `left` columns begin, others end at the same place."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title) if title else None, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # no cell is markup: names come from files
    console().print(table, width=width)


class Progress:
    """A context that shows how far long work is: a bar, or plain lines now and then where there is no terminal."""

    def __init__(self, what: str, total: int, *, quiet: bool = False) -> None:
        self._what, self._total, self._quiet = what, total, quiet
        self._done = 0
        self._spoken = time.monotonic()
        self._bars: Bars | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            self._bars = _bars()
            self._task = self._bars.add_task(self._what, total=self._total)
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()

    def advance(self, count: int = 1) -> None:
        """So much more is done."""
        self._done += count
        if self._bars is not None and self._task is not None:
            self._bars.advance(self._task, count)
        elif not self._quiet and time.monotonic() - self._spoken > LINE_SECONDS:
            self._spoken = time.monotonic()
            say(f"{self._what}: {self._done} of {self._total}")

    def say(self, line: str) -> None:
        """A remark above the bar."""
        if self._bars is not None:
            self._bars.console.print(line, markup=False, soft_wrap=True)
        else:
            say(line)


def _bars() -> Bars:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    return Bars(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # results must reach a file or a pipe, not the bar's console
    )
