"""Collects what an ONNX model is made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onebit.exchange.limits import check_size
from onebit.graph import INPUT, Array, Node
from onebit.modelfile import Model
from onebit.weights import weight_of


class Writer:
    """The nodes and constants of a graph. Values of the net keep their names; what comes in between has new ones.

    Bits, levels and sums are floats here, which hold whole numbers up to 2^24 exactly. Subclasses have other ways
    to write weights, bits and levels.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.shapes: list[onnx.ValueInfoProto] = []
        self._names = {INPUT, *(node.name for node in model.graph.nodes)}
        self._bytes = 0  # of constants
        self._shared: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def new_name(self, wanted: str) -> str:
        """A name that nothing has: the wanted one, if it is free."""
        while wanted in self._names:
            wanted += "_"
        self._names.add(wanted)
        return wanted

    def put(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add an operation that makes `output`: the value of a node, or a name that is new."""
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def between(self, op: str, inputs: list[str], node: Node, role: str, **attributes: Any) -> str:
        """Add an operation whose result only other operations of this node read."""
        return self.put(op, inputs, self.new_name(f"{node.name}/{role}"), **attributes)

    def constant(self, node: Node, role: str, array: Array) -> str:
        """Add a tensor of a node."""
        return self._add(self.new_name(f"{node.name}/{role}"), array)

    def shared(self, name: str, array: Array) -> str:
        """A constant that many nodes may need, once; the name is that of its first use."""
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._shared:
            self._shared[key] = self._add(self.new_name(name), array)
        return self._shared[key]

    def number(self, value: float) -> str:
        """A number, as a float."""
        return self.shared(f"number_{value:g}", np.array(value, np.float32))

    def wholes(self, *numbers: int) -> str:
        """Numbers that name sides and places."""
        return self.shared(f"wholes_{'_'.join(map(str, numbers))}", np.array(numbers, np.int64))

    def by_channel(self, node: Node, role: str, array: Array) -> str:
        """Add a tensor of a number for each channel of what the node reads."""
        sides = len(self.model.values[node.inputs[0]].shape) - 1
        return self.constant(node, role, array.astype(np.float32).reshape(-1, *[1] * sides))

    def weight(self, node: Node) -> str:
        """The weight of a `linear`, `conv2d` or `bconv2d`: written out as floats."""
        return self.constant(node, "weight", weight_of(self.model, node))

    def bias(self, node: Node) -> list[str]:
        """The input for the bias, if the node has one."""
        return [self.constant(node, "bias", node.tensors["bias"])] if "bias" in node.tensors else []

    def bits(self, node: Node, x: str, thresholds: Array | None) -> None:
        """The value of a node: +1 where x is at least its channel's threshold, or 0 if there are none; else -1."""
        least = self.number(0) if thresholds is None else self.by_channel(node, "thresholds", thresholds)
        condition = self.between("GreaterOrEqual", [x, least], node, "condition")
        self.put("Where", [condition, self.number(1), self.number(-1)], node.name)

    def levels(self, node: Node, x: str, low: int, high: int) -> None:
        """The value of a node: the whole numbers nearest to x, halves to the even one, from low to high."""
        clipped = self.between("Clip", [x, self.number(low), self.number(high)], node, "clipped")
        self.put("Round", [clipped], node.name)

    def say_shape(self, name: str, shape: tuple[int | str, ...]) -> None:
        """For those that look at the graph and don't work it out."""
        self.shapes.append(float_info(name, shape))

    def _add(self, name: str, array: Array) -> str:
        self._bytes += array.nbytes
        check_size(self._bytes)
        self.constants.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name


def float_info(name: str, shape: tuple[int | str, ...]) -> onnx.ValueInfoProto:
    """A value of floats."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
