"""The paper's figures, drawn from records (and, where kernels are shown, from a trained net)."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from onebit.comparison.plot import picture
from onebit.reproduction.outcomes import Outcome
from onebit.reproduction.records import Histogram, Record
from onebit.training.kernels import BINS, REACH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart by people who see colours otherwise, too (Okabe and Ito's).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
SHOWN_EPOCHS = 4


def new_figure(width: float, height: float, title: str) -> Figure:
    """Without pyplot: no display, nothing global. The first line of the title is larger than the others."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    first, *others = title.splitlines()
    below = [part for line in others for part in wrap(line, int(14 * width))]
    figure.suptitle("\n".join([*wrap(first, int(11 * width)), *below]), fontsize="medium")
    return figure


def drawn(figure: Figure) -> dict[str, bytes]:
    """The picture by its ending."""
    return {kind: picture(figure, kind) for kind in ("png", "svg")}


def spread_of(histogram: Histogram) -> dict[str, float]:
    """Numbers about a histogram: how large kernels are, how near to 0 and how near to -a and +a.

    std          of C, where what is beyond REACH * a counts as that; the others are in units of a = mean |C|
    deviation    of |C| from a: 0 if all are at -a and +a; 0.756 for a normal distribution around 0
    near_zero    the share with |C| < a/4: 0.158 for a normal distribution
    peak         where |C| is most often: the middle of the fullest bin
    """
    counts = np.array(histogram.counts, dtype=float)
    centres = (np.arange(BINS) + 0.5) * (2 * REACH / BINS) - REACH
    share = counts / counts.sum()
    upper = (counts + counts[::-1])[BINS // 2 :]
    mean = float((share * centres).sum())
    return {
        "std": histogram.a * float(np.sqrt((share * (centres - mean) ** 2).sum())),
        "deviation": float(np.sqrt((share * (np.abs(centres) - 1) ** 2).sum())),
        "near_zero": float(share[np.abs(centres) < 0.25].sum()),
        "peak": float(centres[BINS // 2 + upper.argmax()]),
        "a": histogram.a,
    }


def histograms(parts: Sequence[tuple[str, Histogram | None]], title: str) -> Figure:
    """Side by side, in the kernels' own units, each with lines at -a and +a; None is shown as unfinished."""
    figure = new_figure(max(6.0, 2.6 * len(parts)), 3.2, title)
    axes = figure.subplots(1, len(parts), squeeze=False)[0]
    for ax, (label, histogram) in zip(axes, parts, strict=True):
        ax.set_title(label, fontsize="small")
        ax.set_yticks([])
        if histogram is None:
            ax.set_xticks([])
            ax.text(0.5, 0.5, "unfinished", ha="center", va="center", transform=ax.transAxes)
            continue
        edges = np.linspace(-REACH, REACH, BINS + 1) * histogram.a
        ax.stairs(histogram.counts, edges, fill=True, color=COLOURS[0])
        for mark in (-histogram.a, histogram.a):
            ax.axvline(mark, color=COLOURS[1], linestyle="--", linewidth=1)
        numbers = spread_of(histogram)
        words = f"kernel; a = {histogram.a:.3g}, std = {numbers['std']:.3g}"
        ax.set_xlabel(f"{words}\nmost often {numbers['peak']:.2f} a", fontsize="small")
        ax.tick_params(labelsize="x-small")
    return figure


def over_lambda(found: Sequence[Outcome], title: str) -> tuple[Figure | None, dict[str, Any]]:
    """Fig. 2: the last epoch of each."""
    parts = [(o.entry.where[0], o.chosen[0].kernels[-1] if o.chosen else None) for o in found]
    numbers = {
        label: {**spread_of(last), "top1": outcome.top1}
        for outcome, (label, last) in zip(found, parts, strict=True)
        if last
    }
    return (histograms(parts, title) if numbers else None), numbers


def over_epochs(found: Sequence[Outcome], title: str) -> tuple[Figure | None, dict[str, Any]]:
    """Fig. 3: some epochs of one run, from the second to the last; the records begin with epoch 0."""
    if not found[0].chosen:
        return None, {}
    kernels = found[0].chosen[0].kernels
    at = np.unique(np.linspace(min(2, len(kernels) - 1), len(kernels) - 1, SHOWN_EPOCHS).round().astype(int))
    parts = [(f"epoch {kernels[n].epoch}", kernels[n]) for n in at]
    return histograms(parts, title), {label: spread_of(histogram) for label, histogram in parts}


def losses(found: Sequence[Outcome], title: str) -> tuple[Figure | None, dict[str, Any]]:
    """Fig. 4: losses over the epochs, of training images and of images that were not trained on."""
    runs = [(outcome.entry.where[0], outcome.chosen[0]) for outcome in found if outcome.chosen]
    if not runs:
        return None, {}
    figure = new_figure(7, 4.5, title)
    ax = figure.subplots()
    numbers: dict[str, Any] = {}
    for colour, (label, record) in zip(COLOURS, runs, strict=False):
        epochs = range(1, len(record.curves["epoch"]) + 1)
        unseen = unseen_loss(record)
        ax.plot(epochs, _points(record.curves["loss_s"]), color=colour, linestyle="--", label=f"{label}, training")
        numbers[label] = {"training": record.curves["loss_s"], "top1": record.top1}
        for kind, values in unseen.items():
            ax.plot(epochs, _points(values), color=colour, label=f"{label}, {kind}")
            numbers[label][kind] = values
    for label in (outcome.entry.where[0] for outcome in found if not outcome.chosen):
        ax.plot([], [], " ", label=f"{label}: unfinished")
    over_epochs_axis(ax, "cross entropy")
    ax.legend(fontsize="small")
    return figure, numbers


def over_epochs_axis(ax: Axes, label: str) -> None:
    """Epochs are whole numbers."""
    from matplotlib.ticker import MaxNLocator

    ax.set(xlabel="epoch", ylabel=label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(alpha=0.3)


def _points(numbers: Sequence[float | None]) -> list[float]:
    """What is missing leaves a gap."""
    return [float("nan") if number is None else number for number in numbers]


def unseen_loss(record: Record) -> dict[str, list[float | None]]:
    """The loss of test images if it was followed, else of held-out ones, if there are any; by what it is of."""
    for key, label in (("test_loss", "test"), ("held_out_loss", "held out")):
        if any(value is not None for value in record.curves[key]):
            return {label: record.curves[key]}
    return {}
