"""Tables and figures by name, and their files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onebit.comparison.running import Job, failure_of
from onebit.console import Progress
from onebit.data.splits import DataSet
from onebit.errors import UserError
from onebit.machine import source_commit, this_machine
from onebit.reproduction import figures, tables, targets
from onebit.reproduction.imagenet import SMOKE_NAME, smoke_folder, table_imagenet, write_smoke_images
from onebit.reproduction.outcomes import Outcome, outcomes
from onebit.reproduction.plans import RUNS, Experiment, Setting, Target
from onebit.reproduction.records import known_record, record_of, record_path, write_record
from onebit.reproduction.sheets import Made
from onebit.training.loop import divide
from onebit.training.nets import read_weights
from onebit.training.runfolder import RunFolder
from onebit.training.session import data_of

PLANNERS: dict[str, targets.Planner] = {
    "table-lambda": targets.table_lambda,
    "table-cifar": targets.table_cifar,
    "table-imagenet": table_imagenet,
    "figure-lambda": targets.figure_lambda,
    "figure-epoch": targets.figure_epoch,
    "figure-losscurve": targets.figure_losscurve,
    "figure-diversity": targets.figure_diversity,
    "table-methods": targets.table_methods,
    "table-projections": targets.table_projections,
    "table-best": targets.table_best,
    "table-w1a8": targets.table_w1a8,
}
MEMORY = "table-memory"
TITLES = {
    "table-lambda": "Table 2: accuracy over lambda",
    "table-cifar": "Table 3: accuracy on CIFAR-10 and CIFAR-100",
    "table-imagenet": "Table 4: accuracy on ImageNet (--data-dir: a folder of images)",
    MEMORY: "Table 5: memory and speed of Resnet18; nothing to train",
    "figure-lambda": "Fig. 2: how kernels are spread, over lambda",
    "figure-epoch": "Fig. 3: how kernels are spread, over the epochs",
    "figure-losscurve": "Fig. 4: loss with and without the projection loss",
    "figure-diversity": "Fig. 5: kernels and feature maps of J = 4",
    "table-methods": "not in the paper: every method on equal terms",
    "table-projections": "not in the paper: J, kernels and tensors of one width, what enters of W, how W begins",
    "table-best": "not in the paper: the nets of the zoo, W1A32 and W1A1 beside float",
    "table-w1a8": "not in the paper: what 8 bits cost, of inputs and of the layers that are not 1-bit",
}
NEEDS_WEIGHTS = {"figure-diversity", "table-w1a8"}  # a record is not enough
BUDGETS = {
    "paper": "the paper's protocol",
    "cpu": "the budget of two cores (short runs, few channels: below what 200 epochs give)",
    "smoke": "the budget of a minute (shows that it works; the accuracies mean nothing)",
}
DATA_NAMES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "digits": "handwritten digits",
    "imagenet": "ImageNet",
}


DRAWN = {
    "figure-lambda": figures.over_lambda,
    "figure-epoch": figures.over_epochs,
    "figure-losscurve": figures.losses,
}


def missing_runs(setting: Setting, wanted: Sequence[Target]) -> list[Experiment]:
    """Runs that are still to be trained, each once, those that others need among them.

    Not those that failed for good: they would again.
    """
    needed: dict[str, Experiment] = {}
    for target in wanted:
        for run in target.experiments:
            without = target.name in NEEDS_WEIGHTS and not _has_weights(setting, run)
            if failure_of(setting.out / RUNS, run):
                continue
            if known_record(setting.out, run) is None or without:
                needed |= {before.name: before for before in run.needs if not _has_weights(setting, before)}
                needed[run.name] = run
    return list(needed.values())


def _has_weights(setting: Setting, run: Experiment) -> bool:
    """Whether a finished run is there as a whole, not only its record."""
    return RunFolder(setting.out / RUNS / run.name).summary() is not None


def ready(waiting: Sequence[Experiment]) -> list[Experiment]:
    """Those that need no run that is waiting, too."""
    pending = {run.name for run in waiting}
    return [run for run in waiting if pending.isdisjoint(before.name for before in run.needs)]


def check_data(runs: Sequence[Experiment]) -> None:
    """Find (or fetch) the data of all runs now, and see that it is enough."""
    seen: dict[tuple[str, str | None, int], DataSet] = {}
    for run in runs:
        config = run.config
        key = (config.data, config.data_dir, config.image_size)
        if key not in seen:
            seen[key] = data_of(config)
        divide(config, seen[key])


def write_images(setting: Setting, runs: Sequence[Experiment]) -> None:
    """What the budget of a minute has in place of ImageNet."""
    if any(run.config.data_dir == str(smoke_folder(setting.out)) for run in runs):
        write_smoke_images(setting.out)


def keep_records(setting: Setting, runs: Sequence[Job], data_name: str | None) -> None:
    """The records of runs that are finished."""
    for run in runs:
        folder = setting.out / RUNS / run.name
        if record := record_of(folder, data_name or name_of_data(setting, run)):
            write_record(setting.out, record)


def name_of_data(setting: Setting, run: Job) -> str:
    """As people call it; a folder of images has the folder's name."""
    config = run.config
    if config.data_dir == str(smoke_folder(setting.out)):
        return SMOKE_NAME
    return DATA_NAMES.get(config.data) or Path(config.data_dir or config.data).name


