"""What is in a packed net, layer by layer: bits, bytes, multiply-adds, and how that compares with float."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

from onebit.checking import multiply_adds
from onebit.console import counted
from onebit.graph import Array, Graph, Node, Value
from onebit.modelfile import Model, Preprocessing, pack_model
from onebit.shapes import bconv_shape


class Row(NamedTuple):
    """A node: what it makes, what is stored for it, and what it costs for one image."""

    name: str
    op: str
    inputs: tuple[str, ...]
    precision: str  # such as W1A8: bits of its weights and of its input; of what has no weights ''
    kind: str
    shape: tuple[int, ...]
    method: str  # of a 1-bit convolution
    projections: int  # J, of a 1-bit convolution; else 0
    bits: int  # 1-bit weights that are stored, masks included
    bytes: int  # all that is stored for it; what it shares with an earlier node counts there
    one_bit_macs: int
    float_macs: int


class Summary(NamedTuple):
    """All nodes, and the file as a whole; as text, its layers and what it takes."""

    description: str
    producer: str
    input_shape: tuple[int, int, int]
    preprocessing: Preprocessing | None
    classes: tuple[str, ...] | None
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

    def total(self, key: str) -> int:
        """Of a column of the rows."""
        return sum(getattr(row, key) for row in self.rows)

    def __str__(self) -> str:
        return "\n".join([*self.about(), "", *self.layers(), "", *self.totals()])

    def about(self) -> list[str]:
        """What the net is and what it takes."""
        size = " x ".join(map(str, self.input_shape))
        lines = [f"{self.description or 'a net'} ({self.producer})"]
        lines.append(f"input {size}" + (f", {counted(len(self.classes), 'class')}" if self.classes else ""))
        if self.preprocessing:
            mean, std, crop = self.preprocessing
            numbers = ["(" + ", ".join(f"{number:.3g}" for number in each) + ")" for each in (mean, std)]
            lines.append(f"pictures: crop {crop:.3g}, (pixel / 255 - {numbers[0]}) / {numbers[1]}")
        return lines

    def layers(self) -> list[str]:
        """The layers with weights, a line each, and what is left in one."""
        heads = ("layer", "operation", "bits", "makes", "method", "J", "1-bit weights", "bytes", "MACs")
        is_layer = [bool(row.precision) for row in self.rows]
        cells = [_cells(row) for row, yes in zip(self.rows, is_layer, strict=True) if yes]
        rest = [row.bytes for row, yes in zip(self.rows, is_layer, strict=True) if not yes]
        macs = self.total("one_bit_macs") + self.total("float_macs")
        cells.append((counted(len(rest), "other"), *[""] * 6, f"{sum(rest):,}", ""))
        cells.append(("all", *[""] * 5, f"{self.total('bits'):,}", f"{self.total('bytes'):,}", f"{macs:,}"))
        return columns([heads, *cells], left=5)

    def totals(self) -> list[str]:
        """Multiply-adds by the bits of weights and inputs; the file, beside the same net in float."""
        macs: Counter[str] = Counter()
        for row in self.rows:
            macs[row.precision] += row.one_bit_macs + row.float_macs
        counts = ", ".join(f"{name} {count:,}" for name, count in macs.items() if name)
        lines = [f"multiply-adds an image: {counts or 'none'}"]
        lines.append(f"on disk: {self.file_bytes:,} bytes, of which graph, names and shapes {self.header_bytes:,}")
        if self.float_bits and self.paper_bits:
            lines.append(
                f"the same net in float: {self.float_bits // 8:,} bytes, {self.file_compression:.2f} times as much"
            )
            counted = f"{self.float_bits / 1e6:.1f} -> {self.paper_bits / 1e6:.1f} Mbit"
            lines.append(f"as the paper counts: {counted}, {self.paper_compression:.2f} x")
        return lines

    def as_json(self) -> dict[str, Any]:
        """For a program to read."""
        totals = {key: self.total(key) for key in ("bits", "bytes", "one_bit_macs", "float_macs")}
        found = self._asdict() | {"rows": [row._asdict() for row in self.rows], "totals": totals}
        found["preprocessing"] = self.preprocessing and self.preprocessing._asdict()
        return found | {"paper_compression": self.paper_compression, "file_compression": self.file_compression}


def summarize(model: Model, file_bytes: int | None = None) -> Summary:
    """Count what is in a model; its size on disk, if it is not given, is that of the bytes that it packs to."""
    graph, values = model.graph, model.values
    stored = Stored()
    rows = [_row(node, values, stored) for node in graph.nodes]
    size = len(pack_model(model)) if file_bytes is None else file_bytes
    float_bits = paper_bits = None
    if model.counts is not None:
        float_bits, paper_bits = 32 * model.counts.in_float, _paper_bits(graph, values, model.counts.full_precision)
    header = size - sum(row.bytes for row in rows)
    about = (model.description, model.producer, graph.input_shape, model.preprocessing, model.classes)
    return Summary(*about, rows, size, header, float_bits, paper_bits)


def _paper_bits(graph: Graph, values: dict[str, Value], full_precision: int) -> int:
    """The paper's memory table: a bit a weight of a 1-bit conv (of all J), 32 for the other weights and biases and
    for four numbers (those of a batch norm) for each channel that a 1-bit conv makes.
    """
    stored = Stored()
    convs = [node for node in graph.nodes if node.op == "bconv2d" and stored.is_new(node.tensors["kernels"])]
    shapes = [(node.attributes["out_channels"], bconv_shape(node, values[node.inputs[0]])) for node in convs]
    bits: int = sum(outputs * math.prod(shape[1:]) for outputs, shape in shapes)
    channels: int = sum(outputs for outputs, _ in shapes)
    return bits + 32 * (full_precision + 4 * channels)


class Stored:
    """Tensors that were seen before: a file stores equal ones once."""

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self.contents: set[tuple[str, bytes]] = set()

    def is_new(self, tensor: Array) -> bool:
        """Whether none like it was asked about before."""
        if id(tensor) in self.ids:
            return False
        self.ids.add(id(tensor))
        content = (f"{tensor.dtype} {tensor.shape}", tensor.tobytes())
        if content in self.contents:
            return False
        self.contents.add(content)
        return True


def _row(node: Node, values: dict[str, Value], stored: Stored) -> Row:
    made = values[node.name]
    size = sum(tensor.nbytes for tensor in node.tensors.values() if stored.is_new(tensor))
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
        precision=_precision(node, values[node.inputs[0]]),
        kind=made.kind,
        shape=made.shape,
        method=node.attributes.get("method", ""),
        projections=node.attributes.get("projections", 0),
        bits=bits,
        bytes=size,
        one_bit_macs=macs if is_binary else 0,
        float_macs=0 if is_binary else macs,
    )


def _precision(node: Node, value: Value) -> str:
    inputs = {"bits": 1, "levels": max(value.high - value.low, 1).bit_length(), "float": 32}.get(value.kind)
    if node.op == "bconv2d":
        return f"W1A{inputs}"
    return f"W{8 * node.tensors['weight'].itemsize}A{inputs}" if "weight" in node.tensors else ""


def _cells(row: Row) -> tuple[str, ...]:
    made = " x ".join(map(str, row.shape))
    numbers = (f"{n:,}" if n else "" for n in (row.bits, row.bytes, row.one_bit_macs + row.float_macs))
    return (row.name, row.op, row.precision, made, row.method, str(row.projections or ""), *numbers)


def columns(rows: list[tuple[str, ...]], left: int) -> list[str]:
    """Rows of cells as lines; the first `left` columns begin, the others end at the same place."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
