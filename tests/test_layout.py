"""Data flows one way: a module imports only what stands to its left (CONTRIBUTING.md)."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "onebit"
CHAINS = re.findall(r"^    (version, .* -> .*)$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
RANKS = [
    {name: rank for rank, stage in enumerate(chain.split(" -> ")) for name in stage.split(", ")} for chain in CHAINS
]
FILES = [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or not path.name.startswith("__")]


def imports(path):
    """The modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "onebit":
            yield from (f"onebit.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def part_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_modules_import_only_what_stands_to_their_left():
    assert len(FILES) > 15
    assert len(RANKS) == 2
    for path in FILES:
        part = part_of(path)
        for name in imports(path):
            if name.startswith("onebit."):
                imported = name.split(".")[1]
                left = any(rank.get(imported, 1e9) < rank.get(part, -1) for rank in RANKS)
                assert imported == part or left, f"{path}: imports {imported}"


# Runs a packed net in torch, to compare with; it is imported by its name alone, when it is asked for.
IN_TORCH = PACKAGE / "peers" / "torch_net.py"


def test_the_second_chain_never_imports_torch():
    training, packed = RANKS
    alone = [path for path in FILES if part_of(path) in set(packed) - set(training)]
    assert len(alone) >= 9
    for path in alone:
        needs_torch = "torch" in {name.split(".")[0] for name in imports(path)}
        assert needs_torch == (path == IN_TORCH), path
        assert not [name for name in imports(path) if name.endswith("torch_net")], path


def test_files_stay_short():
    for path in [*PACKAGE.rglob("*.py")]:
        assert len(path.read_text().splitlines()) <= 400, f"{path} wants splitting"
