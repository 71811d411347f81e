"""The tables in the documents are those of the code."""

import runpy
from pathlib import Path

import pytest

from onebit.methods import METHODS

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("file", ["export.md", "format.md"])
def test_tables_are_of_today(file):
    made = runpy.run_path(str(DOCS / "tables.py"))["with_tables"](file)
    assert made == (DOCS / file).read_text(), "run: python docs/tables.py"


def test_what_becomes_of_each_method_is_told():
    table = (DOCS / "export.md").read_text().split("## The methods")[1].split("##")[0]
    for method in METHODS:
        assert f"`{method}`" in table
