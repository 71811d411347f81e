"""Which nodes become one step, and which bytes values share."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onebit.arena import Lifetime, place
from onebit.compiling import place_values
from onebit.engine import Engine, operations_of
from onebit.fusing import fuse, thresholds_of
from onebit.graph import Node, Value
from onebit.packing import pack_signs
from onebit.reference import Reference
from wire_models import Chain


def steps_of(net):
    return [operations_of(step) for step in fuse(net.model())]


def ones(channels=4):
    return {"scale": np.ones(channels, np.float32), "shift": np.ones(channels, np.float32)}


def slopes():
    return {"slope": np.full(4, 0.5, np.float32)}


def weight():
    return {"weight": np.ones((4, 4, 1, 1), np.float32)}


def test_a_block_of_a_1_bit_net_is_one_step():
    net = Chain(4, 5, 5).add("sign", "s").bconv(4, 4, padding=[1, 1, 1, 1])
    net.add("affine", tensors=ones()).add("prelu", tensors=slopes()).add("add", "sum", ["prelu3", "input"])
    net.add("sign", "bits").bconv(4, 4, padding=[1, 1, 1, 1]).add("affine", tensors=ones())
    net.add("add", "end", ["affine7", "sum"])
    assert steps_of(net) == [
        ["sign"], ["bconv2d", "affine", "prelu", "add", "sign"], ["bconv2d", "affine", "add"],
    ]  # fmt: skip


def test_affine_maps_are_composed():
    net = Chain(4, 1, 1).add("conv2d", tensors=weight() | {"bias": np.full(4, 3, np.float32)})
    net.add("affine", tensors={"scale": np.full(1, 2, np.float32)}).add("affine", tensors=ones())
    (step,) = fuse(net.model())
    assert (step.tail.scale == 2).all()
    assert (step.tail.shift == 7).all()


def test_what_something_else_reads_stays():
    net = Chain(4, 2, 2).add("conv2d", "a", tensors=weight()).add("affine", "b", tensors=ones())
    net.add("relu", "c", ["b"]).add("abs", "d", ["b"]).add("multiply", "e", ["c", "d"])
    assert steps_of(net) == [["conv2d", "affine"], ["relu"], ["abs"], ["multiply"]]


def test_the_order_of_the_tail_is_kept():
    net = Chain(4, 2, 2).add("conv2d", tensors=weight())
    net.add("relu").add("affine", tensors=ones()).add("prelu", tensors=slopes()).add("relu").add(
        "affine", tensors=ones()
    )
    assert steps_of(net) == [["conv2d", "relu"], ["affine", "prelu", "relu"], ["affine"]]


def test_one_of_two_branches_takes_the_sum():
    net = Chain(4, 2, 2).add("conv2d", "a", tensors=weight()).add("conv2d", "b", ["input"], tensors=weight())
    net.add("add", "c", ["a", "b"]).add("relu", "d")
    first, second = fuse(net.model())
    assert (first.node.name, first.tail.numbers) == ("b", "b")  # it runs first: the other needs it
    assert (second.node.name, second.tail.residual, second.tail.numbers) == ("a", "b", "d")


def test_a_value_twice_is_no_residual():
    net = Chain(4, 2, 2).add("conv2d", "a", tensors=weight()).add("add", "b", ["a", "a"])
    assert steps_of(net) == [["conv2d"], ["add"]]


def test_bits_and_levels_of_one_value_that_two_want():
    """A step makes one of each; the second is a step of its own, and all are right."""
    net = Chain(4, 3, 3).add("conv2d", "a", tensors=weight())
    limits = {"thresholds": np.full(4, 0.5, np.float32), "at_most": pack_signs(np.ones(4))}
    net.add("sign", "b").add("threshold", "c", ["a"], tensors=limits)
    net.add("quantize", "d", ["a"], per_unit=3.0, low=0, high=7).add(
        "quantize", "e", ["a"], per_unit=5.0, low=-4, high=3
    )
    for name in "bcde":
        net.bconv(4, 4, inputs=[name], name=f"conv {name}").add("affine", f"floats {name}", tensors=ones())
    net.add("concatenate", inputs=[f"floats {name}" for name in "bcde"])
    model = net.model()
    steps = [step for step in steps_of(net) if step[0] != "bconv2d"]
    assert steps == [["conv2d", "sign", "quantize"], ["threshold"], ["quantize"], ["concatenate"]]
    x = np.random.default_rng(0).normal(size=(2, 4, 3, 3)).astype(np.float32)
    np.testing.assert_array_equal(Engine(model)(x), Reference(model)(x))


def test_a_sum_is_written_over_its_residual_but_not_over_what_is_read_later():
    net = Chain(4, 3, 3).add("conv2d", "a", tensors=weight()).add("conv2d", "b", tensors=weight())
    net.add("add", "c", ["b", "a"]).add("conv2d", "d", ["input"], tensors=weight()).add("add", "e", ["d", "c"])
    net.add("multiply", "f", ["e", "e"])
    model = net.model()
    offsets = place_values(model, fuse(model))
    assert offsets["c"] == offsets["e"]
    assert offsets["c"] != offsets["a"]  # the convolution reads `a` while it writes `c`


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30))
def test_nothing_overlaps(entries):
    lives = {str(i): Lifetime(size, a, a + more) for i, (size, a, more) in enumerate(entries)}
    offsets = place(lives)
    for name, life in lives.items():
        assert offsets[name] % 64 == 0
        for other, other_life in lives.items():
            if name != other and life.first <= other_life.last and other_life.first <= life.last:
                start, other_start = offsets[name], offsets[other]
                assert start + life.size <= other_start or other_start + other_life.size <= start


def test_thresholds_that_no_sum_reaches_stay_out_of_reach():
    """One beyond the largest sum is enough; farther away, a float would not be exact."""
    limits = np.array([9, 10, 2**31 - 1, -9, -10, -(2**31)], np.int32)
    at_most = pack_signs(np.array([0, 0, 0, 1, 1, 1]))
    node = Node("n", "threshold", ("x",), {}, {"thresholds": limits, "at_most": at_most})
    thresholds, bits = thresholds_of(node, Value("sums", (6, 1, 1), -9, 9))
    assert thresholds.dtype == np.float32
    assert thresholds.tolist() == [9, 10, 10, -9, -10, -10]
    assert bits.tolist() == [0, 0, 0, 1, 1, 1]
