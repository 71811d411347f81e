"""What is made: tables of cells for people, numbers for programs, pictures; and their files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from onebit.paths import write_whole


class Sheet(NamedTuple):
    """A table of cells; the first `words` columns are of words, the others of figures."""

    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    words: int = 1


class Made(NamedTuple):
    """A table or a figure.

    number    in the paper, such as 'Table 2'; '': not in the paper
    sentence  the budget, the data: what all numbers share
    numbers   all of it for a program
    pictures  by ending
    """

    name: str
    number: str
    title: str
    sentence: str
    sheets: list[Sheet]
    remarks: list[str]
    numbers: dict[str, Any]
    pictures: dict[str, bytes] = {}  # noqa: RUF012 never changed

    @property
    def heading(self) -> str:
        """What it is, and where in the paper."""
        return f"{self.title} ({self.number} of the paper)" if self.number else f"{self.title} (not in the paper)"

    def as_json(self) -> dict[str, Any]:
        """For a program."""
        about = {"name": self.name, "paper": self.number, "title": self.title, "sentence": self.sentence}
        return about | self.numbers | {"remarks": self.remarks}


def markdown(made: Made) -> str:
    """For a document."""
    lines = [f"# {made.heading}", "", made.sentence, ""]
    for sheet in made.sheets:
        lines += [*as_table(sheet), ""]
    return "\n".join([*lines, *(f"- {remark}" for remark in made.remarks)]) + "\n"


def as_table(sheet: Sheet) -> list[str]:
    """Lines of Markdown."""
    figures = len(sheet.heads) - sheet.words
    lines = [f"| {' | '.join(sheet.heads)} |", f"|{'---|' * sheet.words}{'---:|' * figures}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in sheet.rows)]


def write(folder: Path, made: Made) -> list[Path]:
    """A table as Markdown, a figure as pictures; both with their numbers as JSON."""
    files = {"json": (json.dumps(made.as_json(), indent=1) + "\n").encode(), **made.pictures}
    if made.name.startswith("table"):
        files["md"] = markdown(made).encode()
    folder.mkdir(parents=True, exist_ok=True)
    paths = {folder / f"{made.name}.{ending}": content for ending, content in sorted(files.items())}
    for ending in ("png", "svg"):
        if ending not in files:  # nothing is finished any more: an older picture would contradict the numbers
            (folder / f"{made.name}.{ending}").unlink(missing_ok=True)
    for path, content in paths.items():
        write_whole(path, content)
    return list(paths)
