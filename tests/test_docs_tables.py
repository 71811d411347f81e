"""The tables in the documents are those of the code."""

import json
import re
import runpy
from pathlib import Path

import pytest

from onebit.methods import METHODS

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("file", ["comparing.md", "export.md", "format.md"])
def test_tables_are_of_today(file):
    made = runpy.run_path(str(DOCS / "tables.py"))["with_tables"](file)
    assert made == (DOCS / file).read_text(), "run: python docs/tables.py"


def test_what_becomes_of_each_method_is_told():
    table = (DOCS / "export.md").read_text().split("## The methods")[1].split("##")[0]
    for method in METHODS:
        assert f"`{method}`" in table


def test_results_are_those_of_the_records():
    """The page, and its plots: no figure of it that a record does not have."""
    page = runpy.run_path(str(DOCS / "results.py"))
    assert page["with_tables"]() == (DOCS / "results.md").read_text(), "run: python docs/results.py"
    for name, draw in (("accuracy-bytes.svg", "accuracy_against_bytes"), ("curves.svg", "curves")):
        kept, drawn = (DOCS / "images" / name).read_text(), page[draw]().decode()
        # As many curves and words; another version of Matplotlib may lay the page out otherwise.
        assert drawn.count("<path") == kept.count("<path"), "run: python docs/results.py"


def test_tables_and_figures_in_results_are_those_of_the_records():
    """A figure that was drawn before its last run was finished would say so for ever."""
    page = runpy.run_path(str(DOCS / "results.py"))
    names = page["from_records"]()
    assert {"table-lambda", "figure-lambda", "figure-epoch", "figure-losscurve"} <= set(names)
    for name in names:
        made = page["made"](name)
        kept = json.loads((page["RESULTS"] / f"{name}.json").read_text())
        assert kept == json.loads(json.dumps(made.as_json())), f"{name}: run: python docs/results.py"
        for ending, content in made.pictures.items():
            assert (page["RESULTS"] / f"{name}.{ending}").is_file()
            if ending == "svg":
                drawn = (page["RESULTS"] / f"{name}.svg").read_text()
                assert drawn.count("<path") == content.decode().count("<path"), (
                    f"{name}: run: python docs/results.py"
                )


def test_pictures_of_the_results_are_there():
    text = (DOCS / "results.md").read_text()
    for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
        assert (DOCS / name).is_file(), name
