"""The native engine against the NumPy interpreter: sums bit for bit, floats to rounding, on all kernels."""

import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import onebit
from engines import HERE, assert_close, assert_same, both, each_isa
from onebit.engine import Engine
from onebit.errors import UserError
from onebit.modelfile import write_model
from onebit.packing import pack_kernels, pack_signs
from onebit.reference import Reference
from wire_models import Chain, wire_models

PARTS = ("affine", "prelu", "add", "clamp", "bits")
CHANNELS = (1, 2, 3, 4, 5, 8, 16, 31, 32, 33, 48, 63, 64, 65, 127, 128, 129, 192, 260)


def batch_for(model, count=2, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, *model.graph.input_shape)).astype(np.float32)
    x[rng.random(x.shape) < 0.05] = 0  # ties
    return x


def sums_of(net):
    """A net whose output is the sums before it, as floats: whole numbers."""
    return net.add("affine", tensors={"scale": np.ones(1, np.float32)})


@st.composite
def convolutions(draw):
    groups = draw(st.sampled_from((1, 1, 1, 2, 3)))
    planes = draw(st.sampled_from(CHANNELS)) if groups == 1 else draw(st.sampled_from((1, 3, 32, 65)))
    J = draw(st.sampled_from((1, 1, 2, 3, 4, 5, 8)))
    kernels = draw(st.sampled_from(CHANNELS)) if groups == 1 else groups * draw(st.sampled_from((1, 5, 17)))
    taps = draw(st.sampled_from(((1, 1), (3, 3), (3, 3), (5, 5), (1, 3), (2, 2), (3, 1), (4, 7))))
    stride = [draw(st.integers(1, 3)), draw(st.integers(1, 3))]
    dilation = [draw(st.integers(1, 3)), draw(st.sampled_from((1, 1, 2)))]
    padding = [draw(st.integers(0, 3)) for _ in range(4)]
    sides = [
        draw(st.integers(max(1, dilation[i] * (taps[i] - 1) + 1 - sum(padding[2 * i : 2 * i + 2])), 13))
        if dilation[i] * (taps[i] - 1) + 1 - sum(padding[2 * i : 2 * i + 2]) <= 13
        else 20
        for i in (0, 1)
    ]
    net = Chain(planes * groups, *sides)
    net.add("sign")
    net.bconv(
        planes, kernels, J=J, taps=taps, stride=stride, dilation=dilation, padding=padding, groups=groups,
        masks=draw(st.booleans()),
    )  # fmt: skip
    return net


@each_isa
@settings(max_examples=80, deadline=None)
@given(net=convolutions(), count=st.integers(1, 3), seed=st.integers(0, 9))
def test_sums_are_exact(isa, net, count, seed):
    model = sums_of(net).model()
    assert_same(model, batch_for(model, count, seed), isa)


def masks_of(pattern, J, taps, rng):
    """Masks of J projections: the classes of taps are one, as many as there can be, or any."""
    masks = np.ones((J, *taps), np.int8)
    if pattern == "equal":
        masks[:] = rng.choice([-1, 1], taps)
    elif pattern == "opposite":  # one class, some projections of the other sign
        masks[:] = rng.choice([-1, 1], taps) * rng.choice([-1, 1], J)[:, None, None]
    elif pattern == "distinct":  # projection j flips the taps whose number has bit j - 1: 2^(J-1) classes
        numbers = np.arange(np.prod(taps)).reshape(taps)
        masks[:] = [np.where(numbers >> max(j - 1, 0) & (j > 0), -1, 1) for j in range(J)]
    elif pattern == "one tap":
        masks[J - 1, -1, -1] = -1
    else:
        masks[:] = rng.choice([-1, 1], masks.shape)
    return masks


# Windows and planes with enough bits for projections to share their work.
SHARED = {(3, 3): (61, 64, 67, 128, 193), (1, 1): (260,), (5, 5): (64, 90), (2, 3): (97, 128), (1, 7): (65, 90)}
PATTERNS = ("equal", "opposite", "distinct", "one tap", "any", "none")


@st.composite
def shared_convolutions(draw):
    J, pattern = draw(st.sampled_from((2, 3, 4, 5, 8, 16))), draw(st.sampled_from(PATTERNS))
    taps = draw(st.sampled_from(tuple(SHARED)))
    planes, groups = draw(st.sampled_from(SHARED[taps])), draw(st.sampled_from((1, 1, 1, 2)))
    kernels = groups * draw(st.sampled_from((20, 23, 24, 31, 32, 40, 65)))
    options = {
        "stride": [draw(st.integers(1, 2)), draw(st.integers(1, 2))],
        "dilation": [draw(st.sampled_from((1, 1, 2))), draw(st.sampled_from((1, 1, 2)))],
        "padding": [draw(st.integers(0, 2)) for _ in range(4)],
        "groups": groups,
    }
    net = Chain(planes * groups, draw(st.integers(9, 12)), draw(st.sampled_from((13, 14, 32, 34))))
    net.add("sign").bconv(planes, kernels, J=J, taps=taps, masks=False, **options)
    if pattern != "none":
        masks = masks_of(pattern, J, taps, np.random.default_rng(draw(st.integers(0, 9))))
        net.nodes[-1].tensors["masks"] = pack_signs(masks)
    return net, J, groups


