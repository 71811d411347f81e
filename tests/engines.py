"""What tests of the native engine share."""

import numpy as np
import pytest

from onebit.engine import Engine
from onebit.modelfile import pack_model, unpack_model
from onebit.native import ISAS, native
from onebit.reference import Reference

HERE = [isa for isa in ISAS if native().has_isa(isa)]
each_isa = pytest.mark.parametrize(
    "isa",
    [
        pytest.param(isa, marks=[] if isa in HERE else pytest.mark.skip(reason=f"this machine has no {isa}"))
        for isa in ISAS
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
    found, expected = both(model, x, isa)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * max(1.0, np.abs(expected).max()))
