"""The bugs as they are written down: a table of `bugs/*.toml` for each, a file for each area. Such as

tests = ["tests/test_projection.py"]    # of all in the file that name none of their own

[name-of-the-bug]
symbol = "sgn"          # a function, Class.method or constant; for C a function, table or enum constant
old = "add_(0.5)"       # once in the symbol's source
new = "add_(-0.5)"
tests = ["tests/test_projection.py::test_sgn_of_zero"]    # files, or functions in them; optional
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent / "bugs"
KEYS = {"symbol", "old", "new", "tests"}


class BugError(ValueError):
    """An entry that can't be used, or no longer applies."""


class Bug(NamedTuple):
    """A change of a symbol's source that a test should see."""

    name: str
    area: str
    symbol: str
    old: str
    new: str
    tests: tuple[str, ...]


def read_bugs(folder: Path = FOLDER) -> list[Bug]:
    """All of a folder, by area."""
    bugs = [bug for path in sorted(folder.glob("*.toml")) for bug in _read(path)]
    names = [bug.name for bug in bugs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise BugError(f"names that stand for two bugs: {', '.join(sorted(twice))}")
    if not bugs:
        raise BugError(f"{folder}: there are no bugs in it, as files NAME.toml")
    return bugs


def _read(path: Path) -> list[Bug]:
    try:
        content: dict[str, Any] = tomllib.loads(path.read_text())
    except ValueError as error:  # of bytes that are no text, too
        raise BugError(f"{path}: {error}") from None
    tests = content.pop("tests", [])
    return [_bug(name, path.stem, entry, tests) for name, entry in content.items()]


def _bug(name: str, area: str, entry: Any, tests: list[str]) -> Bug:
    entry = {"tests": tests} | entry if isinstance(entry, dict) else {}
    if entry.keys() != KEYS or not entry["tests"]:
        raise BugError(f"{name}: an entry has {', '.join(sorted(KEYS))} (the tests may be those of the file)")
    if entry["old"] == entry["new"]:
        raise BugError(f"{name}: changes nothing")
    return Bug(name, area, entry["symbol"], entry["old"], entry["new"], tuple(entry["tests"]))
