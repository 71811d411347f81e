"""Makes docs/results.md, its plots, and what stands in results/ anew from the records: `python docs/results.py`."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onebit.comparison.plot import plot
from onebit.comparison.table import Row
from onebit.reproduction.figures import COLOURS, drawn, new_figure, over_epochs_axis, spread_of
from onebit.reproduction.making import NEEDS_WEIGHTS, PLANNERS, make
from onebit.reproduction.outcomes import Outcome, outcomes
from onebit.reproduction.plans import Setting
from onebit.reproduction.records import RECORDS, Record, read_record
from onebit.reproduction.sheets import Made, as_table, write

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results" / "cpu"
SETTING = Setting("cpu", RESULTS, "tiny-imagenet-20")  # the folder that table-imagenet is of
MEASURED = ("table-memory", "table-w1a8")  # not made of records


def records() -> list[Record]:
    """All that are kept."""
    return [read_record(file) for file in sorted((RESULTS / RECORDS).glob("*.json"))]


def made(name: str) -> Made:
    """A table, from the records that are there."""
    return make(SETTING, PLANNERS[name](SETTING))


def table_of(name: str) -> str:
    """A table and what is to be said of it; its unfinished runs in one line."""
    found = made(name)
    unfinished = [remark for remark in found.remarks if remark.startswith("unfinished")]
    remarks = [remark for remark in found.remarks if remark not in unfinished]
    if unfinished:
        count = len(unfinished)
        remarks.append(f"{count} {'run is' if count == 1 else 'runs are'} not finished yet")
    command = f"`onebit reproduce {name} --budget cpu --data-dir DATA`"
    return "\n".join([f"{command}; {found.sentence}.", "", *as_table(found.sheets[0]), "", *_listed(remarks)])


def measured(name: str) -> str:
    """A table that was written when it was measured."""
    file = RESULTS / f"{name}.md"
    if not file.is_file():
        return "not measured yet"
    _, _, body = file.read_text().partition("\n\n")
    return body.rstrip()


def _listed(lines: list[str]) -> list[str]:
    return [f"- {line}" for line in lines]


def spread_table() -> str:
    """Std of the first 1-bit layer's kernels over the epochs: for every lambda, and without weight decay on C."""
    no_decay = [outcome for outcome in finished("table-lambda") if "no weight decay" in outcome.entry.where[0]]
    lines, epochs = [], 0
    for outcome in [*finished("figure-lambda"), *no_decay]:
        first = outcome.chosen[0]
        epochs = first.epochs
        numbers = [spread_of(histogram) for histogram in first.kernels]
        last = numbers[-1]
        label = outcome.entry.where[0].replace("PCNN-22, ", "lambda = 0.0001, ")
        cells = [label, *(f"{each['std']:.3f}" for each in numbers), f"{last['a']:.3f}", f"{last['peak']:.2f} a"]
        lines.append(f"| {' | '.join(cells)} |")
    heads = [
        "std of C",
        "at the start",
        *(f"epoch {n}" for n in range(1, epochs + 1)),
        "a at the end",
        "most often at",
    ]
    words = "First 1-bit layer, seed 0, from the histograms of the records; numbers beyond 4 a count as 4 a."
    return "\n".join([f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}", *lines, "", words])


def runs_table() -> str:
    """Every run that is kept: what it came to, how long it took, how to do it again."""
    lines = ["| run | top-1 % | epochs | seed | minutes | commit |", "|---|---:|---:|---:|---:|---|"]
    kept = [record for record in records() if record.is_current]
    for record in kept:
        link = f"[{record.name}](../results/cpu/{RECORDS}/{record.name}.json)"
        cells = (link, f"{record.top1:.2f}", record.epochs, record.seed, f"{record.minutes:.0f}", record.commit)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    cpus = ", ".join(
        sorted({f"{record.cpu}, {record.threads} thread a run, torch {record.torch}" for record in kept})
    )
    words = f"CPU: {cpus}; minutes by the clock, with pauses while something else was measured."
    words += " A record has the command that does the run again."
    withdrawn = sorted({record.config["method"] for record in records() if not record.is_current})
    if withdrawn:
        forms = f"earlier forms of {', '.join(withdrawn)}, which this version has no more"
        words += f" Left out are records of {forms}: their figures are withdrawn."
    return "\n".join([*lines, "", words])


def with_tables() -> str:
    """The page, its tables made anew."""
    filled = runpy.run_path(str(DOCS / "tables.py"))["filled"]
    tables: dict[str, Callable[[], str]] = {
        name: (lambda name=name: table_of(name))
        for name in PLANNERS
        if name.startswith("table") and name not in MEASURED
    }
    tables |= {name: (lambda name=name: measured(name)) for name in MEASURED}
    text: str = filled((DOCS / "results.md").read_text(), tables | {"runs": runs_table, "spread": spread_table})
    return text


def from_records() -> list[str]:
    """Tables and figures that records are enough for."""
    return [name for name in PLANNERS if name not in NEEDS_WEIGHTS]


def finished(name: str) -> list[Outcome]:
    """The entries of a table that have a result."""
    found = outcomes(PLANNERS[name](SETTING), RESULTS)
    return [outcome for outcome in found if outcome.chosen]


def accuracy_against_bytes() -> bytes:
    """Every method, and the nets that were trained for longer."""
    rows = []
    for name in ("table-methods", "table-best"):
        for outcome in finished(name):
            record = outcome.chosen[0]
            label = (
                outcome.entry.where[0] if name == "table-methods" else f"{_short(record)}, {record.epochs} epochs"
            )
            rows.append(
                Row(label, record.weight_bits, record.activation_bits, record.parameters, record.bytes, record.top1,
                    None, 1, record.config["lr"], record.minutes, 0)
            )  # fmt: skip
    return plot(rows, "CIFAR-10 (JPEG), WRN-22, i = 16, budget cpu: 5 epochs but where said", "svg")


def _short(record: Record) -> str:
    return "float" if record.weight_bits == 32 else f"pcnn W1A{record.activation_bits}"


def curves() -> bytes:
    """Accuracy over the epochs: of every method at its rate, and of the nets that were trained for longer."""
    figure = new_figure(10, 4.5, "CIFAR-10 (JPEG), WRN-22, i = 16: top-1 over the epochs\nbudget cpu")
    axes = figure.subplots(1, 2)
    parts: list[tuple[Any, str, str, str]] = [
        (axes[0], "table-methods", "held_out_top1", "5,000 held-out images"),
        (axes[1], "table-best", "test_top1", "test images"),
    ]
    for ax, name, key, label in parts:
        for number, outcome in enumerate(finished(name)):
            record = outcome.chosen[0]
            style = "-" if number < len(COLOURS) else "--"
            shown = outcome.entry.where[0] if name == "table-methods" else _short(record)
            values, first = record.curves[key], record.curves["stage"].count(1)
            if first < len(values):
                shown += f" (W1A32 until epoch {first})"
            ax.plot(range(1, len(values) + 1), values, style, color=COLOURS[number % len(COLOURS)], label=shown)
        over_epochs_axis(ax, f"top-1 %, {label}")
        ax.legend(fontsize="x-small")
    return drawn(figure)["svg"]


def main() -> None:
    """Write the page and its plots, and all that needs no more than records."""
    for name in from_records():
        write(RESULTS, made(name))
    (DOCS / "images" / "accuracy-bytes.svg").write_bytes(accuracy_against_bytes())
    (DOCS / "images" / "curves.svg").write_bytes(curves())
    (DOCS / "results.md").write_text(with_tables())


if __name__ == "__main__":
    main()
