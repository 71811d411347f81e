"""Levels in the engine: exact convolutions with 1-bit and 8-bit weights; the output stage that makes them."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines import assert_same, both, each_isa
from onebit.engine import Engine
from onebit.graph import GraphError
from onebit.packing import pack_kernels, pack_signs
from wire_models import Chain

OUTPUTS = (1, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 130)
ONE = {"scale": np.ones(1, np.float32)}


@st.composite
def layers(draw):
    """A chain that ends in levels, and how a convolution of them goes."""
    groups = draw(st.sampled_from((1, 1, 1, 2, 3)))
    planes = draw(st.sampled_from((1, 2, 3, 4, 5, 8, 15, 16, 31, 64, 67)))
    taps = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    dilation = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    padding = [draw(st.integers(0, 3)) for _ in range(4)]
    sides = [
        max(draw(st.integers(1, 12)), dilation[a] * (taps[a] - 1) + 1 - padding[2 * a] - padding[2 * a + 1])
        for a in range(2)
    ]
    low = draw(st.sampled_from((0, -1, -100, -127, -128)))
    high = draw(st.integers(1, 255 + low))
    net = Chain(planes * groups, *sides).add("quantize", per_unit=100.0, low=low, high=high)
    stride = [draw(st.integers(1, 3)), draw(st.integers(1, 3))]
    return net, planes, taps, {"stride": stride, "dilation": [*dilation], "padding": padding, "groups": groups}


def images(model, seed=0, count=2):
    """Of both signs; some of either end, some not finite."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1.5, (count, *model.graph.input_shape)).astype(np.float32)
    strange = rng.random(x.shape)
    x[strange < 0.05] = np.inf
    x[strange > 0.95] = -np.inf
    x[(strange > 0.5) & (strange < 0.53)] = np.nan
    return x


@each_isa
@settings(max_examples=150, deadline=None)
@given(layer=layers(), kernels=st.sampled_from(OUTPUTS), J=st.integers(1, 2), seed=st.integers(0, 9))
def test_one_bit_kernels(isa, layer, kernels, J, seed):
    net, planes, taps, at = layer
    net.bconv(planes, kernels * at["groups"], J=J, taps=taps, **at).add("affine", tensors=ONE)
    assert_same(net.model(), images(net.model(), seed), isa)


@each_isa
@settings(max_examples=150, deadline=None)
@given(
    layer=layers(), outputs=st.sampled_from(OUTPUTS), most=st.sampled_from((1, 20, 32, 64, 65, 127)),
    seed=st.integers(0, 9),
)  # fmt: skip
def test_weights_of_8_bits(isa, layer, outputs, most, seed):
    net, planes, taps, at = layer
    rng = np.random.default_rng(seed)
    shape = (outputs * at["groups"], planes, *taps)
    weight = rng.integers(-most - (most == 127), most + 1, shape)
    weight[:, ::2] = np.where(rng.random(shape[:1]) < 0.3, most, weight[:, ::2].T).T  # some as large as they can be
    net.add("conv2d", tensors={"weight": weight.astype(np.int8)}, **at).add("affine", tensors=ONE)
    assert_same(net.model(), images(net.model(), seed), isa)


@each_isa
@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("features", [1, 3, 4, 5, 16, 515])
def test_linear(isa, features, outputs):
    net = Chain(features, 1, 1).add("reshape", shape=[features]).add("quantize", per_unit=99.0, low=-127, high=127)
    weight = net.rng.integers(-64, 65, (outputs, features)).astype(np.int8)
    net.add("linear", tensors={"weight": weight}).add("affine", tensors=ONE)
    assert_same(net.model(), images(net.model()), isa)


@each_isa
@pytest.mark.parametrize("sides", [(1, 1), (1, 90), (90, 1), (7, 7), (3, 33), (33, 31), (14, 2), (2, 64)])
@pytest.mark.parametrize("stride", [1, 2, 5])
def test_strips(isa, sides, stride):
    """Rows that fill a block of pixels, and rows of which a block has many; windows far apart."""
    net = Chain(6, *sides).add("quantize", per_unit=50.0, low=-5, high=250)
    net.bconv(6, 20, taps=(3, 2), padding=[1, 1, 0, 1], stride=[stride, stride]).add("affine", tensors=ONE)
    assert_same(net.model(), images(net.model()), isa)