@each_isa
@settings(max_examples=120, deadline=None)
@given(drawn=shared_convolutions(), seed=st.integers(0, 9))
def test_projections_that_share_their_work(isa, drawn, seed):
    net, J, groups = drawn
    model = sums_of(net).model()
    kernel = Engine(model, isa).info()["steps"][1]["kernel"]
    if isa == "avx2":
        assert kernel == ("bits in groups" if groups > 1 else "bits") + f", shared by {J}"
    assert_same(model, batch_for(model, 1, seed), isa)


@each_isa
@pytest.mark.parametrize("side", [8, 32])
@pytest.mark.parametrize("J", [2, 3, 4, 8])
def test_nets_of_projections(isa, J, side):
    """Layers of bits between bits, some of whose kernels fill no tile: blocks of channels begin with a byte."""
    rng = np.random.default_rng(J)
    net = Chain(J * 21, side, side).add("sign", "bits")
    for kernels, before in ((33, 21), (21, 33), (9, 21)):
        net.bconv(J * before, kernels, J=J, padding=[1, 1, 1, 1])
        channels = J * kernels
        tensors = {"scale": powers(rng, channels), "shift": wholes(rng, channels)}
        net.add("affine", tensors=tensors).add("sign")
    model = sums_of(net.bconv(J * 9, 5, J=J)).model()
    assert_same(model, batch_for(model, 2), isa)


@each_isa
@pytest.mark.parametrize("kernels", [8, 40])
@pytest.mark.parametrize("J", [2, 3, 8])
def test_shared_counts_at_their_limit(isa, J, kernels):
    """65,529 bits of a window, of which all differ, or none: the limit of every sum, by either way of sharing."""
    planes = 7281
    net = Chain(planes, 3, 34).add("sign").bconv(planes, kernels, J=J, masks=False)
    net.nodes[-1].tensors["kernels"] = pack_kernels(np.ones((kernels, planes, 3, 3), np.int8))
    masks = np.ones((J, 3, 3), np.int8)
    masks[1] = -1
    net.nodes[-1].tensors["masks"] = pack_signs(masks)
    x = np.ones((2, planes, 3, 34), np.float32)
    x[1] = -1
    engine = Engine(sums_of(net).model(), isa)
    assert isa != "avx2" or engine.info()["steps"][1]["kernel"] == f"bits, shared by {J}"
    expected = np.where(np.arange(J * kernels) % J == 1, -9 * planes, 9 * planes)
    found = engine(x)[:, :, 0]
    np.testing.assert_array_equal(found, np.stack([expected, -expected])[:, :, None].repeat(32, axis=2))


def test_more_projections_than_can_share():
    """17 of them: they are counted one by one."""
    net = Chain(64, 5, 6).add("sign").bconv(64, 24, J=17, padding=[1, 1, 1, 1])
    model = sums_of(net).model()
    for isa in HERE:
        assert Engine(model, isa).info()["steps"][1]["kernel"] == "bits"
        assert_same(model, batch_for(model), isa)


@each_isa
@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("width", [1, 2, 7, 8])
def test_every_width_of_channels(isa, channels, width):
    """3x3 with exact zero padding, as nets have it: every shape of tile, odd and even rows."""
    net = Chain(channels, 5, width).add("sign").bconv(channels, channels, padding=[1, 1, 1, 1])
    model = sums_of(net).model()
    assert_same(model, batch_for(model), isa)


@each_isa
@pytest.mark.parametrize("taps", [65535, 65536])
def test_counts_at_their_limit(isa, taps):
    """Counts of 16 bits hold 65535 taps, all of them different or all equal; one more goes another way."""
    net = Chain(taps, 1, 2).add("sign")
    signs = np.ones((2, taps, 1, 1), np.float32)
    signs[1] = -1
    net.add("bconv2d", tensors={"kernels": pack_kernels(signs)}, out_channels=2, kernel_size=[1, 1])
    model = sums_of(net).model()
    x = np.ones((2, taps, 1, 2), np.float32)
    x[1] = -1
    found, expected = both(model, x, isa)
    np.testing.assert_array_equal(found, expected)
    assert np.abs(found).min() == taps


