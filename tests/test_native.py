"""The C side checks every size of a plan again: a wrong one is an error with a line, and nothing else happens.

Run under the sanitizers, too (`make test-sanitized`).
"""

import json
import random

import numpy as np
import pytest
from safetensors.numpy import load, save

from engines import HERE, each_isa
from mutations import change_something, description_of, is_small
from onebit.container import KEY
from onebit.engine import Engine
from onebit.errors import ModelFileError
from onebit.modelfile import pack_model, unpack_model
from onebit.native import native
from wire_models import wire_models

FLOAT, BITS, LEVELS, SUMS = range(4)
INFINITY = float("inf")
WINDOW = {
    "kernel": (3, 3),
    "stride": (1, 1),
    "dilation": (1, 1),
    "padding": (1, 1, 1, 1),
    "groups": 1,
    "outputs": 4,
}
SIGNED = WINDOW | {"projections": 1, "masks": None}
SIGNS = np.ones((4, 2, 3, 3), np.int8)


def a_net():
    """Values: 0 the input, 1 bits, 2 and 3 floats of 4 channels, 4 sums, 5 levels from -100 on, 6 others."""
    net = native().Net(HERE[0])
    net.value(FLOAT, 2, 5, 6, 0)
    net.value(BITS, 2, 5, 6, 1024)
    net.value(FLOAT, 4, 5, 6, 2048)
    net.value(FLOAT, 4, 5, 6, 4096)
    net.value(SUMS, 4, 5, 6, 8192)
    net.value(LEVELS, 2, 5, 6, 16384, low=-100)
    net.value(LEVELS, 2, 5, 6, 32768)
    return net


def an_output(channels=4, **changes):
    plain = {
        "scale": None, "shift": None, "first": (None, -INFINITY, INFINITY), "residual": -1,
        "second": (None, -INFINITY, INFINITY), "numbers_to": 2, "bits_to": -1, "thresholds": None, "at_most": None,
    }  # fmt: skip
    return native().Output(channels=channels, **(plain | changes))


def bits_output(**changes):
    zeros = {"thresholds": np.zeros(2, np.float32), "at_most": np.zeros(2, np.uint8)}
    return an_output(2, **({"numbers_to": -1, "bits_to": 1} | zeros | changes))


def levels_output(**changes):
    return an_output(2, **({"numbers_to": -1, "levels_to": 5, "high": 100} | changes))


def with_bits():
    """The net, once bits and levels are made."""
    net = a_net()
    net.pointwise(0, bits_output())
    net.pointwise(0, levels_output())
    return net


def of_many_taps(planes, weight):
    """A convolution of levels whose sums reach 255 * planes * weight."""
    net = native().Net(HERE[0])
    net.value(FLOAT, planes, 1, 1, 0)
    net.value(LEVELS, planes, 1, 1, 1 << 20)
    net.value(FLOAT, 1, 1, 1, 2 << 20)
    net.pointwise(0, an_output(planes, numbers_to=-1, levels_to=1))
    window = {"kernel": (1, 1), "padding": (0,) * 4, "outputs": 1}
    weights = np.full((1, planes, 1, 1), weight, np.int8)
    net.level_conv2d(1, **WINDOW | window, weight=weights, output=an_output(1))


def floats(*shape):
    return np.zeros(shape, np.float32)


