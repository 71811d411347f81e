"""Weights in 8 bits: by hand, odd rows among them; and what is known about values on their way to 8 bits."""

import numpy as np
import pytest
import torch

from onebit.errors import ExportError
from onebit.exporting.calibration import _carried
from onebit.exporting.layers import whole_numbers
from onebit.exporting.lowering import Statistics
from onebit.exporting.rounding import round_weights
from onebit.graph import Graph, Node


def rounded(weight, bits):
    node = Node("fc", "linear", ("input",), {}, {"weight": np.array(weight, np.float32)})
    round_weights(Graph((1, 1, 1), [node]), bits)
    return node.tensors


def test_the_largest_weight_of_a_row_is_127():
    made = rounded([[0.5, -0.25, 0.0], [0.0, 0.0, 0.0], [-2.54, 1.28, 0.01]], 8)
    assert made["weight"].dtype == np.int8
    # 0.25 / 0.5 * 127 is 63.5: a half, to the even one.
    assert made["weight"].tolist() == [[127, -64, 0], [0, 0, 0], [-127, 64, 0]]
    np.testing.assert_allclose(made["weight_scale"], [0.5 / 127, 1, 0.02], rtol=1e-6)


def test_16_bits():
    made = rounded([[0.1, 65504.0]], 16)
    assert made["weight"].tolist() == np.array([[0.1, 65504.0]], np.float16).tolist()
    assert set(made) == {"weight"}
    for large in (70000.0, -70000.0):
        with pytest.raises(ExportError, match="'fc': its weights are too large for 16 bits"):
            rounded([[0.1, large]], 16)
    assert rounded([[70000.0]], 32)["weight"].dtype == np.float32


def test_whole_numbers_have_a_scale_for_each_row():
    """Rows of few levels, each of its own size, and one of zeros."""
    steps = torch.tensor([[1, 0, -1, 1], [3, -2, 1, 0], [0, 0, 0, 0]])
    made = whole_numbers((steps * torch.tensor([[0.5], [0.01], [7.0]])).reshape(3, 4, 1, 1))
    assert made["weight"].dtype == np.int8
    assert made["weight"].shape == (3, 4, 1, 1)
    ratio = made["weight"].reshape(3, 4) * made["weight_scale"][:, None]
    np.testing.assert_allclose(ratio, steps.numpy() * np.array([[0.5], [0.01], [7.0]]), rtol=1e-6)


def test_numbers_without_a_common_step_stay_in_float():
    weight = torch.tensor([[1.0, 0.123456, 0.777]]).reshape(1, 3, 1, 1)
    made = whole_numbers(weight)
    assert set(made) == {"weight"}
    assert made["weight"].tolist() == weight.tolist()


def test_the_range_of_a_sum_and_of_what_follows():
    """Means add up, deviations as those of independent values do; a steep slope widens both."""
    known = {
        "a": Statistics(np.array([1.0, -2.0]), np.array([3.0, 0.0])),
        "b": Statistics(np.array([0.5, -1.0]), np.array([4.0, 2.0])),
    }

    def of(op, *inputs, attributes=None, **tensors):
        return _carried(Node("n", op, inputs, attributes or {}, tensors), known)

    total = of("add", "a", "b")
    assert (total.mean.tolist(), total.deviation.tolist()) == ([1.5, -3.0], [5.0, 2.0])
    joined = of("concatenate", "a", "b")
    assert (joined.mean.tolist(), joined.deviation.tolist()) == ([1.0, -2.0, 0.5, -1.0], [3.0, 0.0, 4.0, 2.0])
    part = of("slice", "a", attributes={"start": 1, "stop": 2})
    assert (part.mean.tolist(), part.deviation.tolist()) == ([-2.0], [0.0])
    steep = of("prelu", "a", slope=np.array([-2.0, 0.5], np.float32))
    assert (steep.mean.tolist(), steep.deviation.tolist()) == ([2.0, -2.0], [6.0, 0.0])
    assert of("add", "a", "unknown") is None
    assert of("tanh", "a") is None