def make(setting: Setting, target: Target) -> Made:
    """A table or a figure, from what is finished."""
    found = outcomes(target, setting.out)
    facts = facts_of(setting, found)
    sentence = str(facts.pop("sentence"))
    entries = [outcome.as_json(target.heads) for outcome in found]
    remarks = tables.remarks(target, found)
    shown = target.experiments if target.name in NEEDS_WEIGHTS else []
    gone = [run.name for run in shown if not _has_weights(setting, run)]
    remarks += [f"unfinished: it shows the net of {name}, whose folder is not there" for name in gone]
    made = Made(
        target.name, target.number, target.title, sentence, [tables.sheet_of(target, found)], remarks,
        facts | {"entries": entries},
    )  # fmt: skip
    if target.name in DRAWN:
        figure, numbers = DRAWN[target.name](found, f"{made.heading}\n{sentence}")
    elif target.name == "figure-diversity" and not gone:
        from onebit.reproduction.diversity import diversity

        run = target.experiments[0]
        figure, numbers = diversity(
            setting.out / RUNS / run.name, data_of(run.config), f"{made.heading}\n{sentence}"
        )
    elif target.name == "table-w1a8" and not gone:
        return _eight_bits(setting, target, made)
    else:
        return made
    pictures = figures.drawn(figure) if figure else {}
    return made._replace(numbers=made.numbers | {"numbers": numbers}, pictures=pictures)


def _eight_bits(setting: Setting, target: Target, made: Made) -> Made:
    from onebit.reproduction import eight_bits

    most = 100 if setting.budget == "smoke" else 1 << 30
    rows: list[eight_bits.Row] = []
    with Progress("evaluating files", len(target.experiments) * len(eight_bits.KINDS)) as progress:
        for run in target.experiments:
            weights = read_weights(setting.out / RUNS / run.name)
            rows += eight_bits.rows_of(weights, data_of(run.config), progress.advance, most)
    numbers = made.numbers | {"rows": eight_bits.dicts(rows)}
    return made._replace(sheets=[eight_bits.sheet(rows)], remarks=eight_bits.REMARKS, numbers=numbers)


def facts_of(setting: Setting, found: Sequence[Outcome]) -> dict[str, Any]:
    """What all numbers share: the budget, the data, the machine."""
    records = [record for outcome in found for record in outcome.chosen]
    data = sorted({record.data for record in records})
    cpus = sorted({record.cpu for record in records})
    words = [f"budget {setting.budget}: {BUDGETS[setting.budget]}"]
    words += [", ".join(data)] if data else []
    return {"budget": setting.budget, "data": data, "cpus": cpus, "sentence": "; ".join(words)}


def make_memory(setting: Setting) -> Made:
    """Table 5, which needs no training."""
    from onebit.benching.measuring import Effort
    from onebit.reproduction import memory

    effort = Effort(1, 0.01) if setting.budget == "smoke" else Effort(15, 0.1)
    size = 32 if setting.budget == "smoke" else 224
    with Progress("timing", memory.steps(effort)) as progress:
        found = memory.measured(effort, size, progress.advance)
    cpu = this_machine().cpu
    numbers = {"budget": setting.budget, "cpus": [cpu], "commit": source_commit(), **found.as_json()}
    sentence = f"budget {setting.budget}: counted, and timed on {cpu}, one core"
    if setting.budget == "smoke":
        sentence += "; so short that the times mean nothing"
    title = "memory and speed of Resnet18"
    return Made(MEMORY, "Table 5", title, sentence, memory.sheets(found), memory.remarks(found), numbers)


def check_data_name(setting: Setting, runs: Sequence[Experiment], name: str | None) -> None:
    """One name is for one data set, and what is called otherwise already is not called so in silence."""
    if name is None:
        return
    if len({run.config.data for run in runs}) > 1:
        raise UserError(f"--data-name {name}: these runs are of several data sets, so one name won't do")
    for run in runs:
        if (record := known_record(setting.out, run)) and record.data != name:
            file = record_path(setting.out, run.name)
            raise UserError(f"--data-name {name}: {file} says {record.data}; use that, or correct the record")
