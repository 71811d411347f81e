"""Float convolutions with fewer multiplications: right in every shape, and left where they may not go this way."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines import HERE, assert_close, both
from onebit.engine import Engine
from onebit.packing import pack_signs
from wire_models import Chain

pytestmark = pytest.mark.skipif("avx2" not in HERE, reason="this machine has no avx2")


def goes_this_way(model):
    """Transformed weights are larger than the plain ones, and kept beside them."""
    plain, both_kinds = (Engine(model, isa).info()["weight_bytes"] for isa in ("scalar", "avx2"))
    return both_kinds > 2 * plain


def net_of(channels, outputs, taps, stride, sides, padding):
    net = Chain(channels, *sides)
    tensors = {"weight": net.floats(outputs, channels, taps, taps), "bias": net.floats(outputs)}
    return net.add("conv2d", tensors=tensors, stride=[stride, stride], padding=padding)


def pictures(model, count=2):
    return np.random.default_rng(0).normal(size=(count, *model.graph.input_shape)).astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_shape(data):
    taps, stride = data.draw(st.sampled_from(((3, 1), (4, 1), (5, 2), (6, 2), (7, 2), (8, 2))))
    channels = data.draw(st.sampled_from((8, 9, 15, 17, 64) if stride == 1 else (2, 3, 5, 16)))
    outputs = data.draw(st.sampled_from((16, 17, 31, 48)))
    sides = [data.draw(st.integers(21, 30)) * stride + data.draw(st.integers(0, stride - 1)) for _ in "hw"]
    padding = [data.draw(st.integers(0, 4)) for _ in range(4)]
    net = net_of(channels, outputs, taps, stride, sides, padding)
    for op in data.draw(st.lists(st.sampled_from(("prelu", "affine", "relu")), max_size=2)):
        tensors = {"prelu": {"slope": net.floats(outputs)}, "affine": {"scale": net.floats(1)}}.get(op, {})
        net.add(op, tensors=tensors)
    model = net.model()
    assert goes_this_way(model)
    assert_close(model, pictures(model), "avx2")


def test_padding_that_is_larger_than_the_image():
    model = net_of(8, 16, 3, 1, (5, 3), [20, 1, 7, 30]).model()
    assert goes_this_way(model)
    assert_close(model, pictures(model), "avx2")


def test_a_residual_and_bits():
    """What follows sees the same pixels as after a plain convolution: a sum over its residual, then signs."""
    net = Chain(17, 23, 22)
    tensors = {"weight": net.floats(17, 17, 3, 3), "bias": net.floats(17)}
    net.add("conv2d", "conv", tensors=tensors, padding=[1] * 4)
    net.add("add", "sum", ["conv", "input"]).add("sign", "bits").bconv(17, 4)
    net.add("affine", "numbers", tensors={"scale": np.ones(1, np.float32)})
    model = net.model()
    assert goes_this_way(model)
    found, expected = both(model, pictures(model), "avx2")
    assert (found == expected).mean() > 0.99  # a sum within rounding of 0 may take the other sign


@pytest.mark.parametrize("wild", [np.nan, np.inf, -np.inf, 3e38, 2.0**65, -512.0])
def test_wild_numbers_stay_where_they_are(wild):
    """One is seen by the 9 windows that hold it, and not by their neighbours in a tile: not even in rounding."""
    model = net_of(8, 16, 3, 1, (24, 24), [1, 1, 1, 1]).model()
    assert goes_this_way(model)
    x = pictures(model)
    x[0, 3, 9, 13] = wild
    found, expected = both(model, x, "avx2")
    windows = np.zeros((24, 24), bool)
    windows[8:11, 12:15] = True
    elsewhere = np.broadcast_to(~windows, found[0].shape)
    np.testing.assert_allclose(found[0][elsewhere], expected[0][elsewhere], atol=2e-5)
    assert not (np.abs(found[0][~elsewhere]) < 1).any()
    np.testing.assert_allclose(found[1], expected[1], atol=1e-4)


def some_zeros(count):
    """Shifts or thresholds, of which one channel has none."""
    found = np.ones(count, np.float32)
    found[3] = 0
    return found


BETWEEN = {  # a convolution and the bits that are made of it
    "nothing": lambda net: net.add("sign"),
    "shifts of some channels": lambda net: net.add(
        "affine", tensors={"scale": np.ones(16, np.float32), "shift": 0.125 * some_zeros(16)}
    ).add("sign"),
    "thresholds of either direction": lambda net: net.add(
        "threshold", tensors={"thresholds": some_zeros(16), "at_most": pack_signs(net.floats(16))}
    ),
    "thresholds where shifts are": lambda net: net.add(
        "affine", tensors={"scale": np.ones(16, np.float32), "shift": np.full(16, 0.125, np.float32)}
    ).add("threshold", tensors={"thresholds": 0.125 * some_zeros(16), "at_most": pack_signs(net.floats(16))}),
    "a pool": lambda net: net.add("max_pool2d", kernel_size=[2, 2], stride=[1, 1]).add("sign"),
    "another convolution": lambda net: (
        net.add("relu").add("conv2d", tensors={"weight": net.floats(16, 16, 1, 1)}).add("sign")
    ),
    "a slice": lambda net: net.add("slice", start=0, stop=16).add("sign"),
}


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_background_that_is_exactly_0(between):
    """Sums over nothing but zeros, and sums that cancel, decide a sign: rounding must not."""
    net = Chain(16, 30, 30)
    net.add("conv2d", tensors={"weight": net.floats(16, 16, 3, 3)}, padding=[1, 1, 1, 1])
    between(net)
    model = net.bconv(16, 4).add("affine", tensors={"scale": np.ones(1, np.float32)}).model()
    x = np.zeros((1, 16, 30, 30), np.float32)
    x[0, :, 11:19, 10:18] = np.random.default_rng(0).normal(size=(16, 8, 8))
    found, expected = both(model, x, "avx2")
    np.testing.assert_array_equal(found, expected)


SHIFTED = {
    "a bias": lambda net: net.nodes[0].tensors.update(bias=net.floats(16)) or net,
    "a pool and a norm": lambda net: net.add("max_pool2d", kernel_size=[2, 2], stride=[1, 1]).add(
        "affine", tensors={"scale": net.floats(16), "shift": net.floats(16)}
    ),
}


@pytest.mark.parametrize("shifted", SHIFTED.values(), ids=SHIFTED)
def test_signs_behind_shifts_go_this_way(shifted):
    net = Chain(16, 30, 30)
    net.add("conv2d", tensors={"weight": net.floats(16, 16, 3, 3)}, padding=[1, 1, 1, 1])
    net = shifted(net).add("sign").bconv(16, 4).add("affine", tensors={"scale": np.ones(1, np.float32)})
    assert goes_this_way(net.model())


def test_it_is_nearly_as_exact_as_the_plain_way():
    """Against sums of doubles: a stem as nets for large images have it, in units of its outputs' deviation."""
    net = net_of(3, 64, 7, 2, (64, 64), [3, 3, 3, 3])
    model, tensors = net.model(), net.nodes[0].tensors
    x = pictures(model)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (3, 3), (3, 3)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (7, 7), (2, 3))[:, :, ::2, ::2]
    exact = np.einsum("nchwyx,ocyx->nohw", windows, tensors["weight"]) + tensors["bias"][:, None, None]
    worst = {isa: np.abs(Engine(model, isa)(x) - exact).max() / exact.std() for isa in ("scalar", "avx2")}
    assert 0 < worst["scalar"] < 5e-6
    assert worst["avx2"] < 1e-5


