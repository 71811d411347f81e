"""A convolution of floats whose rows go to the pool behind it, without a value of their own between the two."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines import HERE, assert_close, assert_same, each_isa
from onebit import fusing
from onebit.compiling import PASSED, largest_pair, place_values
from onebit.engine import Engine, operations_of
from onebit.fusing import fuse
from onebit.native import native
from test_engine import batch_for, sums_of
from test_native import FLOAT, WINDOW, an_output, floats
from wire_models import Chain


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch):
    monkeypatch.setattr(fusing, "LARGE", 0)
    # Also windows that overlap more than is worth it: the C side must be right for all.
    monkeypatch.setattr(
        fusing, "_moves_on", lambda node: node.op in fusing.WINDOW_POOLS and node.attributes["stride"][0] > 1
    )
    monkeypatch.setattr("onebit.native.cores", lambda: 64)


def conv(net, outputs=20, **options):
    planes = net.shape[0]
    taps = options.pop("taps", (3, 3))
    net.add("conv2d", "conv", tensors={"weight": net.floats(outputs, planes, *taps)}, **options)
    return net


def pool(net, op="max_pool2d", **options):
    return net.add(op, "pool", **{"kernel_size": [3, 3], "stride": [2, 2], "padding": [1, 1]} | options)


def steps_of(net):
    return [operations_of(step) for step in fuse(net.model())]


@each_isa
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_rows_are_what_the_pool_needs(isa, data):
    draw = data.draw
    taps, stride = draw(st.sampled_from((((1, 1), 1), ((3, 3), 1), ((3, 3), 2), ((7, 7), 2), ((2, 4), 3))))
    net = Chain(draw(st.sampled_from((1, 3, 8))), draw(st.integers(9, 40)), draw(st.integers(9, 40)))
    conv(
        net,
        draw(st.sampled_from((1, 7, 16, 33))),
        taps=taps,
        stride=[stride] * 2,
        padding=[draw(st.integers(0, 3))] * 4,
    )
    if draw(st.booleans()):
        net.add("relu")
    rows, columns = net.model().values[net.nodes[-1].name].shape[1:]
    kernel = [draw(st.integers(1, min(4, side))) for side in (rows, columns)]
    options = {"kernel_size": kernel, "stride": [draw(st.integers(2, 5)), draw(st.integers(1, 3))]}
    options |= {"padding": [side // 2 for side in kernel], "ceil_mode": draw(st.booleans())}
    op = draw(st.sampled_from(("max_pool2d", "avg_pool2d")))
    if op == "max_pool2d" and kernel[0] > 1 and rows > 2 * kernel[0]:
        options["dilation"] = [draw(st.integers(1, (rows + 2 * options["padding"][0] - 1) // kernel[0])), 1]
    pool(net, op, **options).add("affine", tensors={"scale": np.full(1, 0.5, np.float32)})
    model = net.model()
    engine, x = Engine(model, isa), batch_for(model, 2)
    assert [step["operations"][-2:] for step in engine.info()["steps"]] == [[op, "affine"]]
    assert_close(model, x, isa)
    np.testing.assert_array_equal(Engine(model, isa, threads=3)(x[:1]), engine(x[:1]))


@each_isa
def test_images_that_are_not_tame(isa):
    """Those go another way through the convolution, and so do their rows."""
    model = pool(conv(Chain(8, 40, 40), 16, padding=[1, 1, 1, 1])).model()
    x = batch_for(model, 3)
    x[1] *= 1000
    assert "Winograd" in Engine(model, isa).info()["steps"][0]["kernel"] or isa == "scalar"
    assert_close(model, x, isa)
    x[2, 0, 5, 5] = np.nan
    assert np.isnan(Engine(model, isa)(x)[2]).any()


@each_isa
@pytest.mark.parametrize(("dilation", "stride"), [(3, 2), (4, 2), (5, 2), (5, 3), (7, 2)])
def test_dilated_windows_at_the_upper_border(isa, dilation, stride):
    """The first window of a band begins further down than the one after it."""
    for rows in (40, 63):
        net = conv(Chain(3, rows, 6), 32, padding=[1, 1, 1, 1])
        pool(net, kernel_size=[3, 1], dilation=[dilation, 1], stride=[stride, 1], padding=[1, 0])
        model = net.model()
        assert_close(model, batch_for(model), isa)


@each_isa
def test_dilated_windows_at_the_lower_border(isa):
    """The last window of a band reaches less far down than the one before it."""
    for rows in range(5, 30):
        net = conv(Chain(3, rows, 6), 16, padding=[1, 1, 1, 1])
        pool(net, kernel_size=[3, 1], dilation=[2, 1], stride=[3, 1], padding=[1, 0], ceil_mode=True)
        model = net.model()
        assert_close(model, batch_for(model), isa)


@each_isa
@pytest.mark.parametrize("weights", ["signs", "bytes", "large bytes"])
def test_rows_of_levels(isa, weights):
    """W1A8, weights of 8 bits, and weights whose sums are too large for the kernels: the same whole numbers."""
    net = Chain(5, 23, 19).add("quantize", per_unit=40.0, low=-100, high=127)
    if weights == "signs":
        net.bconv(5, 40, padding=[1, 1, 1, 1])  # from 32 on they are looked up
    else:
        most = 64 if weights == "bytes" else 127
        tensors = {"weight": net.rng.integers(-most, most + 1, (24, 5, 3, 3)).astype(np.int8)}
        net.add("conv2d", tensors=tensors, padding=[1, 1, 1, 1])
    net.add("affine", tensors={"scale": np.full(1, 0.25, np.float32)})
    model = pool(net).model()
    engine, x = Engine(model, isa), batch_for(model, 2)
    assert engine.info()["steps"][-1]["operations"][-1] == "max_pool2d"
    assert len(engine.info()["steps"]) == 2  # quantize, and all the rest
    assert_same(model, x, isa)
    np.testing.assert_array_equal(Engine(model, isa, threads=3)(x[:1]), engine(x[:1]))


def test_which_rows_are_passed():
    together = [["conv2d", "max_pool2d"]]
    assert steps_of(pool(conv(Chain(3, 9, 9)))) == together
    assert steps_of(pool(conv(Chain(3, 9, 9)), stride=[1, 1])) != together  # each row would be made three times
    assert steps_of(pool(conv(Chain(3, 9, 9)).add("relu"))) == [["conv2d", "relu", "max_pool2d"]]
    assert steps_of(sums_of(pool(Chain(20, 9, 9).add("sign").bconv(20, 20)))) == [
        ["sign"],
        ["bconv2d"],
        ["max_pool2d", "affine"],
    ]
    grouped = Chain(4, 9, 9).add("conv2d", tensors={"weight": np.ones((4, 2, 3, 3), np.float32)}, groups=2)
    assert steps_of(pool(grouped)) == [["conv2d"], ["max_pool2d"]]
    twice = pool(conv(Chain(3, 9, 9)))
    twice.add("relu", "other", ["conv"]).add("max_pool2d", "last", ["other"], kernel_size=[1, 1], stride=[2, 2])
    twice.add("concatenate", inputs=["pool", "last"])
    assert ["conv2d"] in steps_of(twice)  # something else reads the rows
    (step,) = Engine(pool(conv(Chain(3, 9, 9))).model()).info()["steps"]
    assert (step["name"], step["operations"]) == ("conv", ["conv2d", "max_pool2d"])  # of the first of its nodes


@each_isa
@pytest.mark.parametrize("op", ["max_pool2d", "avg_pool2d"])
def test_a_sum_is_not_passed(isa, op):
    """A residual is added to a value that is there as a whole: the C side takes no other plan."""
    net = conv(Chain(8, 20, 19).add("abs", "image"), 8, padding=[1, 1, 1, 1])
    model = pool(net.add("add", inputs=["conv", "image"]), op).model()
    assert [operations_of(step) for step in fuse(model)] == [["abs"], ["conv2d", "add"], [op]]
    assert_close(model, batch_for(model, 2), isa)


def test_what_is_small_stays_whole(monkeypatch):
    monkeypatch.undo()
    overlapping = pool(conv(Chain(3, 200, 200)), kernel_size=[7, 7], padding=[3, 3])
    assert steps_of(overlapping) == [["conv2d"], ["max_pool2d"]]  # rows would be made three times
    assert steps_of(pool(conv(Chain(3, 9, 9)))) == [["conv2d"], ["max_pool2d"]]
    assert steps_of(pool(conv(Chain(3, 200, 200)))) == [["conv2d", "max_pool2d"]]


def test_the_image_lives_until_the_last_row_is_made():
    """What the pool writes must not lie where the convolution still reads."""
    net = pool(conv(Chain(20, 9, 9).add("abs", "image"), padding=[1, 1, 1, 1]))
    model = net.model()
    offsets = place_values(model, fuse(model))
    size = 20 * 81 * 4
    assert "conv" not in offsets
    assert offsets["pool"] >= offsets["image"] + size or offsets["image"] >= offsets["pool"] + 20 * 25 * 4


def test_the_largest_pair():
    net = Chain(1, 4, 4).add("abs", "a").add("sign", "b").bconv(1, 3, padding=[1, 1, 1, 1])
    net.add("affine", "c", tensors={"scale": np.ones(1, np.float32)})
    assert largest_pair(net.model()) == 2 * 3 * 16 * 4  # the sums and what is made of them


def a_net(passed=True):
    """Values: 0 the input, 1 of 4 channels, passed on; 2 what a pool makes of it; 3 of its shape."""
    net = native().Net(HERE[0])
    net.value(FLOAT, 2, 5, 6, 0)
    net.value(FLOAT, 4, 5, 6, PASSED if passed else 8192)
    net.value(FLOAT, 4, 3, 3, 2048)
    net.value(FLOAT, 4, 5, 6, 4096)
    return net


def convolve(net, **changes):
    weight = floats(4, 2, 3, 3)
    net.conv2d(0, **WINDOW, weight=weight, keeps_zeros=False, output=an_output(**{"numbers_to": 1} | changes))


def pool_it(net, **changes):
    net.pool(1, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), 0, (3, 3), an_output(**{"numbers_to": 2} | changes))


def test_a_plan_that_passes_rows():
    net = a_net()
    convolve(net)
    pool_it(net)
    net.finish(2)
    net.run(floats(1, 2, 5, 6), False, floats(1, 4, 3, 3), None)
    assert net.workspace_bytes() < a_net(passed=False).workspace_bytes() + 4096


def test_wrong_plans_are_refused():
    def pools_first(net):
        pool_it(net)

    def something_between(net):
        convolve(net)
        net.unary(0, 5, 0)

    def read_by_another(net):
        convolve(net)
        net.unary(1, 3, 0)

    def made_by_another(net):
        net.unary(0, 1, 0)

    def pooled_twice(net):
        convolve(net)
        pool_it(net)
        pool_it(net, numbers_to=2)

    def never_pooled(net):
        net.pool(0, (5, 6), (1, 1), (1, 1), (0,) * 4, 0, (1, 1), an_output(2, numbers_to=4))
        convolve(net)
        net.finish(4)

    def with_a_residual(net):
        convolve(net, numbers_to=3)
        convolve(net, residual=3)

    def the_output(net):
        convolve(net)
        net.finish(1)

    for wrong, message in (
        (pools_first, "not passed on here"),
        (something_between, "to what is no pool"),
        (read_by_another, "has no place"),
        (made_by_another, "has no place"),
        (pooled_twice, "not passed on here"),
        (never_pooled, "passed on to nothing"),
        (with_a_residual, "passed on with others"),
        (the_output, "has no place"),
    ):
        net = a_net()
        net.value(FLOAT, 2, 1, 1, 16384)
        net.value(FLOAT, 2, 5, 6, 16448)
        with pytest.raises(ValueError, match=message):
            wrong(net)
    net = native().Net(HERE[0])
    with pytest.raises(ValueError, match="not of floats"):
        net.value(1, 2, 5, 6, PASSED)
    grouped = WINDOW | {"groups": 2}
    net = a_net()
    with pytest.raises(ValueError, match="can't be passed on from here"):
        net.conv2d(0, **grouped, weight=floats(4, 1, 3, 3), keeps_zeros=False, output=an_output(numbers_to=1))