@each_isa
@pytest.mark.parametrize("taps", [65793, 65794])
def test_levels_at_the_limit_of_exact_floats(isa, taps):
    """255 * 65793 = 2^24 - 1 is the largest sum of levels that floats add up; beyond, whole numbers do.

    Sums that differ by 1 lie on either side of whole thresholds: as floats they could not be told apart there.
    """
    signs = np.ones((3, taps, 1, 1), np.int8)
    signs[1:] = -1
    signs[2, ::2] = 1
    net = Chain(taps, 1, 1).add("quantize", per_unit=1.0, low=0, high=255).bconv(taps, 3, taps=(1, 1), masks=False)
    net.nodes[-1].tensors["kernels"] = pack_kernels(signs)
    limits = np.array([255 * taps - 1, 1 - 255 * taps, -1000], np.int32)
    net.add("threshold", tensors={"thresholds": limits, "at_most": pack_signs(np.array([-1, 1, -1]))})
    model = sums_of(net.bconv(3, 8, taps=(1, 1), masks=False)).model()
    x = np.full((3, taps, 1, 1), 255, np.float32)
    x[1, 0] = 254
    x[2, 0] = 253
    found, expected = both(model, x, isa)
    np.testing.assert_array_equal(found, expected)
    assert (found[0] == found[1]).all()
    assert (found[1] != found[2]).any()


@each_isa
@settings(max_examples=30, deadline=None)
@given(
    planes=st.sampled_from((1, 3, 16, 33)), kernels=st.sampled_from((1, 8, 17)), low=st.sampled_from((0, -1, -128)),
    high=st.sampled_from((1, 3, 127)), stride=st.integers(1, 2), groups=st.sampled_from((1, 2)),
)  # fmt: skip
def test_sums_of_levels_are_exact(isa, planes, kernels, low, high, stride, groups):
    net = Chain(planes * groups, 6, 5).add("quantize", per_unit=20.0, low=low, high=high)
    net.bconv(planes, kernels * groups, stride=[stride, stride], padding=[1, 1, 0, 2], groups=groups)
    model = sums_of(net).model()
    x = batch_for(model)
    x[0, 0, 0, :4] = [np.nan, np.inf, -np.inf, 0.125]  # NaN is 0; 2.5 rounds to the even number
    assert_same(model, x, isa)


@each_isa
@pytest.mark.parametrize("channels", [1, 7, 8, 16, 33, 64, 130])
def test_bits_of_sums(isa, channels):
    """Thresholds straight behind a 1-bit convolution, of either direction, some that no sum reaches; a residual.

    Whole numbers and powers of two: every float is exact.
    """
    rng = np.random.default_rng(channels)
    net = Chain(channels, 6, 5).add("sign").bconv(channels, channels, padding=[1, 1, 1, 1])
    thresholds = rng.integers(-9, 9, channels).astype(np.int32)
    thresholds[:2] = [-(2**31), 2**31 - 1][: min(2, channels)]
    at_most = pack_signs(rng.normal(size=channels))
    net.add("threshold", "bits", tensors={"thresholds": thresholds, "at_most": at_most})
    net.bconv(channels, channels, padding=[1, 1, 1, 1])
    net.add("affine", "norm", tensors={"scale": powers(rng, channels), "shift": wholes(rng, channels)})
    net.add("prelu", "prelu", tensors={"slope": powers(rng, channels)})
    net.add("add", "sum", ["prelu", "input"])
    floats = np.where(rng.random(channels) < 0.2, np.inf, wholes(rng, channels)).astype(np.float32)
    net.add("threshold", "more", ["sum"], tensors={"thresholds": floats, "at_most": at_most})
    net.bconv(channels, channels, padding=[1, 1, 1, 1])
    net.add("affine", "last", tensors={"scale": powers(rng, channels)}).add("add", "end", ["last", "sum"])
    model = net.model()
    assert_same(model, wholes(rng, (2, channels, 6, 5)), isa)


@each_isa
@pytest.mark.parametrize("source", ["none", "sums", "floats"])
@pytest.mark.parametrize("other", ["none", "first", "last"])
def test_thresholds_of_0(isa, source, other):
    """Either direction, and both; all of them 0, or all but one. 0 passes in both directions."""
    for at_most in ([-1] * 9, [1] * 9, [1] + [-1] * 8, [-1] * 8 + [1]):
        rng = np.random.default_rng(0)
        net = Chain(9, 6, 5)
        if source == "sums":
            net.add("sign").bconv(9, 9)
        elif source == "floats":
            net.add("conv2d", tensors={"weight": wholes(rng, (9, 9, 1, 1))})
        thresholds = np.zeros(9, np.int32 if source == "sums" else np.float32)
        if other != "none":
            thresholds[0 if other == "first" else -1] = 2
        net.add("threshold", tensors={"thresholds": thresholds, "at_most": pack_signs(np.array(at_most))})
        model = sums_of(net.bconv(9, 9, taps=(1, 1))).model()
        assert_same(model, wholes(rng, (2, 9, 6, 5)), isa)


