"""`onebit demo`: what a 1-bit net costs and gives, on real images."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from onebit.advice import program
from onebit.errors import UserError
from onebit.jsonfields import json_text
from onebit.paths import user_path

if TYPE_CHECKING:
    from onebit.demonstration import Outcome

HELP = "train a 1-bit net and its float twin, run both from files, compare: a table and a page to look at"
EXAMPLES = """examples:
  onebit demo                                  on handwritten digits of the package: 1 to 3 minutes
  onebit demo --projections 2                  two projections from each kernel: half as many kernels
  onebit demo --data cifar10 --data-dir DATA   on CIFAR-10, 3 epochs; it is fetched into DATA if it is not there
"""
HEADINGS = ("net", "accuracy", "bytes", "smaller", "PyTorch\nms", "onebit\nms", "faster", "agree")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--data", choices=("digits", "cifar10"), default="digits", help="(default: digits)")
    parser.add_argument("--data-dir", metavar="DIR", help="the folder that holds CIFAR-10 ($ONEBIT_DATA)")
    parser.add_argument(
        "--epochs", type=int, metavar="N", help="passes over the training images (default: 24; cifar10: 3)"
    )
    parser.add_argument("--projections", type=int, default=1, metavar="J", help="projections J (default: 1)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all that is random (default: 0)")
    parser.add_argument("-o", "--out", metavar="DIR", help="folder of all that is made (default: runs/demo)")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Train all nets, measure, print the table, write the page."""
    if arguments.epochs is not None and arguments.epochs < 1:
        raise UserError(f"--epochs {arguments.epochs}: use at least 1")
    if arguments.projections < 1 or 16 % arguments.projections:
        raise UserError(f"--projections {arguments.projections}: use 1, 2, 4, 8 or 16")

    from onebit.console import complain, counted, say, tell
    from onebit.demonstration import check_folder, config_of, contestants, measure, train_all, write_samples
    from onebit.training.loop import Interrupted
    from onebit.training.runfolder import check_out

    data = arguments.data
    out = user_path(arguments.out or ("runs/demo" if data == "digits" else f"runs/demo-{data}"))
    shared = {"data_dir": arguments.data_dir, "epochs": arguments.epochs, "seed": arguments.seed}
    shared = {key: value for key, value in shared.items() if value is not None}
    chosen = contestants(data, arguments.projections)
    configs = [config_of(each, data, shared) for each in chosen]
    check_out(out)
    check_folder(out, chosen, configs)
    epochs = f"{counted(len(chosen), 'net')}, {counted(configs[0].epochs, 'epoch')} each"
    say(f"training {epochs}, into {out}; Ctrl-C saves, the same command goes on")
    try:
        train_all(out, chosen, configs)
    except Interrupted as stop:
        complain("onebit demo", "stopped and saved; the same command goes on")
        return 128 + stop.signal_number
    rows = measure(out, chosen, configs)
    page, images = _page(out, rows, arguments), write_samples(out, configs[0])
    if arguments.json:
        tell(json_text({"data": data, "rows": [row._asdict() for row in rows], "report": str(page)}))
    else:
        _tell(rows, data, page, images)
    return 0


def cells(row: Outcome) -> tuple[str, ...]:
    """A row of the table for people."""
    return (
        row.name,
        f"{row.top1:.1f} %",
        f"{row.bytes:,}",
        f"{row.times_smaller:.1f} x",
        f"{row.torch_ms:.3f}",
        f"{row.engine_ms:.3f}",
        f"{row.times_faster:.1f} x",
        f"{100 * row.same_class / row.test_images:.1f} %",
    )


def remarks(rows: list[Outcome], data: str) -> list[str]:
    """What the table means, and what it does not say."""
    lines = [
        "float: the same net in float; W1A32: kernels of 1 bit; W1A1: the inputs of their layers, too",
        f"accuracy: of {rows[0].test_images:,} test images, by the engine; a point or two are within chance",
        "smaller: than the net's parameters in float; ms: for one image at a time, on one core, in turns",
        "faster: onebit, than PyTorch with the float net; agree: images in which both see the same class",
    ]
    if data == "digits":
        lines.append("on images of 8 x 8 pixels much of PyTorch's time is overhead; larger ones are in the README")
    return lines


def _tell(rows: list[Outcome], data: str, page: Path, images: Path) -> None:
    from onebit.console import print_table, say, tell

    print_table(_title(data), HEADINGS, map(cells, rows))
    net = shlex.quote(f"{rows[-1].run}/net.onebit")
    for line in [
        *remarks(rows, data),
        "go on with:",
        f"  {program()} run {net} {shlex.quote(str(images))}    what the net sees in image files",
        f"  {program()} inspect {net}    what is in the file",
        f"  {program()} bench {net}    layer by layer, beside other programs",
    ]:
        say(line)
    tell(f"the page to look at: {page}")


def _title(data: str) -> str:
    return {"digits": "WRN-22 on handwritten digits, 8 x 8 pixels", "cifar10": "WRN-22 on CIFAR-10"}[data]


def _page(out: Path, rows: list[Outcome], arguments: argparse.Namespace) -> Path:
    from onebit.report.gathering import gather
    from onebit.report.page import paragraph, section, table
    from onebit.report.writing import write_report

    runs = [gather(Path(row.run), data_dir=arguments.data_dir) for row in rows]
    heads = [heading.replace("\n", ", ") for heading in HEADINGS]
    lead = section("In short", table(heads, map(cells, rows)), *map(paragraph, remarks(rows, arguments.data)))
    write_report(out / "report.html", runs, lead, f"onebit demo: {_title(arguments.data)}")
    return out / "report.html"
