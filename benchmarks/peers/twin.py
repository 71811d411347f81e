"""The float twin of a packed net, and the weights of a packed net as floats. Needs no torch: workers use it, too.

The twin is what one would run without onebit: signs and thresholds are left out, so that its convolutions read
floats; its kernels are float; scales and norms behind a convolution are folded into it. It is a .onebit file, too.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from onebit.graph import Array, Graph, Node
from onebit.modelfile import Model
from onebit.packing import unpack_signs
from onebit.weights import dense_kernels, float_weight

from .runner import Floats

_CONV_ATTRIBUTES = ("stride", "padding", "dilation", "groups")


def weight_of(model: Model, node: Node) -> Floats:
    """The weight of a `linear`, `conv2d` or `bconv2d` as floats, outputs first."""
    if node.op != "bconv2d":
        return float_weight(node)
    if "modulation" in node.tensors:
        raise ValueError(f"{node.name}: modulated kernels are not compared")
    planes = model.values[node.inputs[0]].channels // node.attributes["groups"]
    return dense_kernels(node, planes).astype(np.float32)


def directed(node: Node, channels: int) -> tuple[Floats, Floats]:
    """Of a `threshold`, by channel: d (+-1) and t, such that the bit is +1 where d * x >= t."""
    d = np.where(unpack_signs(node.tensors["at_most"], (channels,)) > 0, np.float32(-1), np.float32(1))
    return d, d * node.tensors["thresholds"].astype(np.float32)


def float_twin(model: Model, seed: int = 0) -> Model:
    """The twin of a net; its 3x3 kernels are drawn anew, of a size that keeps activations in their range."""
    generator = np.random.default_rng(seed)
    readers = Counter(name for node in model.graph.nodes for name in node.inputs)
    stands_for: dict[str, str] = {}  # of a value that the twin lacks: the one in its place
    made: dict[str, Node] = {}
    drawn: set[str] = set()
    for node in model.graph.nodes:
        inputs = tuple(stands_for.get(name, name) for name in node.inputs)
        source = made.get(inputs[0])
        if node.op in {"sign", "threshold"}:
            stands_for[node.name] = inputs[0]
        elif node.op == "bconv2d":
            attributes = {name: node.attributes[name] for name in _CONV_ATTRIBUTES}
            shape = weight_of(model, node).shape
            weight = generator.standard_normal(shape, np.float32) / np.float32(np.sqrt(np.prod(shape[1:])))
            made[node.name] = Node(node.name, "conv2d", inputs, attributes, {"weight": weight})
            drawn.add(node.name)
        elif node.op == "affine" and source and source.op == "conv2d" and readers[node.inputs[0]] == 1:
            _fold(source, node, spread=source.name in drawn)
            stands_for[node.name] = source.name
        else:
            made[node.name] = Node(node.name, node.op, inputs, node.attributes, node.tensors)
    return Model(Graph(model.graph.input_shape, list(made.values())), description="float twin")


def _fold(conv: Node, affine: Node, *, spread: bool) -> None:
    """Put a scale and a shift into the convolution before them.

    spread: the scale is meant for sums of as many +-1 as a kernel has taps; drawn kernels make numbers around 1.
    """
    weight = conv.tensors["weight"]
    scale: Array = affine.tensors["scale"] * np.float32(np.sqrt(np.prod(weight.shape[1:])) if spread else 1)
    conv.tensors["weight"] = weight * scale.reshape(-1, 1, 1, 1)
    bias = conv.tensors.get("bias", np.zeros(len(weight), np.float32)) * scale
    conv.tensors["bias"] = bias + affine.tensors.get("shift", np.float32(0))
