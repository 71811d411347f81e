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


def check_weights(model: Model, *, as_floats: bool) -> None:
    """Before any memory is taken: a few bits with many projections, or at many nodes, could take all of it.

    Packed bits have the same limit, since who loads them unpacks them.

    as_floats   every number; else as they are stored, and bits as a byte each
    """
    check_size(sum(_bytes(model, node, as_floats) for node in model.graph.nodes))


def _bytes(model: Model, node: Node, as_floats: bool) -> int:
    """Of a node's tensors, written out."""
    stored = sum(4 * tensor.size if as_floats else tensor.nbytes for tensor in node.tensors.values())
    if node.op != "bconv2d":
        return stored
    outputs = int(node.attributes["projections"])
    signs = math.prod(bconv_shape(node, model.values[node.inputs[0]])) * outputs
    return stored + (4 * signs if as_floats else signs)
