"""What was measured, for people and as JSON."""

from __future__ import annotations

import math
import textwrap
from typing import Any, NamedTuple

import numpy as np

from onebit.advice import install_extra
from onebit.benching.contestants import PEERS, Row
from onebit.benching.layers import Layer, Limit
from onebit.benching.measuring import Effort, Table
from onebit.benching.scaling import Scaling, Share
from onebit.console import counted, print_table, tell
from onebit.machine import Machine

WIDTH = 100
NETS = {"file": "the file", "same": "same net", "twin": "float twin"}
MOST_NAMES = 4  # of layers in a line
ALONE = 0.9  # with a core for less of the time, figures are not to be trusted
LEAST_SHARE = 0.001  # of the time: less is not worth a line


class Report(NamedTuple):
    """All of it. why_isa: where the choice of kernels came from; missing: packages, by program."""

    file: str
    description: str
    input_shape: tuple[int, ...]
    machine: Machine
    isa: str
    why_isa: str
    versions: dict[str, str]
    effort: Effort
    tables: list[Table]
    scaling: list[Scaling]  # none, if one thread is all that was asked for
    layers: list[Layer]
    limits: list[Limit]
    missing: dict[str, list[str]]
    memory: tuple[int, int]  # bytes: of the weights as the kernels have them, for the values of one image

    def show(self) -> None:
        """Print it."""
        _say(f"{self.file}: {self.description or 'a net'}; input {' x '.join(map(str, self.input_shape))}")
        cores = counted(self.machine.cores, "core")
        _say(f"{self.machine.cpu}, {cores}; kernels of onebit: {self.isa}, {self.why_isa}")
        rounds = counted(self.effort.rounds, "round")
        _say(f"one thread each, in turns, {rounds} of {self.effort.seconds:g} s; each program in its fastest way")
        weights, workspace = (f"{count / 1e6:.2f} MB" for count in self.memory)
        _say(f"memory of onebit: weights {weights}, and {workspace} for the values of an image")
        for table in self.tables:
            _show_table(table)
        _show_notes(self)
        if self.scaling:
            _show_scaling(self.scaling)
        _show_layers(self.layers, self.tables[0].batch)
        told = [limit for limit in self.limits if limit.share is None or limit.share >= LEAST_SHARE]
        if told:
            _say("not accelerated:")
        for limit in told:
            _say(f"- {_told(limit)}")

    def as_json(self) -> dict[str, Any]:
        """For a program to read."""
        return {
            "file": self.file,
            "description": self.description,
            "input_shape": list(self.input_shape),
            "machine": self.machine._asdict(),
            "isa": self.isa,
            "why_isa": self.why_isa,
            "threads": 1,
            "weight_bytes": self.memory[0],
            "workspace_bytes": self.memory[1],
            "versions": self.versions,
            "effort": self.effort._asdict(),
            "batches": [
                {
                    "batch": table.batch,
                    "had_core": table.had_core,
                    "rows": [_figures(table, row) for row in table.rows],
                }
                for table in self.tables
            ],
            "scaling": [
                {
                    "batch": scaling.batch,
                    "had_cores": scaling.had_cores,
                    "rows": [_share_figures(scaling, share) for share in scaling.shares],
                }
                for scaling in self.scaling
            ],
            "layers": [layer._asdict() | {"gmacs_per_second": layer.gmacs_per_second} for layer in self.layers],
            "not_accelerated": [limit._asdict() for limit in self.limits],
            "not_installed": [
                {"peer": name, "lacks": lacks, "install": install_extra(PEERS[name].extra)}
                for name, lacks in self.missing.items()
            ],
        }


def _figures(table: Table, row: Row) -> dict[str, Any]:
    found: dict[str, Any] = {"name": row.name, "net": row.net}
    if row.failure:
        return found | {"not_compared": row.failure}
    agreement = row.agreement and row.agreement._asdict()
    if agreement and not math.isfinite(agreement["difference"]):
        agreement["difference"] = None  # JSON has no infinity
    ms = table.milliseconds(row)
    calls = [1e3 * taken for burst in row.bursts for taken in burst]
    return found | {
        "way": row.way,
        "ms": ms,
        "ms_p10": float(np.percentile(calls, 10)),
        "images_per_second": 1e3 * table.batch / ms,
        "times_onebit": table.times_onebit(row),
        "agreement": agreement,
    }


