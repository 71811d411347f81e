"""Tables of accuracies: the paper's figures beside ours."""

from __future__ import annotations

from collections.abc import Sequence

from onebit.console import counted
from onebit.reproduction.outcomes import Outcome, kernel_rate_of
from onebit.reproduction.plans import Target, rate_word
from onebit.reproduction.sheets import Sheet


def sheet_of(target: Target, found: Sequence[Outcome]) -> Sheet:
    """A row for every entry."""
    has_top5 = any(outcome.entry.top5 is not None for outcome in found)
    in_paper = any(outcome.entry.top1 is not None for outcome in found)
    heads = list(target.heads)
    if in_paper:
        heads += ["paper, top-1 %", "paper, top-5 %"] if has_top5 else ["paper, top-1 %"]
    heads += ["ours, top-1 %", "ours, top-5 %"] if has_top5 else ["ours, top-1 %"]
    has_rates = any(run.config.kernel_rate != 1 for outcome in found for run in outcome.entry.runs)
    heads += ["bytes", "lr", *(["kernels"] if has_rates else []), "epochs", "seeds"]
    cells = []
    for outcome in found:
        entry = outcome.entry
        row = list(entry.where)
        if in_paper:
            row += [_percent(entry.top1), _percent(entry.top5)] if has_top5 else [_percent(entry.top1)]
        row += [_ours(outcome), _percent(outcome.top5)] if has_top5 else [_ours(outcome)]
        bytes_, lr, kernels, *rest = _how(outcome)
        cells.append((*row, bytes_, lr, *([kernels] if has_rates else []), *rest))
    return Sheet(tuple(heads), cells, len(target.heads))


def remarks(target: Target, found: Sequence[Outcome]) -> list[str]:
    """What the columns mean, what is missing."""
    lines = ["top-1: of the test images, after the last epoch; ±: half of the range over the seeds"]
    lines.append("bytes: of the trained net, counted (`onebit.storage`)")
    if any(run.config.kernel_rate != 1 for run in target.experiments):
        lines.append("kernels: by what their learning rate is multiplied, chosen with lr")
    missing = {line: None for outcome in found for line in outcome.missing}
    failed = {line: None for outcome in found for line in outcome.failed}
    return [
        *lines,
        *target.notes,
        *(f"unfinished: {line}" for line in missing),
        *(f"failed, and would again: {line}" for line in failed),
    ]


def _percent(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}"


def _ours(outcome: Outcome) -> str:
    if not outcome.chosen:
        return outcome.state
    spread = "" if outcome.spread is None else f" ± {outcome.spread:.2f}"
    more = f" ({counted(len(outcome.missing), 'run')} unfinished)" if outcome.missing else ""
    return f"{outcome.top1:.2f}{spread}{more}"


def _how(outcome: Outcome) -> tuple[str, ...]:
    if not outcome.chosen:
        return ("", "", "", "", "")
    first = outcome.chosen[0]
    lr, kernels = f"{first.config['lr']:g}", rate_word(kernel_rate_of(first))
    return (f"{first.bytes:,}", lr, kernels, str(first.epochs), str(len(outcome.chosen)))
