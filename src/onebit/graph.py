"""The packed net: values that flow, the nodes that make them, and in what order."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from numpy.typing import NDArray

INPUT = "input"  # the name of the value that the net is given

Kind = Literal["float", "bits", "levels", "sums"]
Array = NDArray[Any]


class GraphError(ValueError):
    """What is wrong with a graph."""


class Value(NamedTuple):
    """What flows between nodes, for one image.

    kind        'float': 32-bit floats; 'bits': -1 or +1; 'levels': small whole numbers that stand for an
                activation; 'sums': 32-bit whole numbers that a layer makes of bits or levels
    shape       (channels, height, width), or (features,)
    low, high   the least and the largest number that levels or sums can be
    """

    kind: Kind
    shape: tuple[int, ...]
    low: int = 0
    high: int = 0

    @property
    def channels(self) -> int:
        """How many numbers a per-channel tensor has."""
        return self.shape[0]

    @property
    def size(self) -> int:
        """Numbers, for one image."""
        return math.prod(self.shape)


@dataclass(eq=False)
class Node:
    """An operation of `onebit.operations.OPERATIONS`. Its name is also that of the value which it makes."""

    name: str
    op: str
    inputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Array] = field(default_factory=dict)


@dataclass
class Graph:
    """Nodes in the order in which they run: each reads the input or nodes before it. The last makes the output."""

    input_shape: tuple[int, int, int]
    nodes: list[Node]
