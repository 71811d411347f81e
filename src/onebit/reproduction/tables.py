"""Tables as Markdown and JSON: the paper's figures beside ours, the budget named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from onebit.reproduction.outcomes import Outcome
from onebit.reproduction.plans import Target


def rows(target: Target, found: Sequence[Outcome]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headings and cells, for people."""
    has_top5 = any(outcome.entry.top5 is not None for outcome in found)
    in_paper = any(outcome.entry.top1 is not None for outcome in found)
    heads = list(target.heads)
    if in_paper:
        heads += ["paper, top-1 %", "paper, top-5 %"] if has_top5 else ["paper, top-1 %"]
    heads += ["ours, top-1 %", "ours, top-5 %"] if has_top5 else ["ours, top-1 %"]
    heads += ["bytes", "lr", "epochs", "seeds"]
    cells = []
    for outcome in found:
        entry = outcome.entry
        row = list(entry.where)
        if in_paper:
            row += [_percent(entry.top1), _percent(entry.top5)] if has_top5 else [_percent(entry.top1)]
        row += [_ours(outcome), _percent(outcome.top5)] if has_top5 else [_ours(outcome)]
        cells.append((*row, *_how(outcome)))
    return tuple(heads), cells


def _percent(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}"


def _ours(outcome: Outcome) -> str:
    if not outcome.chosen:
        return outcome.state
    spread = "" if outcome.spread is None else f" ± {outcome.spread:.2f}"
    more = f" ({len(outcome.missing)} runs unfinished)" if outcome.missing else ""
    return f"{outcome.top1:.2f}{spread}{more}"


def _how(outcome: Outcome) -> tuple[str, ...]:
    if not outcome.chosen:
        return ("", "", "", "")
    first = outcome.chosen[0]
    return (f"{first.bytes:,}", f"{first.config['lr']:g}", str(first.epochs), str(len(outcome.chosen)))


def markdown(target: Target, found: Sequence[Outcome], facts: dict[str, Any]) -> str:
    """For a document."""
    heads, cells = rows(target, found)
    words = len(target.heads)
    lines = [f"# {heading(target)}", "", f"{facts['sentence']}", ""]
    lines += [f"| {' | '.join(heads)} |", f"|{'---|' * words}{'---:|' * (len(heads) - words)}"]
    lines += [f"| {' | '.join(row)} |" for row in cells]
    lines += ["", *(f"- {note}" for note in remarks(target, found))]
    return "\n".join(lines) + "\n"


def heading(target: Target) -> str:
    """What it is, and where in the paper."""
    return f"{target.title} ({target.number} of the paper)" if target.number else target.title


def remarks(target: Target, found: Sequence[Outcome]) -> list[str]:
    """What the columns mean, what is missing."""
    lines = ["top-1: of the test images, after the last epoch; ±: half of the range over the seeds"]
    lines += [f"{note}" for note in target.notes]
    lines += [f"unfinished: {line}" for outcome in found for line in outcome.missing]
    return lines


def as_json(target: Target, found: Sequence[Outcome], facts: dict[str, Any]) -> str:
    """For a program."""
    entries = [outcome.as_json(target.heads) for outcome in found]
    about = {"name": target.name, "title": target.title, "paper": target.number, "notes": list(target.notes)}
    return json.dumps(about | facts | {"entries": entries}, indent=1) + "\n"
