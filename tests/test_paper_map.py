"""docs/paper.md: every equation, algorithm line, table and figure, and nothing that points to nothing."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAP = (ROOT / "docs" / "paper.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in MAP.splitlines()
    if re.match(r"\| (Eq\.|Alg\. line|Table|Fig\.) \d+ ", line)
]


def resolve(dotted):
    """The object that a dotted name stands for; AttributeError or ImportError if there is none."""
    parts = dotted.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for name in parts[split:]:
            found = getattr(found, name)
        return found
    raise ModuleNotFoundError(dotted)


def has_test(reference):
    path, _, name = reference.partition("::")
    file = ROOT / path
    return file.is_file() and re.search(rf"^def {re.escape(name)}\(", file.read_text(), re.MULTILINE) is not None


def test_every_equation_line_table_and_figure_has_a_row():
    expected = [
        *(f"Eq. {n}" for n in range(1, 24)),
        *(f"Alg. line {n}" for n in range(1, 22)),
        *(f"Table {n}" for n in range(1, 6)),
        *(f"Fig. {n}" for n in range(1, 6)),
    ]
    assert [row[0] for row in ROWS] == expected


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_entry_points_to_something(row):
    number, what, functions, test = row
    assert what
    if what == "end for":
        assert not functions
        assert not test
        return
    names = re.findall(r"`(onebit[\w.]*)`", functions)
    assert names or number == "Table 1"
    for name in names:
        resolve(name)
    references = re.findall(r"`(tests/[^`]+)`", test)
    assert references
    for reference in references:
        assert has_test(reference), f"{number}: there is no {reference}"


def test_the_check_itself_can_fail():
    with pytest.raises(AttributeError):
        resolve("onebit.projection.no_such_function")
    assert not has_test("tests/test_projection.py::test_no_such")
    assert not has_test("tests/no_such_file.py::test_initial_w")


def numbers_named_in(docstring):
    """The equation numbers of 'Eq. 8, 18 and 22' and 'Eq. 12 to 14'."""
    numbers = set()
    for listed in re.findall(r"Eq\. ((?:\d+(?:, | and | to )?)+)", docstring):
        for part in re.split(r", | and ", listed):
            first, _, last = part.partition(" to ")
            if first:
                numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


@pytest.mark.parametrize("row", [row for row in ROWS if "onebit.projection." in row[2]], ids=lambda row: row[0])
def test_the_function_names_its_equation(row):
    """The other direction: who reads the function finds the equation's number there."""
    if not row[0].startswith("Eq."):
        return
    for name in re.findall(r"`(onebit\.projection\.\w+)`", row[2]):
        assert int(row[0].split()[1]) in numbers_named_in(resolve(name).__doc__), name
