"""What is in a packed net, layer by layer: bits, bytes, multiply-adds, and how that compares with float."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from onebit.checking import multiply_adds
from onebit.graph import Graph, Node, Value
from onebit.modelfile import Model, pack_model
from onebit.operations import bconv_shape


class Row(NamedTuple):
    """A node: what it makes, what is stored for it, and what it costs for one image."""

    name: str
    op: str
    inputs: tuple[str, ...]
    kind: str
    shape: tuple[int, ...]
    method: str  # of a 1-bit convolution
    projections: int  # J, of a 1-bit convolution; else 0
    bits: int  # 1-bit weights that are stored, masks included
    bytes: int  # all that is stored for it; what it shares with an earlier node counts there
    one_bit_macs: int
    float_macs: int


class Summary(NamedTuple):
    """All nodes, and the file as a whole."""

    description: str
    input_shape: tuple[int, int, int]
    rows: list[Row]
    file_bytes: int
    header_bytes: int  # the graph, names and shapes
    float_bits: int | None  # of the same net in float, as the paper counts; None: not known
    paper_bits: int | None  # of this net, as the paper counts

    @property
    def paper_compression(self) -> float | None:
        """As the paper counts: a bit a 1-bit weight, 32 bits for all else."""
        return self.float_bits / self.paper_bits if self.float_bits and self.paper_bits else None

    @property
    def file_compression(self) -> float | None:
        """Bytes of the same net in float against bytes on disk."""
        return self.float_bits / 8 / self.file_bytes if self.float_bits else None

    def as_json(self) -> dict[str, Any]:
        """For a program to read."""
        totals = {key: sum(getattr(row, key) for row in self.rows) for key in TOTALS}
        found = self._asdict() | {"rows": [row._asdict() for row in self.rows], "totals": totals}
        return found | {"paper_compression": self.paper_compression, "file_compression": self.file_compression}


TOTALS = ("bits", "bytes", "one_bit_macs", "float_macs")


def summarize(model: Model) -> Summary:
    """Count what is in a model; its size on disk is that of the bytes that it packs to."""
    graph, values = model.graph, model.values
    stored: set[tuple[str, bytes]] = set()
    rows = [_row(node, values, stored) for node in graph.nodes]
    size = len(pack_model(model))
    float_bits = paper_bits = None
    if model.counts is not None:
        float_bits, paper_bits = 32 * model.counts.in_float, _paper_bits(graph, values, model.counts.full_precision)
    header = size - sum(row.bytes for row in rows)
    return Summary(model.description, graph.input_shape, rows, size, header, float_bits, paper_bits)


def _paper_bits(graph: Graph, values: dict[str, Value], full_precision: int) -> int:
    """The paper's memory table: a bit a weight of a 1-bit conv (of all J), 32 for the other weights and biases and
    for four numbers (those of a batch norm) for each channel that a 1-bit conv makes.
    """
    convs = {id(node.tensors["kernels"]): node for node in graph.nodes if node.op == "bconv2d"}.values()
    shapes = [(node.attributes["out_channels"], bconv_shape(node, values[node.inputs[0]])) for node in convs]
    bits: int = sum(outputs * math.prod(shape[1:]) for outputs, shape in shapes)
    channels: int = sum(outputs for outputs, _ in shapes)
    return bits + 32 * (full_precision + 4 * channels)


def _row(node: Node, values: dict[str, Value], stored: set[tuple[str, bytes]]) -> Row:
    made, size = values[node.name], 0
    for tensor in node.tensors.values():
        content = (f"{tensor.dtype} {tensor.shape}", tensor.tobytes())
        if content not in stored:
            stored.add(content)
            size += tensor.nbytes
    macs, is_binary = multiply_adds(node, values), node.op == "bconv2d"
    bits = 0
    if is_binary:
        bits = math.prod(bconv_shape(node, values[node.inputs[0]]))
        bits += (
            node.attributes["projections"] * math.prod(node.attributes["kernel_size"]) * ("masks" in node.tensors)
        )
    return Row(
        name=node.name,
        op=node.op,
        inputs=node.inputs,
        kind=made.kind,
        shape=made.shape,
        method=node.attributes.get("method", ""),
        projections=node.attributes.get("projections", 0),
        bits=bits,
        bytes=size,
        one_bit_macs=macs if is_binary else 0,
        float_macs=0 if is_binary else macs,
    )