WRONG = {
    "no value 9": lambda net: net.pointwise(9, bits_output()),
    "no value -2": lambda net: net.pointwise(-2, bits_output()),
    "wrong kind": lambda net: net.level_conv2d(0, **WINDOW, weight=SIGNS, output=an_output()),
    "before it is made": lambda net: net.pointwise(3, an_output()),
    "is the input": lambda net: net.unary(0, 0, 0),
    "a value has sides": lambda net: net.value(FLOAT, 0, 1, 1, 0),
    "more than": lambda net: net.value(FLOAT, 1 << 14, 1 << 14, 2, 0),
    "unknown kind": lambda net: net.value(4, 1, 1, 1, 0),
    "lies at byte": lambda net: net.value(FLOAT, 1, 1, 1, 8),
    "71 weights": lambda net: net.bconv2d(1, **SIGNED, signs=SIGNS.ravel()[:71].copy(), output=an_output()),
    "0 groups": lambda net: net.bconv2d(1, **SIGNED | {"groups": 0}, signs=SIGNS, output=an_output()),
    "3 groups": lambda net: net.bconv2d(1, **SIGNED | {"groups": 3}, signs=SIGNS, output=an_output()),
    "out of bounds": lambda net: net.bconv2d(1, **SIGNED | {"stride": (0, 1)}, signs=SIGNS, output=an_output()),
    "window is larger": lambda net: net.bconv2d(
        1, **SIGNED | {"dilation": (9, 1)}, signs=SIGNS, output=an_output()
    ),
    "another shape than what": lambda net: net.bconv2d(
        1, **SIGNED | {"stride": (2, 1)}, signs=SIGNS, output=an_output()
    ),
    "4 outputs of 0 projections": lambda net: net.bconv2d(
        1, **SIGNED | {"projections": 0}, signs=SIGNS, output=an_output()
    ),
    "4 outputs of -4 projections": lambda net: net.bconv2d(
        1, **SIGNED | {"projections": -4}, signs=SIGNS, output=an_output()
    ),
    "4 outputs of 3 projections": lambda net: net.bconv2d(
        1, **SIGNED | {"projections": 3}, signs=SIGNS.repeat(4, axis=0)[:4], output=an_output()
    ),
    "144 weights": lambda net: net.bconv2d(1, **SIGNED | {"projections": 2}, signs=SIGNS, output=an_output()),
    "masks of 17 signs": lambda net: net.bconv2d(
        1, **SIGNED | {"projections": 2, "masks": np.ones(17, np.int8)}, signs=SIGNS[:2].copy(), output=an_output()
    ),
    "masks of 27 signs": lambda net: net.bconv2d(
        1, **SIGNED | {"projections": 2, "masks": np.ones((3, 3, 3), np.int8)}, signs=SIGNS[:2].copy(),
        output=an_output(),
    ),
    "masks of 0 signs": lambda net: net.bconv2d(
        1, **SIGNED | {"projections": 2, "masks": np.ones(0, np.int8)}, signs=SIGNS[:2].copy(), output=an_output()
    ),
    "tensors of 5 channels, not 4": lambda net: net.bconv2d(1, **SIGNED, signs=SIGNS, output=an_output(5)),
    "3 numbers for 4 channels": lambda net: an_output(scale=floats(3), shift=floats(4)),
    "scale without a shift": lambda net: net.bconv2d(1, **SIGNED, signs=SIGNS, output=an_output(scale=floats(4))),
    "low is more than": lambda net: net.bconv2d(
        1, **SIGNED, signs=SIGNS, output=an_output(first=(None, 1.0, 0.0))
    ),
    "residual has another": lambda net: net.bconv2d(1, **SIGNED, signs=SIGNS, output=an_output(residual=0)),
    "goes nowhere": lambda net: net.bconv2d(1, **SIGNED, signs=SIGNS, output=an_output(numbers_to=-1)),
    "what are not sums": lambda net: net.bconv2d(
        1, **SIGNED, signs=SIGNS, output=an_output(numbers_to=4, scale=floats(4), shift=floats(4))
    ),
    "without thresholds": lambda net: net.pointwise(0, bits_output(thresholds=None)),
    "convolution in groups": lambda net: net.conv2d(
        0, **WINDOW | {"groups": 2, "outputs": 2}, weight=floats(2, 1, 3, 3), keeps_zeros=False,
        output=bits_output(),
    ),
    "bits are wanted of a convolution": lambda net: net.bconv2d(
        1, **SIGNED | {"groups": 2, "outputs": 2}, signs=SIGNS[:2, :1].copy(), output=bits_output()
    ),
    "an unknown pool": lambda net: net.pool(0, (2, 2), (1, 1), (1, 1), (0,) * 4, 3, (4, 5), an_output(2)),
    "7 places": lambda net: net.pool(0, (2, 2), (1, 1), (1, 1), (0,) * 4, 0, (7, 5), an_output(2)),
    "no tap within": lambda net: net.pool(0, (1, 1), (1, 1), (1, 1), (1, 1, 1, 1), 0, (7, 8), an_output(2)),
    "no tap within the image": lambda net: net.pool(0, (1, 1), (1, 1), (1, 1), (0,) * 4, 0, (6, 6), an_output(2)),
    "has no tap": lambda net: net.adaptive_mean(0, (0, 1), an_output(2)),
    "too many parts": lambda net: net.adaptive_mean(0, (1, 1 << 17), an_output(2)),
    "don't make value": lambda net: net.binary(0, 0, 3, 0),
    "unknown function": lambda net: net.unary(0, 3, 8),
    "levels are out": lambda net: net.pointwise(0, levels_output(high=156)),
    "levels are out of": lambda net: net.pointwise(0, levels_output(per_unit=INFINITY)),
    "levels are out of b": lambda net: net.pointwise(0, levels_output(per_unit=-1.0)),
    "levels are out of bo": lambda net: net.pointwise(0, levels_output(per_unit=float("nan"))),
    "levels are out of bou": lambda net: net.pointwise(0, levels_output(high=0)),
    "levels are out of boun": lambda net: net.pointwise(0, levels_output(high=2**31 - 1)),
    "levels have another shape": lambda net: net.bconv2d(1, **SIGNED, signs=SIGNS, output=an_output(levels_to=5)),
    "value 1 is of the wrong": lambda net: net.pointwise(0, levels_output(levels_to=1)),
    "value 5 is of the wrong": lambda net: net.pointwise(5, an_output(2)),
    "levels are from -129 on": lambda net: net.value(LEVELS, 1, 1, 1, 0, low=-129),
    "levels are from 1 on": lambda net: net.value(LEVELS, 1, 1, 1, 0, low=1),
    "levels are from -1 on": lambda net: net.value(FLOAT, 1, 1, 1, 0, low=-1),
    "other levels than 5": lambda net: net.copy(5, 0, 6, 0, 2),
    "a sign is 0": lambda net: net.bconv2d(5, **SIGNED, signs=SIGNS * 0, output=an_output()),
    "would not fit": lambda net: of_many_taps(67_000, 127),
    "73 weights": lambda net: net.level_conv2d(5, **WINDOW, weight=np.zeros(73, np.int8), output=an_output()),
    "thresholds and at_most": lambda net: net.threshold(4, 1, np.zeros(4, np.int32), np.zeros(3, np.uint8)),
    "can't be copied": lambda net: net.copy(0, 1, 2, 0, 2),
    "can't be copied from 0 to 3": lambda net: net.copy(0, 0, 2, 3, 2),
    "unknown mode": lambda net: net.pad(1, 1, (0, 0, 0, 0), 0),
    "would be moved over": lambda net: net.copy(1, 0, 1, 0, 2),
    "a mean with dilation": lambda net: net.pool(0, (2, 2), (1, 1), (2, 1), (0,) * 4, 1, (3, 5), an_output(2)),
    "a pad of 5": lambda net: net.pad(0, 2, (5, 0, 0, 0), 1),
    "a pad makes another": lambda net: net.pad(0, 2, (0, 0, 0, 0), 1),
    "a reshape of": lambda net: net.reshape(0, 2),
    "is never made": lambda net: net.finish(3),
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG)
def test_wrong_plans_are_refused(message):
    with pytest.raises(ValueError, match=message):
        WRONG[message](with_bits())


