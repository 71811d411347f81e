"""`onebit inspect`: what is in a model file."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onebit.modelfile import Model
    from onebit.summary import Row, Summary

HELP = "show what is in a .onebit file: layers, bits, bytes, multiply-adds, compression"
EXAMPLES = """examples:
  onebit inspect net.onebit                    its layers, and what they take
  onebit inspect net.onebit --graph            every operation, what it reads and what it makes
  onebit inspect net.onebit --images KERNELS   pictures of the binary kernels, a PNG a layer
  onebit inspect net.onebit --json             for a program to read
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("file", metavar="FILE", help="a .onebit file")
    parser.add_argument("--graph", action="store_true", help="print every operation")
    parser.add_argument("--images", metavar="DIR", help="draw the binary kernels into this folder")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print what is in the file."""
    from pathlib import Path

    from onebit.modelfile import read_model
    from onebit.summary import summarize

    model = read_model(arguments.file)
    summary = summarize(model)
    drawn = []
    if arguments.images:
        from onebit.pictures import draw_kernels

        drawn = draw_kernels(model, Path(arguments.images).expanduser())
    if arguments.json:
        print(json.dumps(summary.as_json() | {"images": [str(file) for file in drawn]}))  # noqa: T201
        return 0
    lines = graph_lines(model, summary) if arguments.graph else layer_lines(summary)
    print("\n".join([*about(model, summary), "", *lines, "", *totals(summary)]))  # noqa: T201
    if drawn:
        print(f"{len(drawn)} pictures of kernels in {drawn[0].parent}")  # noqa: T201
    return 0


def about(model: Model, summary: Summary) -> list[str]:
    """What the net is and what it takes."""
    size = " x ".join(str(side) for side in summary.input_shape)
    classes = f", {len(model.classes)} classes" if model.classes else ""
    prepared = ""
    if model.preprocessing:
        mean, std, crop = model.preprocessing
        numbers = ["(" + ", ".join(f"{number:.3g}" for number in each) + ")" for each in (mean, std)]
        prepared = f"; pictures: crop {crop:.3g}, (pixel / 255 - mean) / std, mean {numbers[0]}, std {numbers[1]}"
    return [f"{summary.description or 'a net'} ({model.producer})", f"input {size}{classes}{prepared}"]


def layer_lines(summary: Summary) -> list[str]:
    """The layers with weights, a line each, and what is left in one."""
    heads = ("layer", "operation", "makes", "method", "J", "1-bit weights", "bytes", "1-bit MACs", "float MACs")
    layers = [row for row in summary.rows if row.one_bit_macs or row.float_macs]
    rest = [row for row in summary.rows if not (row.one_bit_macs or row.float_macs)]
    cells = [_cells(row) for row in layers]
    cells.append((f"{len(rest)} others", "", "", "", "", "", f"{sum(row.bytes for row in rest):,}", "", ""))
    cells.append(("all", "", "", "", "", *(f"{sum(getattr(r, k) for r in summary.rows):,}" for k in _SUMS)))
    return columns([heads, *cells], left=4)


_SUMS = ("bits", "bytes", "one_bit_macs", "float_macs")


def _cells(row: Row) -> tuple[str, ...]:
    made = " x ".join(str(side) for side in row.shape)
    numbers = (
        f"{number:,}" if number else "" for number in (row.bits, row.bytes, row.one_bit_macs, row.float_macs)
    )
    return (row.name, row.op, made, row.method, str(row.projections or ""), *numbers)


def graph_lines(model: Model, summary: Summary) -> list[str]:
    """Every node: its name, what it makes, and of what."""
    cells: list[tuple[str, ...]] = []
    for node, row in zip(model.graph.nodes, summary.rows, strict=True):
        said = [
            f"{key}={value}" for key, value in node.attributes.items() if key != "method" and _is_told(key, value)
        ]
        tensors = [f"{role}: {tensor.dtype}{list(tensor.shape)}" for role, tensor in node.tensors.items()]
        made = f"{row.kind} {' x '.join(map(str, row.shape))}"
        cells.append((node.name, made, f"{node.op}({', '.join([*node.inputs, *said, *tensors])})"))
    return columns(cells, left=3)


def _is_told(key: str, value: object) -> bool:
    usual = {"stride": [1, 1], "padding": [0, 0, 0, 0], "dilation": [1, 1], "groups": 1, "projections": 1}
    return usual.get(key) != value


def totals(summary: Summary) -> list[str]:
    """The file, and how it compares with the same net in float."""
    graph = f"{summary.header_bytes:,} of them for the graph, names and shapes"
    lines = [f"on disk: {summary.file_bytes:,} bytes, {graph}"]
    if summary.float_bits and summary.paper_bits:
        lines[0] += (
            f"; the same net in float: {summary.float_bits // 8:,}: {summary.file_compression:.2f} times smaller"
        )
        counted = f"{summary.float_bits / 1e6:.1f} -> {summary.paper_bits / 1e6:.1f} Mbit"
        lines.append(
            f"as the paper counts (parameters, no slopes of PReLU): {counted}, {summary.paper_compression:.2f} x"
        )
    return lines


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