def wholes(rng, shape):
    return rng.integers(-3, 4, shape).astype(np.float32)


def powers(rng, count):
    return np.exp2(rng.integers(-2, 3, count)).astype(np.float32) * rng.choice([-1, 1], count).astype(np.float32)


def net_with(channels, source, parts):
    """A layer with these parts of an output stage; whole numbers and powers of two, so floats are exact."""
    rng = np.random.default_rng(channels)
    net = Chain(channels, 3, 5)
    if source == "bits":
        net.add("sign").bconv(channels, channels, padding=[1, 1, 1, 1])
    elif source == "floats":
        net.add("conv2d", tensors={"weight": wholes(rng, (channels, channels, 1, 1))})
    else:
        net.add("max_pool2d", kernel_size=[3, 3], stride=[1, 1], padding=[1, 1])
    if source == "bits" or "affine" in parts:
        net.add("affine", tensors={"scale": powers(rng, channels), "shift": wholes(rng, channels)})
    if "prelu" in parts:
        net.add("prelu", tensors={"slope": powers(rng, channels)})
    if "add" in parts:
        net.add("add", "sum", [net.nodes[-1].name, "input"])
    if "clamp" in parts:
        net.add("clamp", low=-4.0, high=5.0)
    before = net.nodes[-1].name
    if "bits" in parts:
        at_most = pack_signs(rng.normal(size=channels))
        net.add("threshold", tensors={"thresholds": wholes(rng, channels), "at_most": at_most})
        net.bconv(channels, channels, padding=[1, 1, 1, 1])
        net.add("affine", "numbers", tensors={"scale": np.ones(1, np.float32)}).add(
            "add", "end", ["numbers", before]
        )
    return net.model()


@each_isa
@pytest.mark.parametrize("source", ["bits", "floats", "pool"])
def test_every_output_stage(isa, source):
    """Every combination of what may follow a layer, bit for bit: with and without channels that fill no vector."""
    for parts in (parts for n in range(len(PARTS) + 1) for parts in combinations(PARTS, n)):
        for channels in (3, 24, 130):
            model = net_with(channels, source, parts)
            assert_same(model, wholes(np.random.default_rng(0), (2, channels, 3, 5)), isa)


@each_isa
def test_bits_do_not_depend_on_the_kernels(isa):
    """-0.1 * 10 + 1 is 0 if it is rounded twice and less than 0 if once: it counts as 0, whatever multiplies."""
    net = Chain(20, 1, 1)
    net.add("affine", tensors={"scale": np.full(1, -0.1, np.float32), "shift": np.ones(1, np.float32)})
    model = sums_of(net.add("sign").bconv(20, 1, taps=(1, 1))).model()
    assert_same(model, np.full((1, 20, 1, 1), 10, np.float32), isa)


@each_isa
@pytest.mark.parametrize("which", range(4))
def test_every_operation(isa, which):
    model = wire_models()[which]
    for seed in range(3):
        assert_close(model, batch_for(model, 3, seed), isa)


@each_isa
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_float_convolutions(isa, data):
    draw = data.draw
    groups = draw(st.sampled_from((1, 1, 2, 6)))
    planes, outputs = draw(st.sampled_from((1, 3, 8))), groups * draw(st.sampled_from((1, 2, 16, 17)))
    taps = draw(st.sampled_from(((1, 1), (3, 3), (7, 7), (2, 3))))
    stride, dilation = [draw(st.integers(1, 3)) for _ in "hw"], [draw(st.integers(1, 2)) for _ in "hw"]
    net = Chain(planes * groups, draw(st.integers(13, 20)), draw(st.integers(13, 20)))
    weight = net.floats(outputs, planes, *taps)
    net.add(
        "conv2d", tensors={"weight": weight, "bias": net.floats(outputs)}, stride=stride, dilation=dilation,
        padding=[draw(st.integers(0, 3)) for _ in range(4)], groups=groups,
    )  # fmt: skip
    for op in draw(st.lists(st.sampled_from(("relu", "prelu", "affine", "clamp", "abs")), max_size=3)):
        tensors = {"prelu": {"slope": net.floats(outputs)}, "affine": {"scale": net.floats(1)}}.get(op, {})
        net.add(op, tensors=tensors, **({"low": -0.5, "high": None} if op == "clamp" else {}))
    model = net.model()
    assert_close(model, batch_for(model), isa)


