"""The interpreter against loops over single numbers and against PyTorch, operation by operation."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import onebit
from onebit.engine import Engine
from onebit.graph import Node
from onebit.modelfile import write_model
from onebit.operations import OPERATIONS
from onebit.packing import pack_kernels, pack_signs
from onebit.reference import OPERATIONS as FUNCTIONS
from onebit.reference import Reference, bconv2d
from onebit.shapes import pooled_sides
from packed_nets import small_model
from wire_models import Chain


def run(op, *inputs, tensors=None, **attributes):
    rules = OPERATIONS[op].attributes
    defaults = {key: rule.default for key, rule in rules.items()}
    return FUNCTIONS[op](Node("node", op, (), defaults | attributes, tensors or {}), *inputs)


def test_it_knows_every_operation():
    assert set(FUNCTIONS) == set(OPERATIONS)


def sum_by_hand(x, signs, masks, at, image, row, height, width):
    """One number of a 1-bit convolution, tap by tap; taps outside of the image add nothing."""
    J, groups = len(masks), at["groups"]
    outputs, planes = len(signs) * J, signs.shape[1]
    kernel, projection, group = row // J, row % J, row // (outputs // groups)
    total = 0
    for plane, tap_y, tap_x in itertools.product(range(planes), range(signs.shape[2]), range(signs.shape[3])):
        y = height * at["stride"][0] + tap_y * at["dilation"][0] - at["padding"][0]
        z = width * at["stride"][1] + tap_x * at["dilation"][1] - at["padding"][2]
        if 0 <= y < x.shape[2] and 0 <= z < x.shape[3]:
            weight = int(signs[kernel, plane, tap_y, tap_x]) * int(masks[projection, tap_y, tap_x])
            total += int(x[image, group * planes + plane, y, z]) * weight
    return total


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_sums_are_exact(data):
    draw = data.draw
    groups, J = draw(st.sampled_from([1, 1, 2, 3])), draw(st.sampled_from([1, 2, 4]))
    planes, kernels = draw(st.sampled_from([1, 2, 5])), groups * draw(st.integers(1, 2))
    taps = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    pair = st.lists(st.integers(1, 3), min_size=2, max_size=2)
    at = {
        "groups": groups, "projections": J, "out_channels": kernels * J, "kernel_size": list(taps),
        "stride": draw(pair), "dilation": draw(pair),
        "padding": draw(st.lists(st.integers(0, 3), min_size=4, max_size=4)),
    }  # fmt: skip
    reach = [d * (k - 1) + 1 for d, k in zip(at["dilation"], taps, strict=True)]
    least = [max(1, far - sum(at["padding"][2 * axis : 2 * axis + 2])) for axis, far in enumerate(reach)]
    sizes = [draw(st.integers(side, side + 4)) for side in least]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    signs, masks = rng.choice([-1, 1], (kernels, planes, *taps)), rng.choice([-1, 1], (J, *taps))
    is_bits = draw(st.booleans())
    shape = (2, groups * planes, *sizes)
    x = rng.choice([-1, 1], shape) if is_bits else rng.integers(-127, 256, shape)
    tensors = {"kernels": pack_kernels(signs), "masks": pack_signs(masks)}
    found = bconv2d(Node("n", "bconv2d", (), at, tensors), x.astype(np.int8 if is_bits else np.int32))
    assert found.dtype == np.int32
    for place in itertools.product(*map(range, found.shape)):
        assert found[place] == sum_by_hand(x, signs, masks, at, *place)
    floats = bconv2d(Node("n", "bconv2d", (), at, tensors), x.astype(np.float32))
    assert floats.dtype == np.float32
    assert np.array_equal(floats, found)


def test_sums_at_the_limit_of_32_bits_are_exact():
    """Levels of 255 and so many planes that the largest sum is just below 2**31; all of one sign, and odd."""
    planes, taps = 9000, (30, 31)
    x = np.full((1, planes, *taps), 255, np.int32)
    x[0, 0, 0, 0] = 254
    kernels = pack_kernels(np.ones((1, planes, *taps), np.int8))
    at = {"kernel_size": list(taps), "out_channels": 1, "projections": 1, "groups": 1}
    at |= {"stride": [1, 1], "padding": [0, 0, 0, 0], "dilation": [1, 1]}
    found = bconv2d(Node("n", "bconv2d", (), at, {"kernels": kernels}), x)
    assert found.item() == 255 * planes * 30 * 31 - 1 == 2134349999


def images(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def same(found, expected):
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)


ELEMENTWISE = {
    "relu": F.relu, "sigmoid": torch.sigmoid, "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish,
    "silu": F.silu, "tanh": torch.tanh, "elu": F.elu, "abs": torch.abs, "softmax": lambda x: F.softmax(x, 1),
}  # fmt: skip


@pytest.mark.parametrize("op", ELEMENTWISE)
def test_elementwise(op):
    with np.errstate(all="raise", under="ignore"):
        for x in (10 * images(2, 3, 4, 5), 300 * images(2, 7)):
            same(run(op, x), ELEMENTWISE[op](torch.from_numpy(x)))


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize(
    ("size", "kernel", "stride"), [((7, 5), (3, 2), (2, 2)), ((4, 9), (2, 3), (3, 1)), ((3, 3), (3, 3), (1, 2))]
)
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_pools(size, kernel, stride, padding, ceil_mode):
    x = images(2, 3, *size)
    wide = torch.from_numpy(x)
    at = {"kernel_size": list(kernel), "stride": list(stride), "padding": [padding] * 2, "ceil_mode": ceil_mode}
    for dilation in ([1, 1], [1, 2] if size[1] > kernel[1] * 2 else [1, 1]):
        expected = F.max_pool2d(wide, kernel, stride, padding, dilation, ceil_mode)
        same(run("max_pool2d", x, dilation=dilation, **at), expected)
    for include in (True, False):
        expected = F.avg_pool2d(wide, kernel, stride, padding, ceil_mode, include)
        same(run("avg_pool2d", x, count_include_pad=include, **at), expected)
    same(run("adaptive_avg_pool2d", x, output_size=[2, 4]), F.adaptive_avg_pool2d(wide, (2, 4)))


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_padding(mode):
    x = images(2, 3, 4, 5)
    expected = F.pad(torch.from_numpy(x), (1, 2, 3, 0), mode={"zeros": "constant"}.get(mode, mode))
    same(run("pad", x, padding=[3, 0, 1, 2], mode=mode), expected)


def test_large_convolutions_go_in_parts(monkeypatch):
    x, weight = images(2, 4, 9, 7), images(6, 2, 3, 3)
    at = {"stride": [1, 1], "padding": [1, 1, 1, 1], "dilation": [1, 1], "groups": 2}
    whole = run("conv2d", x, tensors={"weight": weight}, **at)
    monkeypatch.setattr("onebit.reference.MAX_WINDOWS", 2 * 2 * 7 * 9 * 4)
    same(run("conv2d", x, tensors={"weight": weight}, **at), torch.from_numpy(whole))
    monkeypatch.setattr("onebit.reference.MAX_WINDOWS", 1)
    same(run("conv2d", x, tensors={"weight": weight}, **at), torch.from_numpy(whole))


def test_a_window_that_misses_the_image_is_refused():
    at = {"kernel_size": [2, 2], "stride": [1, 1], "padding": [1, 1], "ceil_mode": False, "dilation": [2, 2]}
    with pytest.raises(ValueError, match="no tap within the image"):
        pooled_sides(at, (1, 1))
    assert pooled_sides(at | {"dilation": [1, 1]}, (1, 1)) == (2, 2)
    for size in range(2, 9):
        for kernel, dilation, stride in itertools.product((1, 2, 3), (1, 2, 3), (1, 2)):
            at = {
                "kernel_size": [kernel] * 2,
                "stride": [stride] * 2,
                "padding": [kernel // 2] * 2,
                "ceil_mode": True,
            }
            try:
                sides = pooled_sides(at | {"dilation": [dilation] * 2}, (size, size))
            except ValueError:
                continue
            x = images(1, 1, size, size)
            expected = F.max_pool2d(torch.from_numpy(x), kernel, stride, kernel // 2, dilation, ceil_mode=True)
            assert sides == tuple(expected.shape[2:])
            same(run("max_pool2d", x, dilation=[dilation] * 2, **at), expected)


def test_weights_of_8_and_16_bits():
    x, bias = images(2, 4, 5, 5), images(6)
    weight = np.random.default_rng(0).integers(-127, 128, (6, 2, 3, 3)).astype(np.int8)
    scale = np.abs(images(6))
    at = {"stride": [2, 1], "padding": [1, 0, 2, 1], "dilation": [1, 2], "groups": 2}
    found = run("conv2d", x, tensors={"weight": weight, "weight_scale": scale, "bias": bias}, **at)
    wide = torch.from_numpy(weight * scale[:, None, None, None])
    padded = F.pad(torch.from_numpy(x), (2, 1, 1, 0))
    expected = F.conv2d(padded, wide, torch.from_numpy(bias), (2, 1), 0, (1, 2), 2)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-3)
    half = images(3, 4).astype(np.float16)
    same(
        run("linear", images(2, 4), tensors={"weight": half}),
        torch.from_numpy(images(2, 4)) @ torch.from_numpy(half).float().T,
    )


def test_signs_thresholds_and_levels():
    nan, inf = np.float32("nan"), np.float32("inf")
    x = np.array([[-1, -0.0, 0, 1e-30, nan, inf, -inf]], np.float32)
    assert run("sign", x).tolist() == [[-1, 1, 1, 1, -1, 1, -1]]
    t = np.array([0.5, 0.5, -inf, inf, 0, 2, 2], np.float32)
    at_most = np.array([0, 1, 0, 0, 0, 1, 0])
    x = np.array([[0.5, 0.5, -9, 9, nan, 3, 3], [0.4, 0.6, 1, 1, 0, 2, 1]], np.float32)
    found = run("threshold", x, tensors={"thresholds": t, "at_most": pack_signs(at_most)})
    assert found.tolist() == [[1, 1, 1, -1, -1, -1, 1], [-1, -1, 1, -1, 1, 1, -1]]
    x = np.array([[0.5, 1.5, 2.5, -1, 1e9, nan, -inf, 0.49]], np.float32)
    assert run("quantize", x, per_unit=1.0, low=0, high=255).tolist() == [[0, 2, 2, 0, 255, 0, 0, 0]]
    assert run("quantize", x, per_unit=2.0, low=-3, high=3).tolist() == [[1, 3, 3, -2, 3, 0, -3, 1]]


def test_what_is_not_a_batch_is_refused():
    reference = Reference(small_model())
    good = images(1, 2, 6, 5)
    assert reference(good).shape == (1, 3)
    for wrong, words in [
        (good[0], "shape"),
        (good[:, :1], "shape"),
        (good.transpose(0, 1, 3, 2), "shape"),
        (good.astype(np.float64), "float64"),
        (good.tolist(), "list"),
        (good[:0], "empty"),
        (torch.from_numpy(good), "Tensor"),
    ]:
        with pytest.raises(ValueError, match=words):
            reference(wrong)


def test_info_and_binary_state_dict():
    net = Reference(small_model(J=2))
    assert net.info()["engine"] == "reference"
    state = net.binary_state_dict()
    assert list(state) == ["conv.weight"]
    assert state["conv.weight"].shape == (6, 4, 3, 3)
    assert set(np.unique(state["conv.weight"])) == {-1, 1}


def test_loading_and_running_need_no_torch(tmp_path):
    path = tmp_path / "small.onebit"
    write_model(small_model(), path)
    program = (
        "import sys; import onebit, numpy; net = onebit.load(sys.argv[1], engine='reference');"
        "print(net(numpy.zeros((2, 2, 6, 5), numpy.float32)).shape);"
        "from onebit.commands import main; main(['inspect', sys.argv[1]]);"
        "assert not {'torch', 'pydantic', 'rich', 'matplotlib', 'PIL'} & set(sys.modules), sorted(sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False, env=os.environ
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("(2, 3)\n")


def test_another_engine_is_refused(tmp_path):
    with pytest.raises(ValueError, match="engine='fast'"):
        onebit.load(tmp_path, engine="fast")


@pytest.mark.parametrize("side", [1, 2, 9, 150])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_a_weight_of_0_does_not_hide_what_is_not_finite(side, groups, odd):
    """0 times NaN, or infinity, is NaN: in a 1 x 1 kernel of one plane, too, and in torch and the engine."""
    net = Chain(groups, side, side)
    weight = np.zeros((groups, 1, 1, 1), np.float32)
    net.add("conv2d", tensors={"weight": weight}, groups=groups)
    x = np.ones((2, groups, side, side), np.float32)
    x[1, -1, side // 2, 0] = odd
    with np.errstate(invalid="ignore"):
        found = Reference(net.model())(x)
    expected = F.conv2d(torch.from_numpy(x), torch.from_numpy(weight), groups=groups).numpy()
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found, Engine(net.model())(x))
    assert np.isnan(found).sum() == 1
