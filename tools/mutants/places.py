"""Where a symbol's source stands, wherever in the tree its file is: in Python by its tree, in C by its braces."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .bugs import Bug, BugError

PYTHON, NATIVE = Path("src", "onebit"), Path("native")
NOT_SHIPPED = {"tests", "benchmarks"}  # folders of native/


class Place(NamedTuple):
    """A part of a file, from character `start` to before `end`; the path is relative to the tree."""

    path: Path
    start: int
    end: int


class Changed(NamedTuple):
    """A file as the bug would have it."""

    path: Path
    content: str


class Tree:
    """The sources of a tree, read once, and every symbol in them."""

    def __init__(self, root: Path) -> None:
        self.sources: dict[Path, str] = {}
        self.symbols: dict[str, list[Place]] = defaultdict(list)
        native = (root / NATIVE).rglob("*.[ch]")
        shipped = [path for path in sorted(native) if not NOT_SHIPPED & {*path.relative_to(root).parts}]
        for path in [*sorted((root / PYTHON).rglob("*.py")), *shipped]:
            source = path.read_text()
            relative = path.relative_to(root)
            self.sources[relative] = source
            found = python_symbols(source) if path.suffix == ".py" else c_symbols(source)
            for name, start, end in found:
                self.symbols[name].append(Place(relative, start, end))

    def change(self, bug: Bug) -> Changed:
        """The one file that the bug changes."""
        places = self.symbols.get(bug.symbol, [])
        if not places:
            raise BugError(f"{bug.name}: no longer applies: there is no {bug.symbol}")
        hits = [(place.path, at) for place in places for at in self._found(bug.old, place)]
        if len(hits) != 1:
            raise BugError(
                f"{bug.name}: no longer applies: {bug.symbol} has its old text {len(hits)} times, not once"
            )
        path, at = hits[0]
        source = self.sources[path]
        content = source[:at] + bug.new + source[at + len(bug.old) :]
        if path.suffix == ".py":
            try:
                compile(content, str(path), "exec")
            except SyntaxError as error:
                raise BugError(f"{bug.name}: its new text is no Python: {error}") from None
        return Changed(path, content)

    def _found(self, text: str, place: Place) -> Iterator[int]:
        source = self.sources[place.path]
        at = source.find(text, place.start, place.end)
        while at >= 0:
            yield at
            at = source.find(text, at + 1, place.end)


def python_symbols(source: str) -> Iterator[tuple[str, int, int]]:
    """Functions, classes and named values, those in classes as Class.name, with where they begin and end."""
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:  # ast counts bytes within a line
        starts.append(starts[-1] + len(line.decode()))

    def at(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1][:column].decode())

    def walk(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, int, int]]:
        for node in body:
            span = at(node.lineno, node.col_offset), at(node.end_lineno or 0, node.end_col_offset or 0)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield prefix + node.name, *span
                if isinstance(node, ast.ClassDef):
                    yield from walk(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for name in (each for target in targets for each in ast.walk(target)):
                    if isinstance(name, ast.Name):
                        yield prefix + name.id, *span

    yield from walk(ast.parse(source).body, "")


_NO_CODE = re.compile(
    r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|^[ \t]*\#(?:\\\n|[^\n])*""",
    re.DOTALL | re.MULTILINE,
)
_NAMED = re.compile(r"([A-Za-z_]\w*)\s*(?:\[[^{};]*\]\s*)?(?:=\s*|\((?:[^(){};]|\([^(){};]*\))*\)\s*)$")
_CONSTANT = re.compile(r"([A-Za-z_]\w*)\s*(?:=[^,}]*)?(?:,|(?=\s*$))")


def c_symbols(source: str) -> Iterator[tuple[str, int, int]]:
    """Functions, tables with initial values and the constants of enums, with where they begin and end."""
    code = _NO_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), source)
    depth = begin = 0  # where the definition at hand begins
    opened = 0
    for brace in re.finditer(r"[{};]", code):
        at = brace.start()
        if brace[0] == "{":
            if depth == 0:
                opened = at
            depth += 1
        elif brace[0] == "}":
            depth -= 1
            if depth == 0:
                head = code[begin:opened]
                if re.search(r"\benum\b", head):
                    for found in _CONSTANT.finditer(code, opened + 1, at):
                        yield found[1], found.start(), found.end()
                elif named := _NAMED.search(head):
                    yield named[1], begin, at + 1
                begin = at + 1
        elif depth == 0:
            begin = at + 1