def test_a_net_that_is_not_finished_does_not_run_and_a_finished_one_does_not_change():
    net = with_bits()
    with pytest.raises(RuntimeError, match="not finished"):
        net.run(floats(1, 2, 5, 6), False, floats(1, 4, 5, 6), None)
    net.bconv2d(1, **SIGNED, signs=SIGNS, output=an_output())
    net.finish(2)
    with pytest.raises(ValueError, match="no more values"):
        net.value(FLOAT, 1, 1, 1, 0)
    with pytest.raises(ValueError, match="finished"):
        net.unary(0, 3, 0)
    for images, outputs, seconds in (
        (floats(1, 2, 5, 5), floats(1, 4, 5, 6), None),
        (floats(1, 2, 5, 6), floats(2, 4, 5, 6), None),
        (floats(1, 2, 5, 6), floats(1, 4, 5, 6), np.zeros(9)),
    ):
        with pytest.raises(ValueError, match="wrong size"):
            net.run(images, False, outputs, seconds)
    net.run(floats(0, 2, 5, 6), False, floats(0, 4, 5, 6), None)


def test_what_is_refused_makes_nothing():
    net = native().Net(HERE[0])
    net.value(FLOAT, 2, 5, 6, 0)
    net.value(FLOAT, 4, 5, 6, 1024)
    with pytest.raises(ValueError, match="don't make"):
        net.binary(0, 0, 1, 0)
    with pytest.raises(ValueError, match="never made"):
        net.finish(1)


def test_outputs_of_another_type_are_refused():
    net = with_bits()
    net.bconv2d(1, **SIGNED, signs=SIGNS, output=an_output())
    net.finish(2)
    with pytest.raises(TypeError):
        net.run(floats(1, 2, 5, 6), False, np.zeros((1, 4, 5, 6)), None)