PLAIN = {
    "few planes": {"channels": 7},
    "few outputs": {"outputs": 15},
    "few tiles": {"sides": (16, 16)},
    "tiles that are mostly empty": {"sides": (1, 200)},
    "a row of tiles that is very long": {"channels": 16, "sides": (8, 6000)},
    "many weights": {"channels": 160, "outputs": 160},
    "small kernels with a stride": {"strides": (2, 2), "sides": (48, 48)},
    "large kernels": {"taps": (5, 5)},
    "a stride of 3": {"taps": (9, 9), "strides": (3, 3), "sides": (90, 90)},
    "kernels that are not square": {"taps": (3, 4)},
    "strides that are not equal": {"taps": (3, 3), "strides": (1, 2), "sides": (24, 48)},
    "dilated rows": {"dilation": [2, 1]},
    "dilated columns": {"dilation": [1, 2]},
    "groups": {"channels": 32, "outputs": 32, "groups": 2},
    "large weights": {"size": 2e5},
}


@pytest.mark.parametrize("case", PLAIN.values(), ids=PLAIN)
def test_shapes_that_go_the_plain_way(case):
    """Each but for one thing as those that don't."""
    usual = {"channels": 8, "outputs": 16, "taps": (3, 3), "strides": (1, 1), "sides": (24, 24), "size": 1.0}
    assert goes_this_way(plain_net(**usual))
    model = plain_net(**usual | case)
    assert not goes_this_way(model)
    assert_close(model, pictures(model, 1), "avx2")


def plain_net(channels, outputs, taps, strides, sides, size, groups=1, **options):
    net = Chain(channels, *sides)
    weight = np.float32(size) * net.floats(outputs, channels // groups, *taps)
    options |= {"stride": list(strides), "padding": [1] * 4, "groups": groups}
    return net.add("conv2d", tensors={"weight": weight}, **options).model()


def test_several_blocks_and_several_threads():
    """Blocks of rows of tiles, the last of them smaller, from threads that run at the same time."""
    model = net_of(32, 16, 3, 1, (122, 121), [1, 1, 1, 1]).model()
    assert goes_this_way(model)
    assert_close(model, pictures(model, 1), "avx2")
    engine, x = Engine(model, "avx2"), pictures(model, 8)
    expected = engine(x)
    with ThreadPoolExecutor(4) as threads:
        for i, found in enumerate(threads.map(engine, [x[i : i + 1] for i in range(8)])):
            np.testing.assert_array_equal(found[0], expected[i])


def test_levels_go_the_plain_way():
    """Their sums are whole numbers, and must stay exact."""
    net = Chain(16, 24, 24).add("quantize", per_unit=20.0, low=-128, high=127).bconv(16, 16, padding=[1] * 4)
    model = net.add("affine", tensors={"scale": np.ones(1, np.float32)}).model()
    found, expected = both(model, pictures(model), "avx2")
    np.testing.assert_array_equal(found, expected)
