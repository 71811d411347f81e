"""`onebit inspect`: what is in a model file."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from onebit.console import counted, tell
from onebit.jsonfields import json_text
from onebit.paths import user_path
from onebit.zoo import model_path

if TYPE_CHECKING:
    from onebit.modelfile import Model
    from onebit.summary import Summary

HELP = "show what is in a .onebit file: layers, bits, bytes, multiply-adds, compression"
EXAMPLES = """examples:
  onebit inspect net.onebit                    its layers, and what they take
  onebit inspect zoo:digits-w1a1               the same of a net that comes with the package (onebit zoo)
  onebit inspect net.onebit --graph            every operation, what it reads and what it makes
  onebit inspect net.onebit --images KERNELS   pictures of the binary kernels, a PNG a layer
  onebit inspect net.onebit --json             for a program to read
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("file", metavar="FILE", help="a .onebit file, or zoo:NAME")
    parser.add_argument("--graph", action="store_true", help="print every operation")
    parser.add_argument("--images", metavar="DIR", help="draw the binary kernels into this folder")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print what is in the file."""
    from onebit.modelfile import read_model
    from onebit.summary import summarize

    model = read_model(arguments.file)
    summary = summarize(model, model_path(arguments.file).stat().st_size)
    drawn = []
    if arguments.images:
        from onebit.pictures import draw_kernels

        drawn = draw_kernels(model, user_path(arguments.images))
    if arguments.json:
        tell(json_text(summary.as_json() | {"images": [str(file) for file in drawn]}))
        return 0
    parts = graph_lines(model, summary) if arguments.graph else summary.layers()
    tell(*summary.about(), "", *parts, "", *summary.totals())
    if drawn:
        from onebit.pictures import LEGEND

        tell(f"{counted(len(drawn), 'picture')} in {drawn[0].parent}: {LEGEND}")
    return 0


def graph_lines(model: Model, summary: Summary) -> list[str]:
    """Every node: its name, what it makes, and of what."""
    from onebit.summary import columns

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
