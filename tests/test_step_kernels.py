"""What a step says of the way it runs: `kernel` and `isa` of `Engine.info()["steps"]`."""

import numpy as np
import pytest

from engines import HERE, each_isa
from onebit.engine import Engine
from onebit.native import native
from onebit.packing import pack_signs
from onebit.reference import Reference
from wire_models import Chain, wire_models


def weight(net, *shape):
    return {"weight": net.floats(*shape)}


def conv(channels, side=5, outputs=None, groups=1, **options):
    net = Chain(channels, side, side)
    outputs = outputs or channels
    return net.add(
        "conv2d", tensors=weight(net, outputs, channels // groups, 3, 3), padding=[1] * 4, groups=groups, **options
    )


def bconv(before, channels=4, **options):
    net = Chain(channels * options.get("groups", 1), 5, 5)
    if before == "levels":
        net.add("quantize", per_unit=10.0, low=-127, high=127)
    elif before == "bits":
        net.add("sign")
    net.bconv(channels, 4, padding=[1] * 4, **options)
    return net.add("affine", tensors={"scale": np.ones(1, np.float32)})


def pool(channels, op="max_pool2d", **options):
    return Chain(channels, 6, 6).add(op, kernel_size=[2, 2], stride=[2, 2], **options)


def pool_of_sums():
    net = Chain(64, 6, 6).add("sign").bconv(64, 64).add("max_pool2d", kernel_size=[2, 2], stride=[2, 2])
    return net.add("affine", tensors={"scale": np.ones(1, np.float32)})


def threshold_of_large_sums():
    """Sums that floats can't tell apart are compared by a step of its own."""
    net = Chain(70000, 1, 1).add("quantize", per_unit=1.0, low=0, high=255)
    net.bconv(70000, 2, taps=(1, 1), masks=False)
    limits = {"thresholds": np.zeros(2, np.int32), "at_most": pack_signs(np.array([1, -1]))}
    net.add("threshold", tensors=limits)
    return net.bconv(2, 8, taps=(1, 1)).add("affine", tensors={"scale": np.ones(1, np.float32)})


def int8_conv(most):
    """Two neighbouring weights of 65 could make a sum of products that 16 bits don't hold."""
    net = Chain(4, 5, 5).add("quantize", per_unit=10.0, low=-127, high=127)
    net.add("conv2d", tensors={"weight": np.full((4, 4, 3, 3), most, np.int8)})
    return net.add("affine", tensors={"scale": np.ones(1, np.float32)})


def many_taps():
    net = Chain(70000, 1, 1).add("sign").bconv(70000, 2, taps=(1, 1), masks=False)
    return net.add("affine", tensors={"scale": np.ones(1, np.float32)})


def linear():
    net = Chain(3, 1, 1).add("reshape", shape=[3])
    return net.add("linear", tensors=weight(net, 2, 3))


def affine(channels, before=None):
    net = Chain(channels, 3, 3)
    if before:
        net.add(before)
    return net.add("affine", tensors={"scale": np.ones(1, np.float32)})


# A net, the number of the step that counts, its kernel, and whether it is in plain C with every instruction set.
WAYS = {
    "bits": (bconv("bits"), 1, "bits", False),
    "bits in groups": (bconv("bits", groups=2), 1, "bits in groups", False),
    "1-bit kernels, float inputs": (bconv("floats"), 0, "floats", False),
    "1-bit kernels, 8-bit inputs": (bconv("levels"), 1, "levels", False),
    "levels with large sums": (threshold_of_large_sums(), 1, "levels", False),
    "8-bit weights": (int8_conv(64), 1, "8-bit weights", False),
    "8-bit weights that are large": (int8_conv(65), 1, "wide sums", True),
    "levels of few channels": (bconv("levels"), 0, "output stage", False),
    "bits with very many taps": (many_taps(), 1, "wide sums", True),
    "thresholds of large sums": (threshold_of_large_sums(), 2, "number by number", True),
    "floats": (conv(4), 0, "floats", False),
    "floats in groups": (conv(4, groups=2), 0, "floats", False),
    "depthwise": (conv(8, groups=8), 0, "depthwise", False),
    "depthwise, few channels": (conv(7, groups=7), 0, "depthwise", True),
    "linear": (linear(), 1, "floats", False),
    "another shape": (linear(), 0, "copy", True),
    "pool": (pool(32), 0, "pool", False),
    "pool, few channels": (pool(31), 0, "pool", True),
    "mean": (pool(32, "avg_pool2d"), 0, "pool", False),
    "pool of sums": (pool_of_sums(), 2, "pool", True),
    "scale": (affine(8), 0, "output stage", False),
    "scale, few channels": (affine(7), 0, "output stage", True),
    "scale of bits": (affine(8, "sign"), 1, "output stage", True),
    "sigmoid": (Chain(8, 3, 3).add("sigmoid"), 0, "number by number", True),
    "product": (Chain(8, 3, 3).add("multiply", inputs=["input", "input"]), 0, "number by number", True),
    "joined channels": (Chain(8, 3, 3).add("concatenate", inputs=["input", "input"]), 0, "copy", True),
    "pad": (Chain(8, 3, 3).add("pad", padding=[1] * 4, mode="reflect"), 0, "copy", True),
}  # fmt: skip


@each_isa
@pytest.mark.parametrize("name", WAYS)
def test_a_step_says_how_it_runs(isa, name):
    net, number, kernel, is_plain = WAYS[name]
    step = Engine(net.model(), isa).info()["steps"][number]
    assert (step["kernel"], step["isa"]) == (kernel, "scalar" if is_plain else isa)


@each_isa
def test_winograd_is_named_where_it_may_run(isa):
    (step,) = Engine(conv(32, side=32).model(), isa).info()["steps"]
    assert step["kernel"] == ("floats" if isa == "scalar" else "Winograd or floats")


@each_isa
@pytest.mark.parametrize("which", range(4))
def test_every_step_says_it(isa, which):
    info = Engine(wire_models()[which], isa).info()
    assert all(step["kernel"] and step["isa"] in {isa, "scalar"} for step in info["steps"])


def test_a_step_that_is_not_there():
    net = native().Net(HERE[0])
    with pytest.raises(IndexError, match="no such step"):
        net.step_kernel(0)


def test_steps_in_parts(monkeypatch):
    """A step that is several on the C side takes as long as all of them; those behind it keep what is theirs."""
    net = Chain(8, 3, 3).add("abs").add("concatenate", inputs=["abs0", "abs0", "input"]).add("tanh").add("relu")
    engine = Engine(net.model())
    info = engine.info()
    assert [step["kernel"] for step in info["steps"]] == [
        "number by number", "copy", "number by number", "output stage",
    ]  # fmt: skip

    class Timed:
        steps = 6

        @staticmethod
        def run(images, is_nhwc, outputs, seconds):
            seconds += [1, 2, 4, 8, 16, 32]

    monkeypatch.setattr(engine, "_net", Timed)
    assert engine.step_seconds(np.zeros((1, 8, 3, 3), np.float32)) == [1, 14, 16, 32]


def test_what_runs_in_numbers():
    """Nodes are those of the file, steps those that they became."""
    net = Chain(32, 9, 9).add("max_pool2d", kernel_size=[2, 2], stride=[1, 1]).add("relu").add("tanh")
    info = Engine(net.model()).info()
    assert (info["nodes"], len(info["steps"])) == (3, 2)
    assert (info["engine"], info["threads"], info["isa"]) == ("native", 1, HERE[0])
    assert Reference(net.model()).info() == {"engine": "reference", "isa": "NumPy", "nodes": 3}
