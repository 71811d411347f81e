"""A graph in the making: nodes with unique names, and what is known about the values on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit.graph import Array, Graph, Node, Value
from onebit.operations import check_node, default_attributes
from onebit.packing import pack_signs

Wide = NDArray[np.float64]  # what is folded is folded in 64 bits


class Builder:
    """Collects nodes. A tensor that will be float32 in the file may be float64 until the file is made."""

    def __init__(self, input_shape: tuple[int, int, int]) -> None:
        self.graph = Graph(input_shape, [])
        self.values: dict[str, Value] = {"input": Value("float", input_shape)}

    def add(
        self, op: str, name: str, *inputs: str, tensors: dict[str, Array] | None = None, **attributes: Any
    ) -> str:
        """Add a node (with a number behind its name if that is taken) and return its name."""
        unique, number = name or op, 1
        while unique in self.values:
            number += 1
            unique = f"{name or op}.{number}"
        node = Node(unique, op, inputs, default_attributes(op) | attributes, tensors or {})
        self.values[unique] = check_node(narrowed(node), [self.values[name] for name in inputs])
        self.graph.nodes.append(node)
        return unique

    def affine(self, name: str, x: str, scale: Any, shift: Any = None) -> str:
        """Scale * x + shift; numbers, or one for each channel."""
        tensors = {"scale": np.atleast_1d(np.asarray(scale, np.float64))}
        if shift is not None:
            tensors["shift"] = np.atleast_1d(np.asarray(shift, np.float64))
        return self.add("affine", name, x, tensors=tensors)

    def threshold(self, name: str, x: str, thresholds: Array, at_most: Array) -> str:
        """+1 where x >= thresholds, or <= where at_most."""
        return self.add("threshold", name, x, tensors=threshold_tensors(thresholds, at_most))


def threshold_tensors(thresholds: Array, at_most: Array) -> dict[str, Array]:
    """The tensors of a `threshold`."""
    return {"thresholds": thresholds, "at_most": pack_signs(at_most.astype(np.int8))}


def narrowed(node: Node) -> Node:
    """The node with its 64-bit tensors in 32."""
    tensors = {
        role: tensor.astype(np.float32) if tensor.dtype == np.float64 else tensor
        for role, tensor in node.tensors.items()
    }
    return Node(node.name, node.op, node.inputs, node.attributes, tensors)
