"""How large a net may be for other programs."""

from __future__ import annotations

import math

from onebit.errors import ExportError
from onebit.graph import Node
from onebit.modelfile import Model
from onebit.shapes import bconv_shape

MAX_BYTES = 1 << 30  # of weights, written out: half of what an ONNX model may have


def check_size(total: int) -> None:
    """Raise ExportError for weights that take so many bytes."""
    if total > MAX_BYTES:
        raise ExportError(f"its weights, written out, take {total:,} bytes; up to {MAX_BYTES:,} are written")


def check_weights(model: Model, bytes_each: int) -> None:
    """Before any memory is taken: a few bits with many projections, written out, could take all of it.

    Packed bits have the same limit, since who loads them unpacks them.
    """
    check_size(sum(_numbers(model, node) for node in model.graph.nodes) * bytes_each)


def _numbers(model: Model, node: Node) -> int:
    """Of a node's tensors, written out."""
    stored = sum(tensor.size for tensor in node.tensors.values())
    if node.op != "bconv2d":
        return stored
    outputs = int(node.attributes["projections"])
    return stored + math.prod(bconv_shape(node, model.values[node.inputs[0]])) * outputs