@each_isa
@pytest.mark.parametrize("channels", [1, 8, 20, 40])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_pools(isa, channels, ceil_mode):
    for op, options in (
        ("max_pool2d", {"padding": [1, 0], "dilation": [1, 2]}),
        ("avg_pool2d", {"padding": [1, 1], "count_include_pad": False}),
        ("avg_pool2d", {"padding": [1, 1], "count_include_pad": True}),
    ):
        net = Chain(channels, 9, 8).add(op, kernel_size=[3, 3], stride=[2, 2], ceil_mode=ceil_mode, **options)
        model = net.model()
        x = batch_for(model)
        x[0, 0, 2, 2] = np.nan
        assert_close(model, x, isa)


@each_isa
@pytest.mark.parametrize("channels", [9, 64, 192])
def test_numbers_that_are_not_finite(isa, channels):
    """NaN is not >= 0: its bit is -1. It stays NaN through the float part of a net, and a relu."""
    net = Chain(channels, 3, 4).add("sign").bconv(channels, 4)
    model = sums_of(net).model()
    x = batch_for(model)
    x[0, :3, 0, 0] = [np.nan, np.inf, -np.inf]
    x[0, 3:5, 0, 0] = [-0.0, -np.nan]
    x[1, -2:, 2, 3] = [1e-45, -1e-45]
    assert_same(model, x, isa)
    net = Chain(channels, 3, 4).add("relu").add("prelu", tensors={"slope": np.full(1, 0.5, np.float32)})
    net.add("clamp", low=None, high=1.0)
    found, expected = both(net.model(), x, isa)
    np.testing.assert_array_equal(found, expected)
    assert np.isnan(found[0, 0, 0, 0])


@each_isa
def test_nodes_that_nothing_needs(isa):
    net = Chain(4, 3, 3).add("conv2d", "dead", tensors={"weight": np.ones((2, 4, 1, 1), np.float32)})
    net.add("relu", "dead too", ["input"]).add("abs", "out", ["input"])
    model = net.model()
    assert len(Engine(model, isa).info()["steps"]) == 1
    assert_same(model, batch_for(model), isa)


@each_isa
def test_means_of_large_images(isa):
    model = Chain(33, 300, 300).add("adaptive_avg_pool2d", output_size=[1, 1]).model()
    found = Engine(model, isa)(np.full((1, 33, 300, 300), 0.1, np.float32))
    np.testing.assert_allclose(found, 0.1, rtol=1e-5)


@each_isa
@pytest.mark.parametrize("op", ["add", "multiply"])
@pytest.mark.parametrize("shape", [(c, h, w) for c in (1, 5) for h in (1, 4) for w in (1, 3)])
def test_sides_of_1_are_repeated(isa, shape, op):
    """Of either operand: an image with a row, a column, a pixel, a channel or a number."""
    net = Chain(5, 4, 3)
    if shape[0] == 1:
        net.add("slice", "channel", start=2, stop=3)
    kernel = [4 if shape[1] == 1 else 1, 3 if shape[2] == 1 else 1]
    net.add("max_pool2d", "part", kernel_size=kernel, stride=[1, 1])
    net.add(op, "left", inputs=["part", "input"]).add("abs", "a")
    net.add(op, "right", inputs=["a", "part"])
    model = net.model()
    assert model.values["part"].shape == shape
    assert_same(model, batch_for(model), isa)


@each_isa
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_pads(isa, mode):
    net = Chain(70, 4, 5).add("pad", padding=[1, 3, 2, 0], mode=mode)
    if mode != "zeros":
        net = Chain(70, 4, 5).add("sign").add("pad", padding=[1, 3, 2, 0], mode=mode).bconv(70, 3, taps=(2, 2))
        sums_of(net)
    model = net.model()
    assert_same(model, batch_for(model), isa)


@each_isa
@pytest.mark.parametrize("channels", [3, 40])
@pytest.mark.parametrize(
    "bounds", [{"low": -0.5}, {"high": -0.25}, {"high": 0.5}, {"low": -0.5, "high": 0.25}], ids=str
)
def test_clamps_of_one_bound_or_two(isa, bounds, channels):
    """First in a step, behind a layer and behind a sum."""
    net = Chain(channels, 4, 5).add("clamp", "alone", **bounds)
    net.add("conv2d", "conv", tensors={"weight": net.floats(channels, channels, 1, 1)})
    net.add("clamp", "first", **bounds).add("add", "sum", ["first", "input"]).add("clamp", "second", **bounds)
    model = net.model()
    assert ["conv2d", "clamp", "add", "clamp"] in [step["operations"] for step in Engine(model).info()["steps"]]
    assert_close(model, batch_for(model), isa)


