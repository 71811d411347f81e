"""Accuracy against bytes, a point for each contestant."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from onebit.comparison.table import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart by people who see colours otherwise, too (Okabe and Ito's); and by their markers.
KINDS = {"float": ("#000000", "s"), "32": ("#0072B2", "o"), "1": ("#D55E00", "^"), "few": ("#009E73", "D")}
NAMES = {"float": "float net", "32": "binarised, float activations", "1": "binarised, 1-bit activations",
         "few": "binarised, few-bit activations"}  # fmt: skip


def plot(table: Sequence[Row], title: str, kind: str) -> bytes:
    """A picture of the table as 'svg' or 'png'."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure = Figure(figsize=(8, 5), layout="constrained")  # no pyplot: no display, nothing global
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: _bytes(size)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(title=title, xlabel="bytes of the trained net (counted)", ylabel="top-1 on the test images, %")
    axes.grid(alpha=0.3)
    for group, (colour, marker) in KINDS.items():
        points = [row for row in table if _kind(row) == group]
        if points:
            axes.errorbar(
                [row.bytes for row in points],
                [row.top1 for row in points],
                yerr=[row.spread or 0.0 for row in points] if any(row.spread for row in points) else None,
                color=colour, marker=marker, linestyle="none", capsize=3, label=NAMES[group],
            )  # fmt: skip
    sizes, scores = [row.bytes for row in table], [row.top1 for row in table]
    axes.set_xlim(min(sizes) / 1.5, max(sizes) * 1.5)  # a table may have one point, or all at one place
    if max(scores) - min(scores) < 1:
        axes.set_ylim(min(scores) - 1, max(scores) + 1)
    _label(axes, table)
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    return picture(figure, kind)


def picture(figure: Figure, kind: str) -> bytes:
    """A figure as a file of this kind, 'png' or 'svg'. The same numbers give the same bytes."""
    from matplotlib import rc_context

    file = io.BytesIO()
    with rc_context({"svg.hashsalt": "onebit"}):
        figure.savefig(file, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return file.getvalue()


def _label(axes: Axes, table: Sequence[Row]) -> None:
    """Names in a column beside the axes, in the order of the points, with a line to each: they never overlap."""
    low, high = axes.get_ylim()
    step = (high - low) / max(20, len(table))
    ordered = sorted(table, key=lambda row: row.top1)
    places = [row.top1 for row in ordered]
    for i in reversed(range(len(places))):  # down from the top, each below the last
        places[i] = min(places[i], high - step / 2 if i + 1 == len(places) else places[i + 1] - step)
    for i in range(len(places)):  # and up again from the bottom, as far as needed
        places[i] = max(places[i], low if i == 0 else places[i - 1] + step)
    for row, at in zip(ordered, places, strict=True):
        colour, _ = KINDS[_kind(row)]
        axes.annotate(
            row.method,
            (row.bytes, row.top1),
            xytext=(1.03, (at - low) / (high - low)),
            textcoords="axes fraction",
            fontsize="small", color=colour, va="center", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "alpha": 0.3, "linewidth": 0.7},
        )  # fmt: skip


def _kind(row: Row) -> str:
    if row.weight_bits == 32:
        return "float"
    return str(row.activation_bits) if row.activation_bits in {1, 32} else "few"


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:g} {unit}"
        size /= 1000
    return f"{size:g} GB"
