"""Thresholds are exactly where scale * x + shift changes its sign; folded graphs compute what they did before."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import onebit
from onebit.exporting.building import Builder, narrowed
from onebit.exporting.folding import fold, thresholds_of
from onebit.exporting.lowering import Lowered
from onebit.graph import Graph, Node, Value
from onebit.modelfile import Model, read_model
from onebit.packing import pack_kernels
from onebit.reference import Reference

# Numbers with exact products and many ties, beside any numbers.
scales = st.one_of(st.sampled_from([0.0, -0.0, 0.5, -0.5, 1.0, -3.0]), st.floats(-100, 100, width=32))
shifts = st.one_of(st.sampled_from([0.0, -0.0, 0.25, -1.5, 3.0, -9.0]), st.floats(-100, 100, width=32))


def passes(x, threshold, at_most):
    return x <= threshold if at_most else x >= threshold


@settings(max_examples=300)
@given(scales, shifts, st.integers(1, 60))
def test_whole_numbers(scale, shift, most):
    value = Value("sums", (1, 1, 1), -most, most)
    thresholds, at_most = thresholds_of(np.array([scale]), np.array([shift]), value)
    assert thresholds.dtype == np.int32
    for x in range(-most, most + 1):
        exact = Fraction(scale) * x + Fraction(shift) >= 0
        assert passes(x, thresholds[0], at_most[0]) == exact, x


def test_quotients_that_round_to_a_whole_number():
    """-shift / scale is just above n, the nearest float64 is n, and scale * n + shift is less than 0."""
    rng = np.random.default_rng(0)
    scale, n = rng.uniform(0.1, 10, 4000), rng.integers(1, 50, 4000)
    shift = -np.nextafter(scale * n, np.inf)
    assert (-shift / scale == n).sum() > 100
    thresholds, at_most = thresholds_of(scale, shift, Value("sums", (4000, 1, 1), -60, 60))
    assert not at_most.any()
    assert np.array_equal(thresholds, n + 1)
    below, at_most = thresholds_of(-scale, shift, Value("sums", (4000, 1, 1), -60, 60))
    assert at_most.all()
    assert np.array_equal(below, -n - 1)


@settings(max_examples=300)
@given(scales, shifts)
def test_floats(scale, shift):
    thresholds, at_most = thresholds_of(np.array([scale]), np.array([shift]), Value("float", (1,)))
    assert thresholds.dtype == np.float32
    t = thresholds[0]
    with np.errstate(over="ignore"):
        beside = [np.nextafter(t, np.float32(end)) for end in (np.inf, -np.inf)]
    near = [t, *beside, *np.float32([0, 1, -1, 1e9])]
    for x in near:
        if np.isfinite(x):
            exact = Fraction(scale) * Fraction(float(x)) + Fraction(shift)
            if abs(exact) > 1e-13 * (
                abs(scale * float(x)) + abs(shift)
            ):  # the quotient itself is rounded, in 64 bits
                assert passes(x, t, at_most[0]) == (exact >= 0), x


@pytest.mark.parametrize("gamma", [2.0, -2.0, 0.0, -0.0])
@pytest.mark.parametrize("beta", [0.0, 1.0, -1.0, 100.0, -100.0])
def test_a_norm_before_a_sign(gamma, beta, tmp_path):
    """Sums of every size, ties at 0 among them: the bits are those of the formula in exact arithmetic."""
    first = onebit.ProjectionConv2d(6, 2, 1, activation_bits=1)
    second = onebit.ProjectionConv2d(2, 2, 1, activation_bits=1)
    with torch.no_grad():
        first.C.copy_(torch.tensor([[1.0] * 6, [-1.0, 1, 1, 1, 1, 1]]).reshape(2, 6, 1, 1) * 0.25)
        second.C.copy_(torch.tensor([[1.0, 1], [1, -1]]).reshape(2, 2, 1, 1))
    norm = nn.BatchNorm2d(2, eps=0)
    with torch.no_grad():
        norm.weight.fill_(gamma)
        norm.bias.fill_(beta)
        norm.running_mean.fill_(0.5)
        norm.running_var.fill_(0.25)
    path = tmp_path / "net.onebit"
    onebit.export(nn.Sequential(first, norm, second).eval(), path, torch.zeros(1, 6, 1, 7))
    assert [node.op for node in read_model(path).graph.nodes] == [
        "sign",
        "bconv2d",
        "threshold",
        "bconv2d",
        "affine",
    ]
    x = np.array([[-1 if plane < minus else 1 for minus in range(7)] for plane in range(6)], np.float32)
    found = onebit.load(path)(x.reshape(1, 6, 1, 7))[0, :, 0]
    sums = np.stack([x.sum(0), x.sum(0) - 2 * x[0]])
    signs = np.where(gamma * (0.25 * sums - 0.5) / 0.5 + beta >= 0, 1, -1)  # all of it exact in binary
    assert np.array_equal(found, [signs.sum(0), signs[0] - signs[1]])


def folded_ops(*modules, channels=3):
    path = folded_ops.path
    onebit.export(nn.Sequential(*modules).eval(), path, torch.zeros(1, channels, 8, 8))
    return [node.op for node in read_model(path).graph.nodes]


def test_what_is_folded_and_what_is_not(tmp_path):
    folded_ops.path = tmp_path / "net.onebit"
    conv, norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
    one_bit = onebit.ProjectionConv2d(3, 3, 3, padding=1, activation_bits=1)
    assert folded_ops(conv, norm) == ["conv2d"]
    assert folded_ops(norm, norm) == ["affine"]
    assert folded_ops(norm, conv) == ["affine", "conv2d"], "padding is behind the norm"
    assert folded_ops(nn.ReLU(), norm) == ["relu", "affine"]
    assert folded_ops(norm, one_bit) == ["threshold", "bconv2d", "affine"]
    assert folded_ops(norm, nn.PReLU(), one_bit) == ["threshold", "bconv2d", "affine"]
    assert folded_ops(norm, nn.PReLU(init=-0.1), one_bit) == ["affine", "prelu", "sign", "bconv2d", "affine"]
    assert folded_ops(norm, nn.PReLU(init=0.0), one_bit) == ["affine", "prelu", "sign", "bconv2d", "affine"]
    assert folded_ops(norm, nn.ReLU(), one_bit) == ["affine", "relu", "sign", "bconv2d", "affine"]
    assert folded_ops(norm, nn.Hardtanh(0.5, 1), one_bit) == ["affine", "clamp", "sign", "bconv2d", "affine"]
    assert folded_ops(norm, nn.Hardtanh(-2, -0.5), one_bit) == ["affine", "clamp", "sign", "bconv2d", "affine"]
    assert folded_ops(nn.Dropout(), nn.Identity(), conv) == ["conv2d"]
    plain = onebit.rivals.BnnConv2d(3, 3, 3, padding=1)  # its scale is 1, which makes floats of sums all the same
    assert folded_ops(plain, nn.MaxPool2d(2), nn.ReLU()) == ["sign", "bconv2d", "max_pool2d", "affine", "relu"]
    assert folded_ops(plain, plain) == ["sign", "bconv2d", "threshold", "bconv2d", "affine"]
    negative = onebit.rivals.AbcConv2d(3, 3, 3, activation_bits=1)
    with torch.no_grad():
        negative.beta.fill_(-1.0)
    pool = nn.MaxPool2d(2)
    assert folded_ops(one_bit, pool, norm, one_bit)[2:4] == ["max_pool2d", "threshold"]
    assert folded_ops(negative, pool, norm, one_bit)[2:6] == ["affine", "max_pool2d", "threshold", "bconv2d"]


@pytest.mark.parametrize(
    ("scale", "goes"), [([0.5, 2.0], True), ([0.5, 0.0], True), ([0.5, -1.0], False), ([-1.0, -2.0], False)]
)
def test_a_scale_goes_behind_a_pool_only_if_it_keeps_every_order(scale, goes):
    """One channel of a negative scale is enough: of it the smallest sum would be the largest number."""
    lowered = Lowered(Builder((3, 2, 2)), "pool")
    lowered.builder.add("sign", "bits", "input")
    kernels = np.array([[1, 1, 1], [1, -1, 1]], np.float32).reshape(2, 3, 1, 1)
    tensors = {"kernels": pack_kernels(kernels)}
    lowered.builder.add("bconv2d", "conv", "bits", tensors=tensors, out_channels=2, kernel_size=[1, 1])
    lowered.builder.affine("scaled", "conv", np.array(scale), np.array([0.25, -1.0]))
    lowered.builder.add("max_pool2d", "pool", "scaled", kernel_size=[2, 2], stride=[2, 2])
    graph = fold(lowered)
    assert [node.op for node in graph.nodes][2:] == (["max_pool2d", "affine"] if goes else ["affine", "max_pool2d"])
    x = np.random.default_rng(0).normal(size=(5, 3, 2, 2)).astype(np.float32)
    sums = np.einsum("oc,nchw->nohw", kernels[:, :, 0, 0], np.where(x >= 0, 1, -1))
    floats = np.array(scale).reshape(-1, 1, 1) * sums + np.array([0.25, -1.0]).reshape(-1, 1, 1)
    net = Model(Graph(graph.input_shape, [narrowed(node) for node in graph.nodes]))
    np.testing.assert_array_equal(Reference(net)(x)[:, :, 0, 0], floats.max(axis=(2, 3)))


@pytest.mark.parametrize(
    ("low", "high", "goes"),
    [(-1.0, 1.0, True), (-1.0, 0.0, True), (-1.0, None, True), (None, 0.0, True), (None, 2.0, True),
     (0.0, 1.0, False), (0.0, None, False), (0.5, 1.0, False), (-1.0, -0.5, False), (None, -0.5, False)],
)  # fmt: skip
def test_a_clamp_before_a_sign_goes_only_if_it_keeps_every_sign(low, high, goes):
    """clamp(0, ...) makes 0 of what is negative, and the sign of that is +1."""
    lowered = Lowered(Builder((1, 1, 3)), "bits")
    lowered.builder.add("clamp", "clamped", "input", low=low, high=high)
    lowered.builder.add("sign", "bits", "clamped")
    graph = fold(lowered)
    assert [node.op for node in graph.nodes] == (["sign"] if goes else ["clamp", "sign"])
    floats = Node("floats", "affine", ("bits",), {}, {"scale": np.ones(1, np.float32)})
    net = Model(Graph(graph.input_shape, [*graph.nodes, floats]))
    x = np.float32([-3, -0.25, 0]).reshape(1, 1, 1, 3)
    expected = np.where(np.clip(x, low, high) >= 0, 1, -1)
    np.testing.assert_array_equal(Reference(net)(x), expected)