@each_isa
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("mode", "padding"), [("reflect", [1, 0, 6, 5]), ("circular", [2, 1, 7, 6])])
def test_pads_as_wide_as_the_image(isa, mode, padding, turned):
    """All that there is, of images that are not square."""
    sides, padding = ((7, 2), [*padding[2:], *padding[:2]]) if turned else ((2, 7), padding)
    model = Chain(3, *sides).add("pad", padding=padding, mode=mode).model()
    assert_same(model, batch_for(model), isa)


@each_isa
def test_large_sums(isa):
    """Sums that no float holds: thresholds as whole numbers, groups, the largest of negative sums."""
    taps = 70_000
    net = Chain(2 * taps, 1, 3).add("quantize", per_unit=1.0, low=0, high=255)
    signs = np.ones((4, taps, 1, 1), np.float32)
    signs[1::2] = -1
    tensors = {"kernels": pack_kernels(signs)}
    net.add("bconv2d", "conv", tensors=tensors, out_channels=4, kernel_size=[1, 1], groups=2)
    net.add("max_pool2d", "most", kernel_size=[1, 3], stride=[1, 1])
    exact = 255 * taps  # 17,850,000, beyond 2^24; the second group's sum is one less
    thresholds = np.array([exact, -exact, exact, -exact + 1], np.int32)
    at_most = pack_signs(np.array([-1, 1, -1, 1]))
    net.add("threshold", tensors={"thresholds": thresholds, "at_most": at_most}).bconv(4, 4, taps=(1, 1))
    model = sums_of(net).model()
    x = np.full((1, 2 * taps, 1, 3), 255, np.float32)
    x[0, -1] = 254
    assert_same(model, x, isa)


@each_isa
def test_softmax_of_large_numbers(isa):
    model = Chain(4, 1, 1).add("softmax").model()
    assert_close(model, np.array([1000, 999, 0, -1000], np.float32).reshape(1, 4, 1, 1), isa)


@each_isa
def test_a_residual_of_a_large_image(isa):
    """More pixels than the float kernel takes at a time; the sum is written over its residual."""
    rng = np.random.default_rng(0)
    net = Chain(8, 17, 19).add("conv2d", "a", tensors={"weight": wholes(rng, (8, 8, 1, 1))})
    net.add("conv2d", "b", ["input"], tensors={"weight": wholes(rng, (8, 8, 3, 3))}, padding=[1, 1, 1, 1])
    net.add("add", "c", ["b", "a"])
    model = net.model()
    assert_same(model, wholes(rng, (2, 8, 17, 19)), isa)


@each_isa
def test_floats_of_bits_are_not_written_over_the_bits(isa):
    net = (
        Chain(70, 3, 3)
        .add("relu", "a")
        .add("sign", "bits")
        .add("affine", "b", tensors={"scale": np.ones(1, np.float32)})
    )
    net.add("add", "c", ["b", "a"])
    model = net.model()
    assert_same(model, batch_for(model), isa)


@each_isa
def test_affine_maps_that_one_map_cannot_hold(isa):
    for scales, x in (((1e20, 1e20), 0.0), ((1e-30, 1e-30), 1e30)):
        net = Chain(8, 1, 1)
        for scale in scales:
            net.add("affine", tensors={"scale": np.full(1, scale, np.float32)})
        assert_same(net.model(), np.full((1, 8, 1, 1), x, np.float32), isa)


def test_times_of_steps_and_arrays_that_are_not_aligned():
    net = Chain(3, 2, 2).add("abs").add("concatenate", inputs=["abs0", "abs0", "input"]).add("tanh")
    engine = Engine(net.model())
    assert len(engine.step_seconds(batch_for(engine.model))) == len(engine.info()["steps"]) == 3
    bytes_ = np.zeros(4 * 12 + 1, np.uint8)[1:]
    x = bytes_.view(np.float32).reshape(1, 3, 2, 2)
    assert not x.flags.aligned
    np.testing.assert_array_equal(engine(x), engine(x.copy()))


@each_isa
def test_a_value_is_never_overwritten_while_it_is_needed(isa):
    """Long and short shortcuts across each other: what shares bytes must not live at the same time."""
    net = Chain(5, 4, 4)
    net.add("relu", "a").add("abs", "b").add("tanh", "c", ["a"]).add("add", "d", ["b", "c"])
    net.add("conv2d", "e", ["d"], tensors={"weight": net.floats(5, 5, 1, 1)}).add("add", "f", ["e", "a"])
    net.add("add", "g", ["f", "d"]).add("multiply", "h", ["g", "f"]).add("add", "i", ["h", "h"])
    net.add("conv2d", "j", ["i"], tensors={"weight": net.floats(5, 5, 3, 3)}, padding=[1, 1, 1, 1])
    net.add("add", "k", ["j", "i"]).add("sign", "l", ["k"]).bconv(5, 5, padding=[1, 1, 1, 1])
    net.add("affine", "m", tensors={"scale": net.floats(5)}).add("add", "n", ["m", "k"])
    model = net.model()
    assert_close(model, batch_for(model), isa)


