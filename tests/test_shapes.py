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


@pytest.mark.parametrize(("groups", "outputs"), [(3, 6), (2, 5), (8, 8)])
def test_groups_divide_inputs_and_outputs(groups, outputs):
    weight = np.ones((outputs, max(1, 4 // groups), 3, 3), np.float32)
    with pytest.raises(GraphError, match=f"groups = {groups} does not divide 4 and {outputs} channels"):
        made("conv2d", IMAGE, tensors={"weight": weight}, groups=groups)


def test_projections_stay_within_a_group():
    """4 of the 8 outputs are not in one of 4 groups; 2 are."""
    at = {"out_channels": 8, "kernel_size": [3, 3], "groups": 4}
    tensors = {"kernels": np.zeros(5, np.uint8)}
    assert made("bconv2d", IMAGE, tensors=tensors, projections=2, **at).shape == (8, 5, 7)
    with pytest.raises(GraphError, match="projections = 4 does not divide the 8 channels of its groups"):
        made("bconv2d", IMAGE, tensors={"kernels": np.zeros(3, np.uint8)}, projections=4, **at)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_kernel_has_1024_taps_a_side_at_most(axis):
    image = Value("float", (1, 1100, 1100))
    for taps in (1024, 1025):
        sides = [1, 1]
        sides[axis] = taps
        weight = np.ones((1, 1, *sides), np.float32)
        if taps == 1024:
            assert made("conv2d", image, tensors={"weight": weight}).shape[1 + axis] == 77
            continue
        with pytest.raises(GraphError, match="weight has shape"):
            made("conv2d", image, tensors={"weight": weight})


def test_levels_and_bounds_that_make_no_sense():
    assert made("quantize", IMAGE, per_unit=0.5, low=0, high=1) == Value("levels", IMAGE.shape, 0, 1)
    for per_unit in (0.0, -0.5):
        with pytest.raises(GraphError, match="per_unit must be more than 0"):
            made("quantize", IMAGE, per_unit=per_unit, low=0, high=1)
    assert made("clamp", IMAGE, low=2.0, high=2.0) == IMAGE
    for bound in ({"low": 3.0}, {"high": -3.0}):
        assert made("clamp", IMAGE, **bound) == IMAGE
    with pytest.raises(GraphError, match="low is more than high"):
        made("clamp", IMAGE, low=2.0, high=1.5)


def test_thresholds_are_of_the_kind_that_they_meet():
    sums = Value("sums", IMAGE.shape, -9, 9)
    bits = {"at_most": np.zeros(1, np.uint8)}
    for value, right, wrong in ((IMAGE, np.float32, np.int32), (sums, np.int32, np.float32)):
        assert made("threshold", value, tensors=bits | {"thresholds": np.zeros(4, right)}).kind == "bits"
        with pytest.raises(GraphError, match="thresholds of sums are int32, those of floats float32"):
            made("threshold", value, tensors=bits | {"thresholds": np.zeros(4, wrong)})


@pytest.mark.parametrize("op", ["conv2d", "linear"])
def test_what_belongs_to_a_weight(op):
    """A scale for each row of one of 8 bits, and of no other; a bias for each row."""
    value, shape = (IMAGE, (2, 4, 1, 1)) if op == "conv2d" else (Value("float", (4,)), (2, 4))
    two, one = np.ones(2, np.float32), np.ones(1, np.float32)
    whole, floats = np.ones(shape, np.int8), np.ones(shape, np.float32)
    made(op, value, tensors={"weight": whole, "weight_scale": two, "bias": two})
    made(op, value, tensors={"weight": floats, "bias": two})
    for tensors, words in (
        ({"weight": whole}, "weight_scale must be there if, and only if, the weight is int8"),
        ({"weight": floats, "weight_scale": two}, "weight_scale must be there if, and only if, the weight is int8"),
        ({"weight": whole, "weight_scale": one}, r"weight_scale has shape \[1\] and must have \[2\]"),
        ({"weight": floats, "bias": one}, r"bias has shape \[1\] and must have \[2\]"),
    ):
        with pytest.raises(GraphError, match=words):
            made(op, value, tensors=tensors)


@pytest.mark.parametrize(("op", "role"), [("prelu", "slope"), ("affine", "scale"), ("affine", "shift")])
def test_a_number_for_each_channel_or_one_for_all(op, role):
    others = {"scale": np.ones(1, np.float32)} if op == "affine" else {}
    for count in (1, 4):
        assert made(op, IMAGE, tensors=others | {role: np.ones(count, np.float32)}) == IMAGE
    for count in (2, 3, 5):
        with pytest.raises(GraphError, match=rf"{role} has shape \[{count}\] and must have \[4\]"):
            made(op, IMAGE, tensors=others | {role: np.ones(count, np.float32)})


def test_a_modulation_is_of_projections_and_taps():
    at = {"out_channels": 6, "kernel_size": [2, 3], "projections": 3}
    tensors = {"kernels": np.zeros(6, np.uint8)}
    assert (
        made("bconv2d", IMAGE, tensors=tensors | {"modulation": np.ones((3, 2, 3), np.float32)}, **at).shape[0] == 6
    )
    for shape in ((3, 3, 2), (6, 2, 3), (1, 2, 3), (3, 6)):
        with pytest.raises(GraphError, match=r"modulation has shape .* and must have \[3, 2, 3\]"):
            made("bconv2d", IMAGE, tensors=tensors | {"modulation": np.ones(shape, np.float32)}, **at)