@each_isa
@pytest.mark.parametrize("planes", [32, 85, 86, 256, 300, 1500])
@pytest.mark.parametrize("low", [0, -128])
def test_sums_as_large_as_they_can_be(isa, planes, low):
    """All bytes 255 or 0 and all signs equal: bytes, words and 16-bit sums of kernels are as full as they get."""
    net = Chain(planes, 4, 3).add("quantize", per_unit=1.0, low=low, high=255 + low)
    net.bconv(planes, 66, padding=[1, 1, 1, 1], masks=False).add("affine", tensors=ONE)
    signs = np.ones((66, planes, 3, 3), np.float32)
    signs[1::2] = -1
    net.nodes[-2].tensors["kernels"] = pack_kernels(signs)
    x = np.full((2, planes, 4, 3), 255 + low, np.float32)
    x[1] = low
    found, expected = both(net.model(), x, isa)
    np.testing.assert_array_equal(found, expected)
    assert found.max() == 9 * planes * max(255 + low, -low)


@each_isa
@pytest.mark.parametrize(
    "fours", [(64, 64, 0, 0), (64, 0, 64, 1), (-64, -64, -1, 0), (32, 32, 32, 32), (127, -127, 127, -127)]
)
def test_weights_at_the_limit_of_16_bits(isa, fours):
    """Of eight weights, those at 0, 1, 4 and 5 are added first, where 16 bits hold their products with 255."""
    weight = np.zeros((17, 24, 1, 1), np.int8)
    weight[3, [8, 9, 12, 13], 0, 0] = fours
    weight[16] = weight[3]
    net = Chain(24, 3, 3).add("quantize", per_unit=1.0, low=0, high=255)
    net.add("conv2d", tensors={"weight": weight}).add("affine", tensors=ONE)
    x = np.full((1, 24, 3, 3), 255, np.float32)
    x[:, ::2, 1] = 0
    assert_same(net.model(), x, isa)


PARTS = ("affine", "prelu", "add", "clamp", "bits", "kept")


def net_with(channels, source, parts):
    """A layer with these parts of an output stage, then levels; whole numbers, powers of two: floats are exact."""
    rng = np.random.default_rng(channels)
    wholes = lambda *shape: rng.integers(-3, 4, shape).astype(np.float32)  # noqa: E731
    powers = lambda: np.exp2(rng.integers(-2, 3, channels)).astype(np.float32) * rng.choice([-1, 1], channels)  # noqa: E731
    net = Chain(channels, 3, 5)
    if source == "levels":
        net.add("quantize", per_unit=2.0, low=-7, high=9).bconv(channels, channels, padding=[1] * 4)
    elif source == "bits":
        net.add("sign").bconv(channels, channels, padding=[1] * 4)
    elif source == "floats":
        net.add("conv2d", tensors={"weight": wholes(channels, channels, 1, 1)})
    elif source == "pool":
        net.add("max_pool2d", kernel_size=[3, 3], stride=[1, 1], padding=[1, 1])
    if source in {"levels", "bits"} or "affine" in parts:
        net.add("affine", tensors={"scale": powers().astype(np.float32), "shift": wholes(channels)})
    if "prelu" in parts:
        net.add("prelu", tensors={"slope": powers().astype(np.float32)})
    if "add" in parts and net.nodes:
        net.add("add", "sum", [net.nodes[-1].name, "input"])
    if "clamp" in parts:
        net.add("clamp", low=-40.0, high=50.0)
    before = net.nodes[-1].name if net.nodes else "input"
    net.add("quantize", "levels", [before], per_unit=0.5, low=-20, high=30)
    net.bconv(channels, channels, taps=(1, 1)).add("affine", "a", tensors=ONE)
    if "bits" in parts:
        at_most = pack_signs(rng.normal(size=channels))
        net.add("threshold", "bits", [before], tensors={"thresholds": wholes(channels), "at_most": at_most})
        net.bconv(channels, channels, taps=(1, 1)).add("affine", "b", tensors=ONE).add("add", "both", ["a", "b"])
    if "kept" in parts:
        net.add("add", "end", [net.nodes[-1].name, before])
    return net.model()