@each_isa
def test_layouts_and_batches(isa):
    model = Chain(3, 4, 5).add("relu").model()  # its output is an image
    engine, x = Engine(model, isa), batch_for(model, 5)
    expected = engine(x)
    by_pixels = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(engine(by_pixels), expected)
    assert engine(by_pixels).transpose(0, 2, 3, 1).flags.c_contiguous
    np.testing.assert_array_equal(engine(x[::-1][:, ::-1][:, ::-1]), engine(x[::-1].copy()))
    for i in range(5):
        np.testing.assert_array_equal(engine(x[i : i + 1])[0], expected[i])


def test_a_net_that_would_take_all_memory():
    """A few kilobytes that describe values of gigabytes, all of them alive at once."""
    net = Chain(1, 1 << 14, 1 << 14)
    for i in range(9):
        net.add("abs", f"v{i}", inputs=["input"])
    for i in range(8):
        net.add("add", inputs=[net.nodes[-1].name if i else "v0", f"v{i + 1}"])
    with pytest.raises(
        UserError, match=r"needs 10\.7 GB of memory for one image; the engine gives it 8\.6 GB at most$"
    ):
        Engine(net.model())


@pytest.mark.skipif("ONEBIT_TEST_NATIVE" in os.environ, reason="another build of the engine is tested")
def test_what_is_installed_is_small():
    """Our own files, the engine included, take less than 3 MB."""
    from onebit import _native

    files = [path for path in Path(onebit.__file__).parent.rglob("*") if path.suffix not in {".pyc", ".so"}]
    assert sum(path.stat().st_size for path in [*files, Path(_native.__file__)] if path.is_file()) < 3_000_000


def test_several_threads_at_once(tmp_path):
    model = wire_models()[0]
    engine, xs = Engine(model), [batch_for(model, 50, seed) for seed in range(4)]
    expected = [engine(x) for x in xs]
    wrong, start = [], threading.Barrier(4)

    def work(i):
        start.wait()
        wrong.extend(1 for _ in range(50) if not np.array_equal(engine(xs[i]), expected[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class TensorLike:
    """What PyTorch's tensors have."""

    def numpy(self):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((1, 2, 6, 4), np.float32), r"\(N, 2, 6, 5\), not \(1, 2, 6, 4\)"),
        (np.zeros((1, 3, 6, 5), np.float32), r"not \(1, 3, 6, 5\)"),
        (np.zeros((2, 6, 5), np.float32), r"not \(2, 6, 5\): x\[None\] makes"),
        (np.zeros((6, 5, 2), np.float32), r"not \(6, 5, 2\): x.transpose\(2, 0, 1\)\[None\] makes"),
        (np.zeros((4, 6, 5, 2), np.float32), r"not \(4, 6, 5, 2\): x.transpose\(0, 3, 1, 2\) makes"),
        (np.zeros((), np.float32), r"not \(\)"),
        (np.zeros((1, 2, 6, 5)), r"float32 array, not float64: use x.astype\(numpy.float32\)"),
        (np.zeros((1, 2, 6, 5), np.uint8), "not uint8: prepare images as net.model.preprocessing says"),
        (np.zeros((1, 2, 6, 5), np.int64), r"not int64: use x.astype\(numpy.float32\)"),
        (np.zeros((1, 2, 6, 5), np.uint16), r"not uint16: use x.astype\(numpy.float32\)"),
        (np.zeros((1, 2, 6, 5), bool), r"not bool: use x.astype\(numpy.float32\)"),
        (np.zeros((1, 2, 6, 5), np.complex64), "not complex64: give it real numbers"),
        ([[1.0]], r"not a list: use numpy.asarray\(x, numpy.float32\)"),
        (1.0, r"not a float: use numpy.asarray\(x, numpy.float32\)"),
        (7, r"not a int: use numpy.asarray\(x, numpy.float32\)"),
        ((np.zeros((2, 6, 5)),), r"not a tuple: use numpy.asarray\(x, numpy.float32\)"),
        ([np.float32(1)], r"not a list: use numpy.asarray\(x, numpy.float32\)"),
        ("photo.jpg", r"not a str: net.prepare\(x\) makes one of image files"),
        ([b"bytes"], r"not a list: net.prepare\(x\) makes one"),
        (None, r"not a NoneType: net.prepare\(x\) makes one"),
        (TensorLike(), r"not a TensorLike: use x.numpy\(\)"),
        (np.zeros((0, 2, 6, 5), np.float32), "batch is empty"),
    ],
)
def test_inputs_that_are_none(x, message):
    with pytest.raises(UserError, match=message):
        Engine(wire_models()[0])(x)


