"""Results as text, Markdown and JSON."""

from __future__ import annotations

import textwrap
from typing import Any, NamedTuple

from onebit.machine import this_machine
from onebit.peers.agreement import CLOSE

from .measuring import Result, Run, middle
from .nets import Case
from .rows import BASELINE, JUDGE, OURS, Row

HEAD = (
    "",
    "net",
    "way",
    "ms, median",
    "ms, p10",
    "times torch fp32",
    "onebit is faster by",
    "agreement with torch",
)
WORDS = 3  # columns of words; the others are of figures
LEGEND = {
    "net": "'same' is the net of the file, its bits as floats where a peer has no 1-bit convolution. 'twin' is the"
    " same net with float kernels and inputs, norms folded, no signs: what one would run without onebit. int8 rows"
    " of peers quantise the twin. 'int8' is the same net, with weights and inputs of 8 bits in layers that are not"
    " 1-bit.",
    "way": "a peer that has several ways to run a net gets the fastest of them",
    "ms": "of one call, floats to floats, in memory, with the channels first or last, as the peer prefers it (ONNX"
    " Runtime takes them first, torch and Larq last, OpenVINO and onebit whichever is faster)",
    "times torch fp32": "how many times as fast as torch's twin. Ratios are medians over rounds of ratios within a"
    " round.",
    "agreement": "with torch for the same net: largest difference over largest output; images for which it is below"
    f" {CLOSE:.0e}; share of equal argmax. Floats summed in another order put a value beyond its threshold now and"
    " then: a bit flips, and the outputs of that image follow.",
    "run": "all rows of a table are of one run: that whose ratio of onebit to torch fp32 is the middle one of all",
}


class Table(NamedTuple):
    """A case and all of its runs."""

    case: Case
    runs: list[Run]


def machine() -> dict[str, str]:
    """The processor and what of its instructions counts here."""
    here = this_machine()
    described = {"system": here.system, "python": here.python, "cpu": here.cpu}
    return described | ({"instructions": " ".join(here.instructions)} if here.instructions else {})


def versions(tables: list[Table]) -> str:
    """Of everything that took part; of some there are several, in different environments."""
    found: dict[str, set[str]] = {}
    for result in (result for table in tables for run in table.runs for result in run.values()):
        for name, version in result.versions.items():
            found.setdefault(name, set()).add(version)
    return ", ".join(f"{name} {' and '.join(sorted(found[name]))}" for name in sorted(found))


def legend() -> str:
    """What the columns mean, for the terminal."""
    return "\n".join(textwrap.fill(f"{name}: {text}", 116, subsequent_indent="  ") for name, text in LEGEND.items())


def cells(table: Table) -> list[tuple[str, ...]]:
    """The lines of a table."""
    run = middle(table.runs)
    return [_line(row, result, run) for row, result in run.items()]


def _line(row: Row, result: Result, run: Run) -> tuple[str, ...]:
    if result.failure:
        return (row.name, row.net, f"- {result.failure}", "", "", "", "", "")
    return (
        row.name,
        row.net,
        result.way,
        f"{1e3 * result.median:.3f}",
        f"{1e3 * result.p10:.3f}",
        _ratio(result, run.get(BASELINE)),
        "" if row == OURS or OURS not in run else _ratio(run[OURS], result),
        _agreement(row, result),
    )


def _ratio(result: Result, other: Result | None) -> str:
    return f"{result.times_faster(other):.2f}" if other and other.bursts and result.bursts else ""


def _agreement(row: Row, result: Result) -> str:
    if row in {BASELINE, JUDGE}:
        return "is the judge"
    found = result.agreement
    if found is None:
        return "no judge"
    border = ", differs at borders" if found.border_only else ""
    return f"{found.difference:.0e}, {found.close}/{found.images}, {100 * found.same_argmax:.0f} %{border}"


def title(table: Table) -> str:
    """Of a table: the net, the batch, and how far the ratio that counts went from run to run."""
    heading = f"{table.case.title}, batch {table.case.batch}"
    if table.case.threads > 1:
        heading += f", {table.case.threads} threads"
    pairs = [(run.get(OURS), run.get(BASELINE)) for run in table.runs]
    ratios = [ours.times_faster(base) for ours, base in pairs if ours and base and ours.bursts and base.bursts]
    if len(ratios) > 1:
        heading += f"; onebit: {min(ratios):.2f} to {max(ratios):.2f} times torch fp32 in {len(ratios)} runs"
    return heading


def as_text(table: Table) -> str:
    """For the terminal. The reason of a failure is as long as it is: it widens no column."""
    lines = [HEAD, *cells(table)]
    ran = [line for line in lines if line[3]]
    widths = [max(len(line[at]) for line in (lines if at == 0 else ran)) for at in range(len(HEAD))]
    made = [title(table)]
    for line in lines:
        padded = [cell.ljust(width) for cell, width in zip(line[:WORDS], widths[:WORDS], strict=True)]
        padded += [cell.rjust(width) for cell, width in zip(line[WORDS:], widths[WORDS:], strict=True)]
        made.append("  ".join(padded).rstrip())
    return "\n".join(made)


def as_markdown(tables: list[Table], about: dict[str, Any]) -> str:
    """The whole report."""
    parts = ["# onebit and its peers", "", *(f"- {name}: {value}" for name, value in about.items())]
    parts += ["", "What the columns mean:", "", *(f"- *{name}*: {text}" for name, text in LEGEND.items())]
    for table in tables:
        lines = [HEAD, tuple("---" if at < WORDS else "---:" for at in range(len(HEAD))), *cells(table)]
        parts += ["", f"## {title(table)}", "", *(_markdown(line) for line in lines)]
    return "\n".join(parts) + "\n"


def _markdown(line: tuple[str, ...]) -> str:
    escaped = [cell.replace("|", "\\|") for cell in line]
    return f"| {' | '.join(escaped)} |"


def as_json(tables: list[Table], about: dict[str, Any]) -> dict[str, Any]:
    """The figures of every run."""
    return {"about": about, "tables": [_table(table) for table in tables]}


def _table(table: Table) -> dict[str, Any]:
    reported = middle(table.runs)
    runs = [
        [{"name": row.name, "net": row.net} | _figures(result, run) for row, result in run.items()]
        for run in table.runs
    ]
    chosen = next(at for at, run in enumerate(table.runs) if run is reported)
    case = table.case
    described = {"title": case.title, "batch": case.batch, "threads": case.threads, "export": dict(case.export)}
    return {**described, "reported_run": chosen, "runs": runs}


def _figures(result: Result, run: Run) -> dict[str, Any]:
    if result.failure:
        return {"failure": result.failure}
    base, agreement = run.get(BASELINE), result.agreement
    return {
        "way": result.way,
        "median_ms": 1e3 * result.median,
        "p10_ms": 1e3 * result.p10,
        "times_torch_fp32": result.times_faster(base) if base and base.bursts else None,
        "agreement": agreement and agreement._asdict(),
        "versions": result.versions,
    }
