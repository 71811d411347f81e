"""Large windows that overlap: rows first and then columns, in the engine; by hand they are looked at one by one."""

import numpy as np
import pytest

from engines import HERE, each_isa
from onebit.checking import looked_at
from onebit.engine import Engine
from onebit.reference import Reference
from wire_models import Chain

POOLS = {
    "one pixel on": {"kernel_size": [16, 16], "stride": [1, 1]},
    "two on, padded": {"kernel_size": [24, 20], "stride": [2, 1], "padding": [12, 10]},
    "beyond the image": {"kernel_size": [19, 30], "stride": [2, 2], "padding": [9, 15], "ceil_mode": True},
    "dilated": {"kernel_size": [9, 13], "stride": [1, 1], "padding": [4, 6], "dilation": [3, 2]},  # one by one
    "dilated, rows first": {"kernel_size": [15, 15], "stride": [1, 1], "padding": [7, 7], "dilation": [2, 2]},
    "small": {"kernel_size": [3, 3], "stride": [2, 2], "padding": [1, 1]},
}


def taps_of(at, sizes):
    """Where the taps of every window are, along both axes."""
    padding, dilation = at.get("padding", [0, 0]), at.get("dilation", [1, 1])
    sides = []
    for size, kernel, stride, pad, apart in zip(
        sizes, at["kernel_size"], at["stride"], padding, dilation, strict=True
    ):
        room = size + 2 * pad - apart * (kernel - 1) - 1
        count = (-(-room // stride) if at.get("ceil_mode") else room // stride) + 1
        if (count - 1) * stride >= size + pad:
            count -= 1
        sides.append([[n * stride - pad + tap * apart for tap in range(kernel)] for n in range(count)])
    return sides


def by_hand(at, x, of):
    """`of` what is in a window (N, channels, taps) and how many are in it or its padding, for every window."""
    height, width = x.shape[2:]
    padding, (tops, lefts) = at.get("padding", [0, 0]), taps_of(at, x.shape[2:])
    made = np.empty((*x.shape[:2], len(tops), len(lefts)))
    for row, ys in enumerate(tops):
        for column, xs in enumerate(lefts):
            inside = [(y, x) for y in ys for x in xs if 0 <= y < height and 0 <= x < width]
            counted = [(y, x) for y in ys for x in xs if y < height + padding[0] and x < width + padding[1]]
            rows, columns = np.array(inside).T
            made[:, :, row, column] = of(x[:, :, rows, columns], len(counted))
    return made


def images(channels):
    x = np.random.default_rng(0).normal(size=(2, channels, 31, 30)).astype(np.float32)
    x[1, 0, 3, 4] = np.nan
    x[1, -1, 20, 20] = np.inf
    return x


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("channels", [1, 3, 40])
def test_the_largest(channels, pool):
    x = images(channels)
    expected = by_hand(POOLS[pool], x, lambda inside, _: inside.max(axis=2))
    model = Chain(channels, 31, 30).add("max_pool2d", **POOLS[pool]).model()
    for net in (Reference(model), *(Engine(model, isa) for isa in HERE)):
        np.testing.assert_array_equal(net(x), expected)


@pytest.mark.parametrize("pool", [name for name in POOLS if "dilation" not in POOLS[name]])
@pytest.mark.parametrize("padding_counts", [True, False])
def test_means(padding_counts, pool):
    x = np.nan_to_num(images(33), posinf=3.0)

    def mean(inside, counted):
        return inside.sum(axis=2, dtype=np.float64) / (counted if padding_counts else inside.shape[2])

    expected = by_hand(POOLS[pool], x, mean)
    model = Chain(33, 31, 30).add("avg_pool2d", **POOLS[pool], count_include_pad=padding_counts).model()
    for net in (Reference(model), *(Engine(model, isa) for isa in HERE)):
        np.testing.assert_allclose(net(x), expected, rtol=1e-5, atol=1e-6)


@each_isa
def test_sums(isa):
    """Of bits, before they become floats."""
    net = Chain(8, 31, 30).add("sign").bconv(8, 6, padding=[1] * 4).add("max_pool2d", **POOLS["two on, padded"])
    net.add("affine", tensors={"scale": np.full(6, 0.5, np.float32)})
    x = images(8)
    np.testing.assert_array_equal(Engine(net.model(), isa)(x), Reference(net.model())(x))


@each_isa
def test_parts_that_overlap(isa):
    """More parts than pixels."""
    model = Chain(3, 12, 13).add("adaptive_avg_pool2d", output_size=[50, 47]).model()
    x = images(3)[:1, :, :12, :13].copy()
    expected = np.empty((1, 3, 50, 47))
    for row in range(50):
        for column in range(47):
            part = x[:, :, row * 12 // 50 : -(-(row + 1) * 12 // 50)]
            part = part[..., column * 13 // 47 : -(-(column + 1) * 13 // 47)]
            expected[:, :, row, column] = part.mean(axis=(2, 3), dtype=np.float64)
    for net in (Reference(model), Engine(model, isa)):
        np.testing.assert_allclose(net(x), expected, rtol=1e-5, atol=1e-6)


def test_what_is_looked_at():
    """What the limit of work counts; and the engine does so: it keeps a row of the image for what goes by axes."""
    rows, counts = {}, {}
    for pool in ("one pixel on", "small", "dilated, rows first"):
        model = Chain(2, 31, 30).add("max_pool2d", **POOLS[pool]).model()
        counts[pool] = looked_at(model.graph.nodes[0], model.values)
        net = Engine(model, "scalar").info()["workspace_bytes"]
        values = [-(-4 * value.size // 64) * 64 for value in model.values.values()]
        rows[pool] = net - sum(values)
    assert counts["one pixel on"] == 2 * 16 * (16 * 30 + 16 * 15)  # rows of windows, times what one takes
    assert counts["small"] == 2 * 16 * 3 * 3 * 15
    assert rows["small"] == -(-4 * 2 * 15 // 64) * 64
    assert rows["one pixel on"] == -(-4 * 2 * (15 + 30) // 64) * 64
    assert rows["dilated, rows first"] == -(-4 * 2 * (16 + 30) // 64) * 64
