"""Writes the tables of docs/comparing.md, export.md and format.md anew from the code: `python docs/tables.py`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from onebit.attributes import REQUIRED
from onebit.exporting.rules import support_table
from onebit.methods import METHODS, authors_of
from onebit.operations import OPERATIONS

DOCS = Path(__file__).parent
SHORT = {"float32": "F32", "float16": "F16", "int8": "I8", "uint8": "U8", "int32": "I32"}


def operation_table() -> str:
    """Every operation of a model file: attributes with their defaults, tensors with their dtypes."""
    lines = ["| operation | takes | makes | attributes (default) | tensors |", "|---|---|---|---|---|"]
    for name, operation in OPERATIONS.items():
        many = {1: "", 2: "two "}.get(operation.most_inputs, "one or more ")
        attributes = [
            f"`{key}`" + ("" if rule.default is REQUIRED else f" ({json.dumps(rule.default)})")
            for key, rule in operation.attributes.items()
        ]
        tensors = [
            f"`{role.rstrip('?')}` {'/'.join(SHORT[dtype] for dtype in dtypes)}{', optional' * role.endswith('?')}"
            for role, dtypes in operation.tensors.items()
        ]
        cells = (
            f"`{name}`",
            many + ", ".join(operation.takes),
            operation.does,
            ", ".join(attributes),
            "; ".join(tensors),
        )
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |"))
    return "\n".join(lines)


RATES = {"as others": "1", "glorot": "sqrt((in + out) * k * k / 1.5)", "n(1-1/in)": "n (1 - 1/in), n = in * k * k"}


def authors_table() -> str:
    """How each method's authors train its latent kernels."""
    lines = [
        "| method | optimizer | first learning rate | rate of latent kernels, times | they decay | are clipped |",
        "|---|---|---:|---|---|---|",
    ]
    for method in METHODS:
        authors = authors_of(method)
        rate = "not known" if authors.lr is None else f"{authors.lr:g}"
        decay, clipped = ("yes" if each else "no" for each in (authors.decays_latents, authors.clips_latents))
        cells = (f"`{method}`", authors.optimizer, rate, RATES[authors.latent_rate], decay, clipped)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


TABLES = {
    "comparing.md": {"authors": authors_table},
    "export.md": {"supported": support_table},
    "format.md": {"operations": operation_table},
}


def filled(text: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """The text of a document with its tables made anew; each stands between two marks."""
    for name, make in tables.items():
        start, end = f"<!-- table: {name} -->\n", "<!-- end of table -->"
        before, mark, rest = text.partition(start)
        _, closing, after = rest.partition(end)
        if not mark or not closing:
            raise ValueError(f"there is no place for the table {name}")
        text = f"{before}{start}{make()}\n{end}{after}"
    return text


def with_tables(file: str) -> str:
    """A document with its tables made anew."""
    return filled((DOCS / file).read_text(), TABLES[file])


if __name__ == "__main__":
    for file in TABLES:
        (DOCS / file).write_text(with_tables(file))