@each_isa
@pytest.mark.parametrize("source", ["levels", "bits", "floats", "pool", "none"])
def test_every_output_stage(isa, source):
    """Levels behind every combination of what may follow a layer: halves (per_unit is 0.5), beyond either end."""
    for parts in (parts for n in range(len(PARTS) + 1) for parts in combinations(PARTS, n)):
        for channels in (3, 24, 70):
            model = net_with(channels, source, parts)
            x = np.random.default_rng(0).integers(-9, 10, (2, *model.graph.input_shape)).astype(np.float32)
            assert_same(model, x, isa)


@each_isa
@pytest.mark.parametrize("channels", [1, 3, 8, 21, 64])
@pytest.mark.parametrize(("low", "high"), [(0, 255), (-128, 127), (-3, 2), (0, 1)])
@pytest.mark.parametrize("scaled", [False, True])
def test_levels_of_every_number(isa, channels, low, high, scaled):
    """Ties go to the even one, NaN to 0, what is beyond an end to that end."""
    numbers = [
        0.5,
        1.5,
        2.5,
        -0.5,
        -1.5,
        -2.5,
        0.49999997,
        254.5,
        255.5,
        -127.5,
        -128.5,
        0.0,
        -0.0,
        1e38,
        -1e38,
        3e9,
        -3e9,
    ]
    numbers += [np.nan, np.inf, -np.inf, np.finfo(np.float32).tiny, high + 0.5, low - 0.5, high - 0.5, low + 0.5]
    x = np.resize(np.array(numbers, np.float32) / 2, (1, channels, 5, 7))
    net = Chain(channels, 5, 7)
    if scaled:
        net.add("affine", tensors={"scale": np.full(1, 2, np.float32), "shift": np.full(1, 0, np.float32)})
    net.add("quantize", per_unit=1.0 if scaled else 2.0, low=low, high=high)
    net.bconv(channels, 1, taps=(1, 1), masks=False).add("affine", tensors=ONE)
    net.nodes[-2].tensors["kernels"] = pack_kernels(np.ones((1, channels, 1, 1)))
    found, expected = both(net.model(), x, isa)
    np.testing.assert_array_equal(found, expected)
    if channels == 1:
        clipped = np.rint(np.clip(np.where(np.isnan(x), 0, x * 2), low, high))
        np.testing.assert_array_equal(found, clipped)


@each_isa
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_pads_of_levels(isa, mode):
    """A level of 0 is no byte of 0."""
    net = Chain(5, 4, 6).add("quantize", per_unit=9.0, low=-11, high=30)
    net.add("pad", padding=[1, 2, 3, 0], mode=mode).bconv(5, 9).add("affine", tensors=ONE)
    assert_same(net.model(), images(net.model()), isa)


@each_isa
def test_levels_take_a_byte(isa):
    """And are made where the numbers are: there is no step for them."""
    net = Chain(64, 56, 56).add("quantize", per_unit=9.0, low=0, high=255)
    for _ in range(3):
        net.bconv(64, 64, padding=[1] * 4).add("affine", tensors=ONE).add(
            "quantize", per_unit=0.125, low=-127, high=127
        )
    net.bconv(64, 1, padding=[1] * 4).add("affine", tensors=ONE)
    info = Engine(net.model(), isa).info()
    assert [step["operations"] for step in info["steps"]] == [
        ["quantize"], *[["bconv2d", "affine", "quantize"]] * 3, ["bconv2d", "affine"]
    ]  # fmt: skip
    floats = 4 * 64 * 56 * 56  # the input, and then room for two values of levels
    assert info["workspace_bytes"] < 2 * floats


def test_a_weight_without_rows_is_refused():
    """Of floats it was refused before; of levels it must not end in an error of NumPy's."""
    net = Chain(4, 1, 1).add("adaptive_avg_pool2d", output_size=[1, 1]).add("reshape", shape=[4])
    net.add("quantize", per_unit=1.0, low=0, high=255).add("linear", tensors={"weight": np.zeros((0, 4), np.int8)})
    with pytest.raises(GraphError, match="without rows"):
        net.model()
