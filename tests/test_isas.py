"""Which kernels run, why, and whether those are right and no others."""

import pytest

from engines import HERE
from onebit import selfcheck
from onebit.native import chosen_isa, why_isa
from onebit.reference import Reference


@pytest.mark.parametrize(
    ("variable", "isa", "chosen", "why"),
    [
        (None, "auto", HERE[0], "the fastest that this machine can run"),
        ("", "auto", HERE[0], "the fastest that this machine can run"),
        ("auto", "auto", HERE[0], "the fastest that this machine can run"),
        ("scalar", "auto", "scalar", "$ONEBIT_ISA"),
        (None, "scalar", "scalar", "as asked"),
        ("auto", "scalar", "scalar", "as asked"),
        ("scalar", HERE[0], HERE[0], "as asked"),
    ],
)
def test_which_and_why(variable, isa, chosen, why, monkeypatch):
    monkeypatch.delenv("ONEBIT_ISA", raising=False)
    if variable is not None:
        monkeypatch.setenv("ONEBIT_ISA", variable)
    assert (chosen_isa(isa), why_isa(isa)) == (chosen, why)


def test_one_that_is_wrong_is_found_by_its_name(monkeypatch):
    """Of the kernels that are asked about; the others are as right as before."""

    def engine(model, isa="auto"):
        right = Reference(model)
        return (lambda images: right(images) + 1e-6) if isa == "scalar" else right

    assert all(selfcheck.is_right(isa) for isa in HERE)
    monkeypatch.setattr(selfcheck, "Engine", engine)
    assert not selfcheck.is_right("scalar")
    assert selfcheck.is_right("avx2")