def test_bytes_for_a_net_that_says_nothing_of_its_preprocessing():
    net = Engine(Chain(2, 6, 5).add("relu").model())
    with pytest.raises(UserError, match="not uint8: prepare images as those that it was trained on"):
        net(np.zeros((1, 2, 6, 5), np.uint8))


def test_a_large_batch_can_be_interrupted():
    """As by Ctrl-C: the handler runs between two images, not after the last."""

    class Interrupted(Exception):  # noqa: N818
        pass

    def interrupt(*_):
        raise Interrupted

    model = sums_of(Chain(64, 40, 40).add("sign").bconv(64, 64, taps=(7, 7), padding=[3, 3, 3, 3])).model()
    net, images = Engine(model, isa="scalar"), np.ones((200, 64, 40, 40), np.float32)  # seconds of work
    outputs = np.full(images.shape, np.nan, np.float32)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Interrupted):
            net._net.run(images, False, outputs, None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert np.isfinite(outputs[0]).all()
    assert np.isnan(outputs[-1]).all()
    np.testing.assert_array_equal(net(images[:1]), outputs[:1])


def test_copies_and_other_processes():
    model = wire_models()[0]
    x = batch_for(model)
    for engine in (Engine(model), Engine(model, "scalar")):
        for again in (copy.deepcopy(engine), pickle.loads(pickle.dumps(engine))):
            assert again.info() == engine.info()
            np.testing.assert_array_equal(again(x), engine(x))


def test_a_copy_chooses_its_kernels_anew(monkeypatch):
    """What was loaded with isa='auto' may go to a machine that has other kernels."""
    sent = pickle.dumps(Engine(wire_models()[0]))
    monkeypatch.setenv("ONEBIT_ISA", "scalar")
    assert pickle.loads(sent).isa == "scalar"


@pytest.mark.parametrize("path", [None, ["net.onebit"], 3])
def test_load_of_what_is_no_path(path):
    with pytest.raises(UserError, match="its path, its bytes, or a file that is open, not "):
        onebit.load(path)


def test_load(tmp_path, monkeypatch):
    path = tmp_path / "net.onebit"
    write_model(wire_models()[0], path)
    engine = onebit.load(path)
    assert (engine.info()["engine"], engine.info()["isa"]) == ("native", HERE[0])
    assert "'native'" in repr(engine)
    assert engine.info()["workspace_bytes"] > 0
    assert ["conv2d", "threshold"] in [step["operations"] for step in engine.info()["steps"]]
    assert len(engine.step_seconds(batch_for(engine.model))) == len(engine.info()["steps"])
    assert onebit.load(path, isa="scalar").info()["isa"] == "scalar"
    monkeypatch.setenv("ONEBIT_ISA", "scalar")
    assert onebit.load(path).info()["isa"] == "scalar"
    monkeypatch.setenv("ONEBIT_ISA", "mmx")
    with pytest.raises(UserError, match=r"\$ONEBIT_ISA=mmx: there are auto, avx512, avx2, neon, scalar"):
        onebit.load(path)
    assert onebit.load(path, isa="scalar").info()["isa"] == "scalar"  # what is asked for goes before the variable
    with pytest.raises(UserError, match="isa="):
        onebit.load(path, isa="scalar", engine="reference")
    assert isinstance(onebit.load(path, engine="reference"), Reference)


def test_an_isa_that_the_machine_lacks(tmp_path, monkeypatch):
    from onebit import _native

    write_model(wire_models()[0], tmp_path / "net.onebit")
    monkeypatch.setattr(_native, "has_isa", lambda isa: isa == "scalar")
    with pytest.raises(UserError, match="isa='avx2': this machine can't run it; it can run scalar"):
        onebit.load(tmp_path / "net.onebit", isa="avx2")
    assert onebit.load(tmp_path / "net.onebit").isa == "scalar"


def test_a_missing_engine_is_said_and_never_replaced(tmp_path):
    write_model(wire_models()[0], tmp_path / "net.onebit")
    program = (
        "import sys; sys.modules['onebit._native'] = None; import onebit\n"
        "onebit.load(sys.argv[1], engine='reference')\n"
        "try: onebit.load(sys.argv[1])\n"
        "except ValueError as error: print(error)"
    )
    command = [sys.executable, "-c", program, tmp_path / "net.onebit"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "native engine can't be loaded" in said
    assert "engine='reference'" in said
