"""What tests of the native engine share."""

import importlib.util
import os
import platform
import sys

import numpy as np
import pytest

# Another build of the engine in place of the installed one: `make test-sanitized`.
if library := os.environ.get("ONEBIT_TEST_NATIVE"):
    spec = importlib.util.spec_from_file_location("onebit._native", library)
    sys.modules["onebit._native"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["onebit._native"])
    import onebit

    onebit._native = sys.modules["onebit._native"]

from onebit.engine import Engine
from onebit.modelfile import pack_model, unpack_model
from onebit.native import ISAS, native
from onebit.reference import Reference

HERE = [isa for isa in ISAS if native().has_isa(isa)]
OF_OTHERS = ("avx512", "avx2") if platform.machine() in {"aarch64", "arm64"} else ("neon",)  # see test_agreement.py
each_isa = pytest.mark.parametrize(
    "isa",
    [
        pytest.param(isa, marks=[] if isa in HERE else pytest.mark.skip(reason=f"this machine has no {isa}"))
        for isa in ISAS
        if isa not in OF_OTHERS
    ],
)


def both(model, x, isa):
    """What the engine and the reference make of a batch; the model goes through a file first."""
    model = unpack_model(pack_model(model))
    with np.errstate(all="ignore"):
        return Engine(model, isa)(x), Reference(model)(x)


def assert_same(model, x, isa):
    found, expected = both(model, x, isa)
    np.testing.assert_array_equal(found, expected)


def assert_close(model, x, isa, tolerance=1e-5):
    """To rounding: of the largest number on the way, since a clamp behind it makes outputs small, not errors."""
    found, expected = both(model, x, isa)
    with np.errstate(all="ignore"):
        largest = max(np.nanmax(np.abs(made), initial=1.0) for _, made in Reference(model).values(x))
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * largest)
