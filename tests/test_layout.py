"""Data flows one way: a module imports only what stands to its left (CONTRIBUTING.md)."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "onebit"
CHAIN = re.search(r"^    (version, .* -> .*)$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)[1]
RANK = {name: rank for rank, stage in enumerate(CHAIN.split(" -> ")) for name in stage.split(", ")}


def imports(path):
    """The parts of onebit that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "onebit":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("onebit."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("onebit."))


def test_modules_import_only_what_stands_to_their_left():
    files = [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or not path.name.startswith("__")]
    assert len(files) > 15
    for path in files:
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for imported in imports(path):
            assert imported == part or RANK[imported] < RANK[part], f"{path}: imports {imported}"


def test_files_stay_short():
    for path in [*PACKAGE.rglob("*.py")]:
        assert len(path.read_text().splitlines()) <= 400, f"{path} wants splitting"