@pytest.mark.parametrize("sides", [(3, 5, 6), (2, 6, 6), (2, 4, 6), (2, 5, 7), (2, 5, 5)])
def test_every_side_of_what_is_made_counts(sides):
    """Of an input of 2 x 5 x 6, by steps that make what they read."""
    net = a_net()
    net.value(FLOAT, *sides, 1 << 17)
    if sides[0] == 2:
        with pytest.raises(ValueError, match="2 channels can't be copied from 0 to 0"):
            net.copy(0, 0, 7, 0, 2)
    with pytest.raises(ValueError, match="a pad makes another shape"):
        net.pad(0, 7, (0, 0, 0, 0), 1)
    with pytest.raises(ValueError, match="values 0 and 0 don't make value 7"):
        net.binary(0, 0, 7, 0)
    with pytest.raises(ValueError, match="a reshape of 240 bytes to"):
        net.reshape(0, 7)


@pytest.mark.parametrize("sides", [(4, 1, 1), (1, 4, 1), (1, 1, 4)])
def test_what_both_repeat_is_made_by_neither(sides):
    net = native().Net(HERE[0])
    net.value(FLOAT, 1, 1, 1, 0)
    net.value(FLOAT, *sides, 64)
    with pytest.raises(ValueError, match="values 0 and 0 don't make value 1"):
        net.binary(0, 0, 1, 0)


def test_seconds_are_added_to_what_is_there():
    """Image after image, and call after call."""
    net = with_bits()
    net.bconv2d(1, **SIGNED, signs=SIGNS, output=an_output())
    net.finish(2)
    seconds = np.full(3, 1e6)
    for _ in range(2):
        net.run(floats(2, 2, 5, 6), False, floats(2, 4, 5, 6), seconds)
    assert (seconds >= 1e6).all()


def test_an_unknown_isa():
    with pytest.raises(ValueError, match="no avx1024"):
        native().Net("avx1024")
    assert not native().has_isa("avx1024")


@each_isa
def test_changed_descriptions(isa):
    """Files whose graph was changed at random: what the reader lets through, the engine runs."""
    files = [pack_model(model) for model in wire_models()]
    tensors = [load(content) for content in files]
    rng, ran = random.Random(0), 0
    for _ in range(1000):
        which = rng.randrange(len(files))
        tree = json.loads(description_of(files[which]))
        for _ in range(rng.choice((1, 1, 2, 3))):
            change_something(tree, rng)
        try:
            model = unpack_model(save(tensors[which], {KEY: json.dumps(tree)}))
        except (ModelFileError, RecursionError):
            continue
        if is_small(model):
            Engine(model, isa)(np.ones((1, *model.graph.input_shape), np.float32))
            ran += 1
    assert ran > 20


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("key", ["kernel", "stride", "dilation", "padding"])
def test_windows_have_bounds_of_their_own(key, axis):
    """1,024: checked again in C, whatever Python has checked; of pools, too."""

    def net_of(count, step):
        net = native().Net("scalar")
        sides = [1, 1]
        window = {"kernel": [1, 1], "stride": [1, 1], "dilation": [1, 1], "padding": [0] * 4}
        window[key][2 * axis if key == "padding" else axis] = count
        sides[axis] = 2048
        made = [1, 1]
        places = {"kernel": 2049 - count, "stride": 2047 // count + 1, "dilation": 2048, "padding": 2048 + count}
        made[axis] = places[key]
        net.value(FLOAT, 1, *sides, 0)
        net.value(FLOAT, 1, *made, 1 << 20)
        given = {name: tuple(numbers) for name, numbers in window.items()}
        output = an_output(1, numbers_to=1)
        if step == "pool":
            net.pool(0, *given.values(), 0, tuple(made), output)
        else:
            weight = floats(1, 1, *window["kernel"])
            net.conv2d(0, **given, groups=1, outputs=1, weight=weight, keeps_zeros=False, output=output)

    for step in ("pool", "conv2d"):
        if not (step == "pool" and key == "padding"):  # a window of one tap has no padding there
            net_of(1024, step)
        with pytest.raises(ValueError, match="a window is out of bounds"):
            net_of(1025, step)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_window_that_is_larger_by_one(axis, stride):
    """The image has 5 rows and 6 columns; -1 over a stride of 2 would be 0 places to go, and one window."""
    sides = [1, 1]
    sides[axis] = (6, 7)[axis]
    window = SIGNED | {"kernel": tuple(sides), "stride": (stride, stride), "padding": (0,) * 4}
    with pytest.raises(ValueError, match="a window is larger than its padded image"):
        with_bits().bconv2d(1, **window, signs=np.ones((4, 2, *sides), np.int8), output=an_output())
