"""From runs to the file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onebit.errors import UserError
from onebit.paths import write_whole
from onebit.report.gathering import Gathered
from onebit.report.page import folded, page, section
from onebit.report.sections import curves, details, overview


def write_report(out: Path, runs: Sequence[Gathered], lead: str = "", title: str = "") -> int:
    """Write the page, whole or not at all; returns its size. `lead` comes before all else."""
    told = _with_names_apart(runs)
    title = title or ", ".join(run.name for run in told)
    parts = [lead, overview(told), curves(told)]
    if len(told) == 1:
        parts.append(section(f"{told[0].name}: {told[0].spec.summary()}", details(told[0])))
    else:
        shown = next((run for run in reversed(told) if run.last_kernels), told[0])  # 1-bit, if any is
        parts += [
            folded(f"{run.name}: {run.spec.summary()}", details(run), is_open=run is shown, kind="run")
            for run in told
        ]
    content = page(title, parts).encode()
    if not out.parent.is_dir():
        raise UserError(f"{out}: there is no folder {out.parent}")
    write_whole(out, content)  # not as a checkpoint is: a training may be at work in that folder
    return len(content)


def _with_names_apart(runs: Sequence[Gathered]) -> Sequence[Gathered]:
    """Runs of the same name, in folders of different ones, are numbered."""
    names = [run.name for run in runs]
    for number, run in enumerate(runs):
        if names.count(run.name) > 1:
            run.name = f"{run.name} ({names[: number + 1].count(run.name)})"
    return runs
