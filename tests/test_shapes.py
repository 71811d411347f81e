"""What a node makes of what it reads: sizes by hand, and what does not fit."""

import numpy as np
import pytest

from onebit.graph import GraphError, Node, Value
from onebit.operations import check_node, default_attributes

IMAGE = Value("float", (4, 7, 9))


def made(op, *inputs, tensors=None, **attributes):
    node = Node("n", op, ("x",) * len(inputs), default_attributes(op) | attributes, tensors or {})
    return check_node(node, inputs)


def conv(height, width, **attributes):
    weight = np.ones((2, 4, height, width), np.float32)
    return made("conv2d", IMAGE, tensors={"weight": weight}, **attributes).shape


def test_windows_of_a_convolution():
    """Room for the last tap, not for the space behind it."""
    assert conv(3, 3) == (2, 5, 7)
    assert conv(3, 3, dilation=[3, 4]) == (2, 1, 1)  # reaches 7 and 9
    assert conv(1, 1, dilation=[9, 9]) == (2, 7, 9)
    assert conv(2, 4, stride=[3, 2], padding=[1, 0, 0, 2]) == (2, 3, 4)
    for more in ({"dilation": [4, 1]}, {"dilation": [1, 5]}):
        with pytest.raises(GraphError, match="is larger than its padded input"):
            conv(3, 3, **more)


@pytest.mark.parametrize(
    ("value", "most"),
    [(("bits", 0, 0), 24), (("levels", -100, 50), 2400), (("levels", -50, 100), 2400), (("levels", 0, 255), 6120)],
    ids=str,
)
def test_bounds_of_sums_of_1_bit_kernels(value, most):
    """Taps of a kernel, times the largest size that a level can have, negative or not; J counts for nothing."""
    kind, low, high = value
    tensors = {"kernels": np.zeros(6, np.uint8), "masks": np.zeros(5, np.uint8)}
    at = {"out_channels": 6, "kernel_size": [3, 4], "projections": 3, "groups": 2, "padding": [1, 1, 1, 1]}
    found = made("bconv2d", Value(kind, (4, 7, 9), low, high), tensors=tensors, **at)
    assert found == Value("sums", (6, 7, 8), -most, most)


@pytest.mark.parametrize("kind", ["float", "levels", "bits"])
def test_pads(kind):
    at = {"padding": [1, 2, 3, 0]}
    image = Value(kind, (4, 7, 9), 0, 3 if kind == "levels" else 0)
    for mode in ("reflect", "replicate", "circular"):
        assert made("pad", image, mode=mode, **at) == image._replace(shape=(4, 10, 12))
    if kind != "bits":
        assert made("pad", image, mode="zeros", **at).shape == (4, 10, 12)
        return
    with pytest.raises(GraphError, match="a bit can't be 0"):
        made("pad", image, mode="zeros", **at)


def test_pads_with_more_than_there_is():
    """A reflection leaves the edge out, a circle takes all."""
    assert made("pad", IMAGE, mode="reflect", padding=[6, 0, 0, 8]).shape == (4, 13, 17)
    assert made("pad", IMAGE, mode="circular", padding=[0, 7, 9, 0]).shape == (4, 14, 18)
    for mode, padding in (("reflect", [7, 0, 0, 0]), ("reflect", [0, 0, 0, 9]), ("circular", [0, 8, 0, 0])):
        with pytest.raises(GraphError, match=f"mode {mode} pads with more than there is"):
            made("pad", IMAGE, mode=mode, padding=padding)


@pytest.mark.parametrize(("start", "stop", "fits"), [(0, 4, True), (3, 4, True), (2, 2, False), (3, 5, False)])
def test_slices(start, stop, fits):
    if fits:
        assert made("slice", IMAGE, start=start, stop=stop).shape == (stop - start, 7, 9)
        return
    with pytest.raises(GraphError, match=f"takes channels {start} to {stop} of 4"):
        made("slice", IMAGE, start=start, stop=stop)


def test_sides_of_1_are_repeated():
    assert made("add", IMAGE, Value("float", (4, 1, 1))).shape == (4, 7, 9)
    assert made("multiply", Value("float", (1, 7, 1)), Value("float", (4, 1, 9))).shape == (4, 7, 9)
    for shape in ((4, 7, 8), (4,), (2, 7, 9)):
        with pytest.raises(GraphError, match="its inputs have shapes"):
            made("add", IMAGE, Value("float", shape))


def test_only_channels_may_differ():
    bits, features = Value("bits", (3, 4, 5)), Value("float", (3,))
    assert made("concatenate", bits, Value("bits", (64, 4, 5))) == Value("bits", (67, 4, 5))
    assert made("concatenate", features, features, features) == Value("float", (9,))
    floats = Value("float", (3, 4, 5))
    for other in (bits, Value("float", (3, 5, 4)), features):
        for pair in ((floats, other), (other, floats)):
            with pytest.raises(GraphError, match="differ in more than their channels"):
                made("concatenate", *pair)
