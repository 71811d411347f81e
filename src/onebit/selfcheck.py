"""Whether the native engine is right on this machine: a small net, made here, against the reference."""

from __future__ import annotations

import numpy as np

from onebit.engine import Engine
from onebit.graph import INPUT, Array, Graph, Node
from onebit.modelfile import Model
from onebit.operations import default_attributes
from onebit.packing import pack_kernels, pack_signs
from onebit.reference import Reference


def is_right(isa: str) -> bool:
    """Whether kernels and reference make the same of a small net, to the last bit."""
    model = small_net()
    images = np.random.default_rng(1).normal(size=(3, *model.graph.input_shape)).astype(np.float32)
    return bool(np.array_equal(Engine(model, isa)(images), Reference(model)(images)))


def small_net() -> Model:
    """1-bit convolutions of 1-bit inputs: whole numbers, which no order of additions can change."""
    rng = np.random.default_rng(0)

    def convolution(name: str, of: str, inputs: int, outputs: int, projections: int, stride: int) -> Node:
        own = {
            "out_channels": outputs, "kernel_size": [3, 3], "projections": projections, "padding": [1] * 4,
            "stride": [stride] * 2,
        }  # fmt: skip
        kernels = rng.choice([-1, 1], size=(outputs // projections, inputs, 3, 3))
        tensors = {"kernels": pack_kernels(kernels), "masks": pack_signs(rng.choice([-1, 1], (projections, 3, 3)))}
        return Node(name, "bconv2d", (of,), default_attributes("bconv2d") | own, tensors)

    bits: dict[str, Array] = {"thresholds": np.zeros(3, np.float32), "at_most": pack_signs(np.zeros(3))}
    counted: dict[str, Array] = {
        "thresholds": rng.integers(-5, 6, 72).astype(np.int32),
        "at_most": pack_signs(rng.choice([-1, 1], 72)),
    }
    scale = {"scale": np.full(10, 0.5, np.float32), "shift": np.arange(10, dtype=np.float32)}
    nodes = [
        Node("bits", "threshold", (INPUT,), {}, bits),
        convolution("first", "bits", 3, 72, projections=2, stride=1),
        Node("bits2", "threshold", ("first",), {}, counted),
        convolution("second", "bits2", 72, 10, projections=1, stride=2),
        Node("scaled", "affine", ("second",), {}, scale),
    ]
    return Model(Graph((3, 9, 7), nodes))
