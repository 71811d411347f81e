"""The float twin of a packed net. Needs no torch.

The twin is what one would run without onebit: signs, thresholds and levels are left out, so that its convolutions
read floats; its kernels are float; scales and norms behind a convolution are folded into it.
It is a packed net, too.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from onebit.checking import first_alike
from onebit.fusing import needed
from onebit.graph import Array, Graph, Node
from onebit.modelfile import Model
from onebit.shapes import bconv_shape
from onebit.weights import float_weight

_CONV_ATTRIBUTES = ("stride", "padding", "dilation", "groups")


def float_twin(model: Model, seed: int = 0) -> Model:
    """The twin of a net; its 1-bit kernels are drawn anew, of a size that keeps activations in their range."""
    nodes = _folded(_without_bits(model, np.random.default_rng(seed)))
    return Model(Graph(model.graph.input_shape, nodes), description="float twin")


def _without_bits(model: Model, generator: np.random.Generator) -> list[Node]:
    """The nodes of floats alone. Drawn kernels make numbers around 1; scales are meant for sums of many +-1."""
    stands_for: dict[str, str] = {}  # of a value that the twin lacks: the one in its place
    times: dict[str, float] = {}  # how much larger a value was in the packed net than it is here, if it was
    first = first_alike(model.graph, model.values)
    weights: dict[str, Array] = {}  # by the first node that has it: what nodes share they share here, too
    made: list[Node] = []
    for node in needed(model.graph.nodes):
        inputs = tuple(stands_for.get(name, name) for name in node.inputs)
        larger, tensors = times.get(node.inputs[0], 1.0), dict(node.tensors)
        if node.op in {"sign", "threshold"}:
            stands_for[node.name] = inputs[0]
            continue
        if node.op == "quantize":
            stands_for[node.name] = inputs[0]
            times[node.name] = node.attributes["per_unit"]
            continue
        if node.op == "bconv2d":
            shape = (node.attributes["out_channels"], *bconv_shape(node, model.values[node.inputs[0]])[1:])
            root = float(np.sqrt(np.prod(shape[1:])))
            if first[node.name] not in weights:
                weights[first[node.name]] = generator.standard_normal(shape, np.float32) / np.float32(root)
            tensors = {"weight": weights[first[node.name]]}
            attributes = {name: node.attributes[name] for name in _CONV_ATTRIBUTES}
            made.append(Node(node.name, "conv2d", inputs, attributes, tensors))
            times[node.name] = root * larger
            continue
        if node.op == "affine":
            tensors["scale"] = tensors["scale"] * np.float32(larger)
        elif node.op in {"max_pool2d", "slice", "pad", "conv2d", "linear"}:  # what else reads sums or levels
            times[node.name] = larger
            if model.values[node.inputs[0]].kind == "levels" and "weight" in tensors:
                if first[node.name] not in weights:
                    weights[first[node.name]] = float_weight(node)
                tensors["weight"] = weights[first[node.name]]
        made.append(Node(node.name, node.op, inputs, node.attributes, tensors))
    return made


def _folded(nodes: list[Node]) -> list[Node]:
    """The nodes, with scales and shifts in the convolutions before them, where nothing else reads those.

    Not in a weight that others have, too: then each would have one of its own, and a small file thousands.
    """
    readers = Counter(name for node in nodes for name in set(node.inputs))
    owners = Counter(id(node.tensors["weight"]) for node in nodes if "weight" in node.tensors)

    def is_alone(conv: Node) -> bool:
        return readers[conv.name] == 1 and owners[id(conv.tensors["weight"])] <= 1

    stands_for: dict[str, str] = {}
    made: dict[str, Node] = {}
    for node in nodes:
        node.inputs = tuple(stands_for.get(name, name) for name in node.inputs)
        source = made.get(node.inputs[0])
        if node.op == "affine" and source and source.op == "conv2d" and is_alone(source):
            _fold(source, node)
            stands_for[node.name] = source.name
            readers[source.name] = readers[node.name]
        else:
            made[node.name] = node
    return list(made.values())


def _fold(conv: Node, affine: Node) -> None:
    """Put a scale and a shift into the convolution before them."""
    weight, scale = float_weight(conv), affine.tensors["scale"]
    conv.tensors.pop("weight_scale", None)
    conv.tensors["weight"] = weight * scale.reshape(-1, 1, 1, 1)
    bias = conv.tensors.get("bias", np.zeros(len(weight), np.float32)) * scale
    conv.tensors["bias"] = bias + affine.tensors.get("shift", np.float32(0))
