"""docs/paper.md: every equation, algorithm line, table and figure, and nothing that points to nothing."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import onebit
from onebit import projection
from onebit.models import wrn22

ROOT = Path(__file__).parent.parent
MAP = (ROOT / "docs" / "paper.md").read_text()
EXPECTED = [
    *(f"Eq. {n}" for n in range(1, 24)),
    *(f"Alg. line {n}" for n in range(1, 22)),
    *(f"Table {n}" for n in range(1, 6)),
    *(f"Fig. {n}" for n in range(1, 6)),
]


def rows_of(text):
    """The cells of the rows of equations, lines, tables and figures."""
    lines = [line for line in text.splitlines() if re.match(r"\| (Eq\.|Alg\. line|Table|Fig\.) \d+ ", line)]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]


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


def problems(text):
    """What is wrong with a map: rows that are missing, names and tests that are not there."""
    rows = rows_of(text)
    numbers = [row[0] for row in rows]
    found = [] if numbers == EXPECTED else [f"rows are {numbers}"]
    for row in rows:
        found += [f"{row[0]}: {problem}" for problem in problems_of(row)]
    return found


def problems_of(row):
    number, what, functions, test = row if len(row) == 4 else (row[0], "", "", "")
    if not what:
        return ["4 cells are expected, and the second says what it is"]
    if what == "end for":
        return ["stands for nothing"] if functions or test else []
    found = []
    names = re.findall(r"`(onebit[\w.]*)`", functions)
    if not names and number != "Table 1":
        found.append("names no function")
    for name in names:
        try:
            resolve(name)
        except (AttributeError, ImportError):
            found.append(f"there is no {name}")
    references = re.findall(r"`(tests/[^`]+)`", test)
    if not references:
        found.append("names no test")
    return found + [f"there is no {reference}" for reference in references if not has_test(reference)]


def test_the_map_is_whole_and_every_entry_points_to_something():
    assert problems(MAP) == []


def the_row(number):
    (line,) = [line for line in MAP.splitlines() if line.startswith(f"| {number} |")]
    return line


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("`onebit.projection.quantize`", "`onebit.projection.quantise`", "there is no onebit.projection.quantise"),
        ("`onebit.projection.quantize`", "`onebit.no_such_module.quantize`", "there is no onebit.no_such_module"),
        ("`onebit.projection.quantize`", "quantize", "Eq. 9: names no function"),
        ("::test_quantize_is_equation_9", "::test_quantize_is_equation", "there is no tests/test_projection.py::"),
        (
            "`tests/test_projection.py::test_quantize",
            "`tests/test_no.py::test_quantize",
            "there is no tests/test_no",
        ),
        ("`tests/test_projection.py::test_quantize_is_equation_9`", "", "Eq. 9: names no test"),
        ("| end for | | |", "| end for | `onebit.layers` | |", "Alg. line 9: stands for nothing"),
        *((f"{the_row(number)}\n", "", "rows are") for number in EXPECTED),
        (the_row("Eq. 9"), f"{the_row('Eq. 9')}\n{the_row('Eq. 9')}", "rows are"),
        (the_row("Fig. 5"), the_row("Fig. 5").rpartition("| `tests")[0], "4 cells are expected"),
    ],
)
def test_a_map_that_is_wrong_is_found(old, new, problem):
    assert old in MAP
    assert any(problem in found for found in problems(MAP.replace(old, new, 1)))


def test_symbols_stand_for_something():
    """The first name of each cell 'here' is a function of the maths, an argument, or a part of a layer."""
    table = MAP.split("## Symbols")[1].split("## Equations")[0]
    cells = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")][1:]
    names = [match[1] for cell in cells if (match := re.match(r" `(?:ProjectionConv2d\.)?(\w+)", cell))]
    assert len(names) == 12
    layer = onebit.ProjectionConv2d(1, 1, 3)
    arguments = {
        name
        for function in (onebit.ProjectionConv2d, onebit.parameter_groups, projection.residual, wrn22)
        for name in inspect.signature(function).parameters
    }
    missing = [n for n in names if not (hasattr(layer, n) or hasattr(projection, n) or n in arguments)]
    assert missing == []


def test_a_name_that_only_begins_like_a_test_is_none():
    assert not has_test("tests/test_projection.py::test_initial")
    assert not has_test("tests/test_projection.py")
    assert has_test("tests/test_projection.py::test_initial_w")


def numbers_named_in(docstring):
    """The equation numbers of 'Eq. 8, 18 and 22' and 'Eq. 12 to 14'."""
    numbers = set()
    for listed in re.findall(r"Eq\. ((?:\d+(?:, | and | to )?)+)", docstring):
        for part in re.split(r", | and ", listed):
            first, _, last = part.partition(" to ")
            if first:
                numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


@pytest.mark.parametrize(
    "row", [row for row in rows_of(MAP) if "onebit.projection." in row[2]], ids=lambda row: row[0]
)
def test_the_function_names_its_equation(row):
    """The other direction: who reads the function finds the equation's number there."""
    if not row[0].startswith("Eq."):
        return
    for name in re.findall(r"`(onebit\.projection\.\w+)`", row[2]):
        assert int(row[0].split()[1]) in numbers_named_in(resolve(name).__doc__), name
