"""One style for all commands: results to stdout, progress and remarks to stderr, colours on terminals only.

Names and texts come from files that may be anybody's. Whatever is printed goes through here, where it is made
printable, so that no other module has to think of it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID
    from rich.text import Text

LINE_SECONDS = 30.0  # without a terminal, a line about progress comes no more often
PLAIN_WIDTH = 120  # of tables that go to a file or a pipe
COLOURS = {"red": 31, "green": 32, "yellow": 33}
_silenced = False


@contextmanager
def quietly(quiet: bool) -> Iterator[None]:
    """Whether remarks and progress are left out meanwhile: `--quiet` of every command."""
    global _silenced  # noqa: PLW0603 a process has one stderr
    before, _silenced = _silenced, quiet
    try:
        yield
    finally:
        _silenced = before


def console(*, stderr: bool = False) -> Console:
    """Where tables and bars are printed."""
    from rich.console import Console
    from rich.text import Text

    class OurConsole(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            """Text is printable and no markup; tables see to their cells themselves."""
            said = (Text(printable(each)) if isinstance(each, str) else each for each in objects)
            super().print(*said, **options)

        def on_broken_pipe(self) -> None:
            """Leave it to `main`, which knows what a reader that has had enough means."""
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    is_terminal = stream.isatty()
    return OurConsole(
        file=stream, width=None if is_terminal else PLAIN_WIDTH, highlight=False, force_terminal=is_terminal
    )


def painted(text: str, colour: Literal["red", "green", "yellow"], stream: IO[str]) -> str:
    """The text in a colour, if the stream is a terminal and colours are wanted there (no-color.org)."""
    if not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m"


def printable(text: str) -> str:
    """The text as one line that no terminal takes for more than a line, and that every stream can write."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def is_unicode(text: str) -> bool:
    """Whether it can be written to files: names of files on a disk need not be."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def tell(*lines: str, before: str = "", flush: bool = False) -> None:
    """Results, a line each, to stdout; `before` the first stands text of our own, which may have colours."""
    for line in lines:
        print(f"{before}{printable(line)}", flush=flush)  # noqa: T201
        before = ""


def tell_text(text: str, stream: IO[str] | None = None) -> None:
    """A text that is all our own (help, a script for a shell), as it stands; to stdout, if no stream is named."""
    (stream or sys.stdout).write(text)


def say(line: str) -> None:
    """A remark for people, beside the results; not with --quiet."""
    if not _silenced:
        print(printable(line), file=sys.stderr, flush=True)  # noqa: T201


def counted(count: int, what: str) -> str:
    """'1 epoch', '2 epochs', '2 classes'. Give a regular noun's singular; a phrase ends with it ('test image')."""
    if count != 1:
        what += "es" if what.endswith("s") else "s"
    return f"{count} {what}"


def complain(who: str, line: str) -> None:
    """What went wrong: always said."""
    name = painted(f"{printable(who)}:", "red", sys.stderr)
    print(f"{name} {printable(line)}", file=sys.stderr, flush=True)  # noqa: T201


def print_table(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, width: int | None = None
) -> None:
    """A table to stdout, at most `width` wide; the first `left` columns begin, others end at the same place."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(printable(title)) if title else None, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row))
    console().print(table, width=width)


def _cell(text: str) -> Text:
    """Of a table: no markup; it may have several lines, each of which is printable."""
    from rich.text import Text

    return Text("\n".join(map(printable, text.split("\n"))))


class Progress:
    """A context that shows how far long work is: a bar, or plain lines now and then where there is no terminal.

    A total of 0 is one that nobody knows.
    """

    def __init__(self, what: str, total: int, *, quiet: bool = False, of_bytes: bool = False) -> None:
        self._what, self._total, self._of_bytes = what, total, of_bytes
        self._quiet = quiet or _silenced
        self._done = 0
        self._spoken = time.monotonic()
        self._bars: Bars | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            try:
                self._bars = progress_bars(of_bytes=self._of_bytes)
            except ModuleNotFoundError:  # where nets only run there may be no rich: plain lines do
                return self
            self._task = self._bars.add_task(self._what, total=self._total or None)
            start(self._bars)
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
            of = f" of {self._number(self._total)}" if self._total else ""
            say(f"{self._what}: {self._number(self._done)}{of}")

    def say(self, line: str) -> None:
        """A remark above the bar."""
        if self._quiet:
            return
        if self._bars is not None:
            self._bars.console.print(line, soft_wrap=True)
        else:
            say(line)

    def _number(self, count: int) -> str:
        return f"{count / 1e6:.0f} MB" if self._of_bytes else str(count)


def start(bars: Bars) -> None:
    """Show the bars. A Ctrl-C just then must not leave them to their thread, which would draw on over all else."""
    try:
        bars.start()
    except BaseException:
        bars.stop()
        raise


def progress_bars(*, of_bytes: bool = False) -> Bars:
    """Bars on stderr: what, a bar, how many of how many, the task's field `note`, the time that is left.

    The narrower the terminal, the less of it: the bar goes first, then the note; the counts stay.
    """
    from rich.progress import DownloadColumn, MofNCompleteColumn, ProgressColumn, Task, TimeRemainingColumn
    from rich.progress import Progress as Bars
    from rich.progress_bar import ProgressBar
    from rich.table import Column
    from rich.text import Text

    out = console(stderr=True)

    def shortened(words: str, width: int) -> Text:
        text = Text(printable(words), no_wrap=True) if width else Text()
        text.truncate(max(1, width), overflow="ellipsis")
        return text

    class What(ProgressColumn):
        def render(self, task: Task) -> Text:
            return shortened(task.description, max(6, out.width // 3))

    class Note(ProgressColumn):
        def render(self, task: Task) -> Text:
            room = out.width // 2 - 10 if out.width >= 50 else 0
            return shortened(task.fields.get("note", ""), room)

    class Bar(ProgressColumn):
        def render(self, task: Task) -> ProgressBar | Text:
            if out.width < (80 if "note" in task.fields else 60):
                return Text()
            width = min(30, out.width // 4)
            return ProgressBar(task.total, task.completed, width, animation_time=task.get_time())

    whole = Column(no_wrap=True)
    counts = (DownloadColumn if of_bytes else MofNCompleteColumn)(table_column=whole)
    return Bars(
        What(),
        Bar(),
        counts,
        Note(),
        TimeRemainingColumn(table_column=whole),
        console=out,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # results must reach a file or a pipe, not the bar's console
    )