def _share_figures(scaling: Scaling, share: Share) -> dict[str, Any]:
    ms = scaling.milliseconds(share)
    calls = [1e3 * taken for burst in share.bursts for taken in burst]
    return {
        "threads": share.threads,
        "ms": ms,
        "ms_p10": float(np.percentile(calls, 10)),
        "images_per_second": 1e3 * scaling.batch / ms,
        "times_one_thread": scaling.times_one_thread(share),
    }


def _say(line: str) -> None:
    tell(*textwrap.wrap(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False))


def _show_table(table: Table) -> None:
    images = counted(table.batch, "image")
    headings = ("", "net", "ms a call", "images/s", "times onebit's", "same class", "difference")
    print_table(f"{images} a call", headings, [_cells(table, row) for row in table.rows], left=2, width=WIDTH)


def _cells(table: Table, row: Row) -> tuple[str, ...]:
    if row.failure:
        return (row.title, NETS[row.net], "not compared", "", "", "", "")
    ms, found = table.milliseconds(row), row.agreement
    agreement = (f"{100 * found.same_argmax:.4g} %", f"{found.difference:.0e}") if found else ("", "")
    speed, times = _speed(table.batch, ms), f"{table.times_onebit(row):.2f}"
    return (row.title, NETS[row.net], f"{ms:.3f}", speed, times, *agreement)


def _speed(batch: int, ms: float) -> str:
    """Images a second."""
    return f"{1e3 * batch / ms:,.0f}" if ms < 100 * batch else f"{1e3 * batch / ms:.2f}"


def _show_scaling(tables: list[Scaling]) -> None:
    headings = ("images a call", "threads", "ms a call", "images/s", "times one thread")
    rows = [
        (
            str(scaling.batch),
            str(share.threads),
            f"{(ms := scaling.milliseconds(share)):.3f}",
            _speed(scaling.batch, ms),
            f"{scaling.times_one_thread(share):.2f}",
        )
        for scaling in tables
        for share in scaling.shares
    ]
    print_table("onebit with several threads, in turns", headings, rows, left=0, width=WIDTH)
    _say("times one thread: how many times as fast. onebit.load(path, threads=N) runs a net so.")
    had_cores = min(scaling.had_cores for scaling in tables)
    if had_cores < ALONE:
        _say(
            f"others used this machine: threads had their cores for {100 * had_cores:.0f} % of the time. Alone they"
            " gain more: measure again on an idle machine."
        )


def _show_notes(report: Report) -> None:
    rows = [row for table in report.tables for row in table.rows]
    nets = {row.net for row in rows if not row.failure}
    if "same" in nets:
        _say(
            "same net: the same numbers, bits as floats. same class, difference: how far its outputs agree with"
            " onebit's (the largest is the same one; largest difference over largest output)."
        )
    if "twin" in nets:
        _say("float twin: float kernels and inputs, no signs, norms folded: what one would run without onebit.")
    had_core = min(table.had_core for table in report.tables)
    if had_core < ALONE:
        _say(
            f"others used this machine: the process had a core for {100 * had_core:.0f} % of the time. Times are"
            " too long, and those of long calls more so: measure again on an idle machine."
        )
    failed = [row for row in rows if row.failure]
    for line in dict.fromkeys(f"{row.title}, {NETS[row.net]}: not compared: {row.failure}" for row in failed):
        _say(line)
    for name, lacks in report.missing.items():
        peer = PEERS[name]
        _say(f"{peer.title}: not compared: {' and '.join(lacks)} not installed; {install_extra(peer.extra)}")


def _show_layers(layers: list[Layer], batch: int) -> None:
    rows = [
        (
            layer.name,
            " + ".join(layer.operations),
            layer.runs,
            f"{layer.ms:.4f}",
            f"{100 * layer.share:.1f} %",
            f"{rate:.1f}" if (rate := layer.gmacs_per_second) else "",
        )
        for layer in layers
    ]
    total = sum(layer.ms for layer in layers)
    rows.append(("all", "", "", f"{total:.4f}", "100.0 %", ""))
    title = "onebit's layers" + (f", of {batch} images a call" if batch > 1 else "")
    headings = ("step", "operations", "kernel", "ms an image", "time", "GMAC/s")
    print_table(title, headings, rows, left=3, width=WIDTH)


def _told(limit: Limit) -> str:
    if limit.share is None:
        return limit.why
    names = ", ".join(limit.layers[:MOST_NAMES]) + (", ..." if len(limit.layers) > MOST_NAMES else "")
    count = counted(len(limit.layers), "layer")
    return f"{limit.why}: {100 * limit.share:.1f} % of the time, {count} ({names})"
