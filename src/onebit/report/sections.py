"""The parts of a page: what several runs have in common, and what there is to see of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from onebit.console import counted
from onebit.graph import Array
from onebit.pictures import kernel_grid
from onebit.report.charts import Series, bar_chart, figure, heat_map, line_chart
from onebit.report.gathering import Gathered, Kernels, Pictured
from onebit.report.images import picture, shares, strip
from onebit.report.page import folded, grid, paragraph, part, section, table
from onebit.report.text import escape
from onebit.training.kernels import REACH
from onebit.training.schedule import stages

MOST_CLASSES = 20  # of a confusion matrix that is drawn; of a larger one the worst pairs are listed
WORST_PAIRS = 15
MOST_COLUMNS = 40  # epochs of a chart of squares; of more every n-th is shown
SHOWN_KERNELS = 16
# Of the table of epochs: heads, and what the numbers are multiplied with.
COLUMNS = {
    "loss_s": ("loss", 1), "loss_p": ("L_P", 1), "train_top1": ("training, %", 1),
    "held_out_top1": ("held out, %", 1), "test_top1": ("test, %", 1),
    "flipped_kernels": ("bits turned, %", 100), "lr": ("learning rate", 1),
}  # fmt: skip
SHOWN_LAYERS = 6  # whose kernels are shown


def overview(runs: Sequence[Gathered]) -> str:
    """A table of the runs."""
    headings = ("run", "net", "data", "epochs", "top-1", "top-5", "best held out", "bytes on disk",
                "times smaller", "trained in")  # fmt: skip
    return section("Results", table(headings, map(_row, runs), left=3), *map(_notes, runs))


def _row(run: Gathered) -> tuple[str, ...]:
    summary: dict[str, Any] = run.summary or {}
    last = run.epochs[-1] if run.epochs else {}
    seconds = summary.get("training_seconds", last.get("training_seconds"))
    held = [record["held_out_top1"] for record in run.epochs if "held_out_top1" in record]
    packed = run.packed
    return (
        run.name,
        run.spec.summary(),
        run.spec.data,
        str(summary.get("epochs", f"{len(run.epochs)} of {sum(stage.epochs for stage in stages(run.config))}")),
        _percent(summary.get("test_top1", last.get("test_top1"))),
        _percent(summary.get("test_top5", last.get("test_top5"))),
        _percent(max(held, default=None)),
        f"{packed.file_bytes:,}" if packed else "-",
        f"{packed.file_compression:.1f}" if packed and packed.file_compression else "-",
        f"{seconds:.0f} s" if seconds is not None else "-",
    )


def _percent(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f} %"


def _notes(run: Gathered) -> str:
    return "".join(paragraph(f"{run.name}: {note}") for note in run.notes)


def curves(runs: Sequence[Gathered]) -> str:
    """Loss, accuracy, flipped bits and the learning rate over the epochs, all runs in each chart."""
    several = len(runs) > 1

    def lines(key: str, word: str, *, factor: float = 1, dashed: bool = False, colour: int = 0) -> list[Series]:
        return [
            Series(
                f"{run.name}, {word}" if several else word,
                [(record["at"], factor * record[key]) for record in run.epochs if key in record],
                number if several else colour,
                dashed,
            )
            for number, run in enumerate(runs)
        ]

    accuracy = [
        *lines("train_top1", "training", dashed=True),
        *lines("held_out_top1", "held out", colour=1),
        *lines("test_top1", "test", colour=2),
    ]
    losses = [*lines("loss_s", "training", dashed=True), *lines("held_out_loss", "held out", colour=1)]
    of_kernels = lines("flipped_kernels", "kernels", factor=100)
    of_matrices = _not_zero(lines("flipped_projections", "W", factor=100))
    charts = (
        line_chart("accuracy", accuracy, "top-1, %", legend=True),
        line_chart("loss (cross entropy)", losses, "loss", legend=True, log=True),
        line_chart("projection loss L_P", _not_zero(lines("loss_p", "L_P")), "L_P", legend=several),
        line_chart("bits of kernels that an epoch turned", of_kernels, "%", legend=several),
        line_chart("bits of projection matrices that an epoch turned", of_matrices, "%", legend=several),
        line_chart("learning rate", lines("lr", "lr"), "lr", legend=several),
    )  # fmt: skip
    return section("Training", grid(*charts), *(folded(f"{run.name}: numbers", _numbers(run)) for run in runs))


def _not_zero(series: list[Series]) -> list[Series]:
    return [line for line in series if any(y for _, y in line.points)]


def _numbers(run: Gathered) -> str:
    there = [key for key in COLUMNS if any(key in record for record in run.epochs)]
    rows = [
        [str(r["at"]), *(f"{COLUMNS[key][1] * r[key]:.4g}" if key in r else "" for key in there)]
        for r in run.epochs
    ]
    return table(["epoch", *(COLUMNS[key][0] for key in there)], rows, left=0) if rows else ""


def details(run: Gathered) -> str:
    """Everything about one run."""
    return "".join((
        part("What it sees", _samples(run), _confusion(run)),
        part("Kernels, in units of a = mean |C|", _histograms(run), _over_epochs(run), _flips(run)),
        part("Kernels as learned (left), and as bits (right)", _kernel_pictures(run.kernels)),
        part("Feature maps before and after binarization", _maps(run)),
        part("Layers", _layers(run)),
        part("How it was trained", _config(run)),
    ))  # fmt: skip


def _samples(run: Gathered) -> str:
    if run.seen is None or not run.pixels:
        return ""
    names = run.spec.class_names
    at = {int(row): place for place, row in enumerate(run.seen.rows)}
    shown = []
    for row, pixels in run.pixels.items():
        label, guess = int(run.seen.labels[at[row]]), int(run.seen.guessed[at[row]])
        said = names[guess] if label == guess else f"{names[guess]}, not {names[label]}"
        image = pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels[0]
        image = image[:: -(-len(image) // 96), :: -(-len(image) // 96)]  # of large ones some pixels will do
        kind = "right" if label == guess else "wrong"
        shown.append(f'<div class="{kind}">{picture(image, said, scale=64 / len(image))}{escape(said)}</div>')
    right = int((run.seen.labels == run.seen.guessed).sum())
    told = f"{right} of {len(run.seen.labels)} test images right; some of them, and some that are wrong:"
    return paragraph(told) + f'<div class="samples">{"".join(shown)}</div>'


def _confusion(run: Gathered) -> str:
    if run.seen is None:
        return ""
    names, count = run.spec.class_names, run.spec.num_classes
    matrix = np.zeros((count, count), int)
    np.add.at(matrix, (run.seen.labels, run.seen.guessed), 1)
    if count <= MOST_CLASSES:
        title = "confusion matrix: a row for what an image is, a column for what the net says"
        return grid(heat_map(title, matrix.tolist(), (names, names), lambda n: f"{n:.0f}", written=True))
    pairs = Counter({(i, j): int(matrix[i, j]) for i, j in zip(*np.nonzero(matrix), strict=True) if i != j})
    rows = [(names[i], names[j], str(n)) for (i, j), n in pairs.most_common(WORST_PAIRS)]
    return paragraph("Confused most often:") + table(("it is", "the net says", "images"), rows, left=2)


def _histograms(run: Gathered) -> str:
    charts = [
        bar_chart(name, layer["counts"], REACH, _scale_in_words(layer)) for name, layer in run.last_kernels.items()
    ]
    ends = f"what is beyond ±{REACH:.0f} a counts in the bars at the ends"
    told = paragraph(f"Dashed: -a and +a. From -{REACH:.0f} a to {REACH:.0f} a; {ends}.")
    return told + grid(*charts, small=True) if charts else ""


def _scale_in_words(layer: dict[str, Any]) -> str:
    scale = layer["scale"]
    return f"mean |C| = {layer['a']:.3g}" + ("" if scale is None else f", bits stand for ±{scale:.3g}")


def _over_epochs(run: Gathered) -> str:
    """A picture a layer: a row for each epoch, the first at the top."""
    if not run.last_kernels:
        return ""
    if len(run.kernel_records) < 2:
        return paragraph("How the kernels were spread in earlier epochs was not kept by this run.")
    charts = []
    for name in run.last_kernels:
        layers = [record["layers"][name] for record in run.kernel_records if name in record["layers"]]
        if not layers:
            continue
        rows = np.array([layer["counts"] for layer in layers], float)
        drawn = picture(
            shares(rows / np.maximum(rows.max(axis=1, keepdims=True), 1)), f"{name}: {counted(len(rows), 'epoch')}"
        )
        drawn = drawn.replace("width:100%", f"width:100%;height:{max(60, min(160, 6 * len(rows)))}px")
        lines = "".join(f'<i style="left:{50 + 50 * mark / REACH:.2f}%"></i>' for mark in (-1, 1))
        charts.append(figure(f"{name}, over epochs (downwards)", f'<div class="over">{drawn}{lines}</div>'))
    return folded("over the epochs, layer by layer", grid(*charts, small=True), is_open=True)


def _flips(run: Gathered) -> str:
    names = list(run.last_kernels)
    later = [r for r in run.kernel_records if r["epoch"] and r["layers"].keys() >= set(names)]  # not the start
    if not later:
        return ""
    later = later[:: -(-len(later) // MOST_COLUMNS)]
    rows = [[100 * record["layers"][name]["flipped"] for record in later] for name in names]
    epochs = [str(record["at"]) for record in later]
    return grid(heat_map("bits turned in an epoch, by layer, %", rows, (names, epochs), lambda n: f"{n:.2f} %"))


def _kernel_pictures(kernels: Sequence[Kernels]) -> str:
    chosen = {round(n * (len(kernels) - 1) / max(1, SHOWN_LAYERS - 1)) for n in range(SHOWN_LAYERS)}
    figures = []
    for at in sorted(chosen) if kernels else ():
        layer, learned, used = kernels[at]
        grids = [kernel_grid(_grey(learned), SHOWN_KERNELS, 3), kernel_grid(_grey(used), SHOWN_KERNELS, 3)]
        both = np.concatenate([np.pad(g, ((0, 0), (0, 6)), constant_values=128) for g in grids], axis=1)
        figures.append(
            figure(f"{layer}, its first kernels", picture(both[:, :-6], f"{layer}: kernels, learned and as bits"))
        )
    return grid(*figures)


def _grey(weight: Array) -> Array:
    """Numbers of -1 to 1: twice the mean size and more is black or white."""
    return (
        np.clip(weight / (2 * np.abs(weight).mean() + 1e-30), -1, 1)
        if len(np.unique(weight)) > 2
        else np.sign(weight)
    )


def _maps(run: Gathered) -> str:
    if not run.pictured:
        return ""
    maps = grid(*(figure(f"{each.layer}: its first channels", _rows_of_maps(each)) for each in run.pictured))
    return paragraph("Of the first picture above; each map from its least number (black) to its largest.") + maps


def _rows_of_maps(each: Pictured) -> str:
    rows = (
        ("input", each.before),
        ("input as 1 bit", each.signs),
        ("output with the learned kernels", each.learned),
        ("output with 1-bit kernels", each.one_bit),
    )
    return "".join(
        f"<p>{name}</p>{picture(strip(maps, signs=maps is each.signs), f'{each.layer}: {name}')}"
        for name, maps in rows
        if maps
    )


def _layers(run: Gathered) -> str:
    if run.packed is None:
        return ""
    rows = [
        (r.name, r.op, r.precision, " x ".join(map(str, r.shape)), f"{r.bits:,}" if r.bits else "",
         f"{r.bytes:,}", f"{r.one_bit_macs + r.float_macs:,}")
        for r in run.packed.rows if r.precision
    ]  # fmt: skip
    headings = ("layer", "operation", "bits", "makes", "1-bit weights", "bytes", "multiply-adds")
    told = "".join(map(paragraph, run.packed.totals()))
    return told + folded("layer by layer", table(headings, rows, left=4), is_open=True)


def _config(run: Gathered) -> str:
    given = run.config.model_dump(exclude_defaults=True)
    places = {"data_dir", "teacher", "initial_checkpoint"}  # nobody's business who is sent the page
    rows = [(key.replace("_", " "), str(value)) for key, value in given.items() if key not in places]
    return table(("key", "value"), rows, left=2)
