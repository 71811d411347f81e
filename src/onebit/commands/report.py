"""`onebit report`: training runs as a page to look at."""

from __future__ import annotations

import argparse

from onebit.errors import UserError
from onebit.paths import user_path

HELP = "make one HTML file of training runs: curves, kernels, bit flips, what the net sees"
EXAMPLES = """examples:
  onebit report RUN                            writes RUN/report.html; open it in a browser
  onebit report runs/a runs/b --out ab.html    two runs, compared
  onebit report runs/demo                      all runs in a folder
  onebit report RUN --data-dir DATA            the test images are elsewhere than they were in training
  onebit report RUN --images 0                 without test images: no confusion matrix, no feature maps
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="the folder of a run of `onebit train`, or one that holds several"
    )
    parser.add_argument(
        "-o", "--out", metavar="FILE", help="the file to write (default: report.html in RUN, or here)"
    )
    parser.add_argument("--data-dir", metavar="DIR", help="where the images are (default: where the run had them)")
    parser.add_argument(
        "--images", type=int, default=10_000, metavar="N", help="test images to look at, at most (default: 10000)"
    )
    parser.add_argument("--json", action="store_true", help="print the file's name and what was left out as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Gather, write, and say where."""
    from pathlib import Path

    from onebit.console import say, tell
    from onebit.jsonfields import json_text
    from onebit.report.gathering import check_runs, gather, runs_in
    from onebit.report.writing import write_report

    if arguments.images < 0:
        raise UserError(f"--images {arguments.images}: use at least 0")
    folders = [folder for run in arguments.runs for folder in runs_in(user_path(run))]
    check_runs(folders)
    out = user_path(arguments.out) if arguments.out else None
    if out is None:
        out = user_path(arguments.runs[0]) / "report.html" if len(arguments.runs) == 1 else Path("report.html")
    if out.is_dir():
        raise UserError(f"--out {out}: a folder; name a file in it")
    if not out.parent.is_dir():  # said before the work
        raise UserError(f"--out {out}: there is no folder {out.parent}")
    runs = [gather(folder, data_dir=arguments.data_dir, most_images=arguments.images) for folder in folders]
    size = write_report(out, runs)
    for each in runs:
        for note in each.notes:
            say(f"{each.name}: {note}")
    notes = {each.name: each.notes for each in runs}
    found = json_text({"file": str(out), "bytes": size, "notes": notes})
    tell(found if arguments.json else f"{out}: {size / 1e6:.1f} MB; open it in a browser")
    return 0
