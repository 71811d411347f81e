"""Fewer bits for the weights that are not 1-bit: 16-bit floats, or 8-bit whole numbers with scales."""

from __future__ import annotations

import numpy as np

from onebit.errors import ExportError
from onebit.graph import Array, Graph, Node

FLOAT_BITS = (32, 16, 8)
# Of weights that meet levels: the largest, so that two products with bytes fit 16 bits; and what four may have
# together (less a half for the rounding of each), so that their products do: kernels add these first.
MOST, MOST_OF_FOUR = 64, 126


def round_weights(graph: Graph, bits: int) -> None:
    """Store the weights of convolutions and linear layers in as many bits; biases and norms stay as they are."""
    if bits not in FLOAT_BITS:
        raise ExportError(f"float_bits={bits!r}: use 32, 16 or 8")
    for node in graph.nodes:
        weight = node.tensors.get("weight")
        if bits == 32 or weight is None or weight.dtype != np.float32:
            continue
        if bits == 16:
            if np.abs(weight).max() > np.finfo(np.float16).max:
                raise ExportError(f"layer {node.name!r}: its weights are too large for 16 bits; use 8 or 32")
            node.tensors["weight"] = weight.astype(np.float16)
            continue
        rows = weight.reshape(len(weight), -1)
        scale = np.abs(rows).max(axis=1) / np.float32(127)
        scale[scale == 0] = 1
        node.tensors["weight"] = np.rint(rows / scale[:, None]).astype(np.int8).reshape(weight.shape)
        node.tensors["weight_scale"] = scale.astype(np.float32)


def whole_weight(node: Node) -> tuple[Array, Array] | None:
    """The weight of a `conv2d` or `linear` as whole numbers of -64 to 64, and a scale for each output.

    None if it is in whole numbers already, and in larger ones.
    """
    weight = node.tensors["weight"]
    if weight.dtype == np.int8:
        return (weight, node.tensors["weight_scale"]) if np.abs(weight.astype(np.int64)).max() <= MOST else None
    rows = weight.reshape(len(weight), -1).astype(np.float64)
    scale = np.maximum(np.abs(rows).max(axis=1) / MOST, _fours(np.abs(weight)) / MOST_OF_FOUR)
    scale[scale == 0] = 1
    return np.rint(rows / scale[:, None]).astype(np.int8).reshape(weight.shape), scale


def _fours(sizes: Array) -> Array:
    """For each output, the largest sum of four weights that kernels add first: see native/src/int8_avx2.c.

    Of every eight that follow each other in a row of the kernel, planes inside of taps: the first two of each half,
    and the last two.
    """
    rows = np.moveaxis(sizes, 1, -1).astype(np.float64)  # (outputs, height, width, planes), or (outputs, planes)
    rows = rows.reshape(len(rows), rows.shape[1] if rows.ndim == 4 else 1, -1)
    rows = np.pad(rows, ((0, 0), (0, 0), (0, -rows.shape[2] % 8)))
    sums: Array = rows.reshape(*rows.shape[:2], -1, 2, 2, 2).sum(axis=(3, 5)).max(axis=(1, 2, 3))
    return sums
