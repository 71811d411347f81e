"""Tables and figures by name, and their files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from onebit.console import Progress
from onebit.data.splits import DataSet
from onebit.errors import UserError
from onebit.machine import this_machine
from onebit.paths import write_whole
from onebit.reproduction import figures, tables, targets
from onebit.reproduction.imagenet import table_imagenet
from onebit.reproduction.outcomes import Outcome, outcomes
from onebit.reproduction.plans import RUNS, Experiment, Setting, Target
from onebit.reproduction.records import known_record, record_of, write_record
from onebit.training.loop import divide
from onebit.training.session import data_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    "table-projections": "not in the paper: J, kernels and tensors of one width, what enters of W",
    "table-best": "not in the paper: the nets of the zoo, W1A32 and W1A1 beside float",
}
NEEDS_WEIGHTS = {"figure-diversity"}  # a record is not enough
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


class Made(NamedTuple):
    """A table or a figure that was written."""

    target: Target
    found: list[Outcome]
    files: list[Path]
    numbers: dict[str, Any]  # behind a figure


def missing_runs(setting: Setting, wanted: Sequence[Target]) -> list[Experiment]:
    """Runs that are still to be trained, each once, those that others need among them."""
    needed: dict[str, Experiment] = {}
    for target in wanted:
        for run in target.experiments:
            gone = (
                target.name in NEEDS_WEIGHTS and not (setting.out / RUNS / run.name / "last.safetensors").is_file()
            )
            if known_record(setting.out, run) is None or gone:
                needed[run.name] = run
    for run in list(needed.values()):  # a teacher is itself among the runs of its table
        _require(setting, wanted, run, needed)
    return list(needed.values())


def _require(setting: Setting, wanted: Sequence[Target], run: Experiment, needed: dict[str, Experiment]) -> None:
    planned = {each.name: each for target in wanted for each in target.experiments}
    for name in run.needs:
        if not (setting.out / RUNS / name / "last.safetensors").is_file():
            needed.setdefault(name, planned[name])


def ready(waiting: Sequence[Experiment]) -> list[Experiment]:
    """Those whose needs are finished."""
    pending = {run.name for run in waiting}
    return [run for run in waiting if not pending & set(run.needs)]


def check_data(runs: Sequence[Experiment]) -> None:
    """Find (or fetch) the data of all runs now, and see that it is enough."""
    seen: dict[tuple[str, str | None, int], DataSet] = {}
    for run in runs:
        config = run.config
        key = (config.data, config.data_dir, config.image_size)
        if key not in seen:
            seen[key] = data_of(config)
        divide(config, seen[key])


def keep_records(setting: Setting, runs: Sequence[Experiment], data_name: str | None) -> None:
    """The records of runs that are finished."""
    for run in runs:
        folder = setting.out / RUNS / run.name
        if record := record_of(folder, data_name or name_of_data(run)):
            write_record(setting.out, record)


def name_of_data(run: Experiment) -> str:
    """As people call it; a folder of images has the folder's name."""
    config = run.config
    return DATA_NAMES.get(config.data) or Path(config.data_dir or config.data).name


def make(setting: Setting, target: Target) -> Made:
    """Write a table or a figure from what is finished."""
    found = outcomes(target, setting.out)
    facts = facts_of(setting, found)
    base = setting.out / target.name
    if target.name.startswith("table"):
        contents = {".md": tables.markdown(target, found, facts), ".json": tables.as_json(target, found, facts)}
        files = {ending: text.encode() for ending, text in contents.items()}
        numbers: dict[str, Any] = {}
    else:
        title = f"{tables.heading(target)}\n{facts['sentence']}"
        figure, numbers = _figure(setting, target, found, title)
        files = {f".{kind}": picture for kind, picture in figures.drawn(figure).items()} if figure else {}
        files[".json"] = tables.as_json(target, found, facts | {"numbers": numbers}).encode()
    setting.out.mkdir(parents=True, exist_ok=True)
    for ending, content in files.items():
        write_whole(base.with_name(base.name + ending), content)
    return Made(target, found, [base.with_name(base.name + ending) for ending in files], numbers)


def _figure(
    setting: Setting, target: Target, found: list[Outcome], title: str
) -> tuple[Figure | None, dict[str, Any]]:
    if target.name == "figure-diversity":
        from onebit.reproduction.diversity import diversity

        run = target.experiments[0]
        if not found[0].chosen:
            return None, {}
        return diversity(setting.out / RUNS / run.name, data_of(run.config), title)
    draw = {
        "figure-lambda": figures.over_lambda,
        "figure-epoch": figures.over_epochs,
        "figure-losscurve": figures.losses,
    }
    return draw[target.name](found, title)


def facts_of(setting: Setting, found: Sequence[Outcome]) -> dict[str, Any]:
    """What all numbers share: the budget, the data, the machine."""
    records = [record for outcome in found for record in outcome.chosen]
    data = sorted({record.data for record in records})
    cpus = sorted({record.cpu for record in records})
    words = [f"budget {setting.budget}: {BUDGETS[setting.budget]}"]
    words += [", ".join(data)] if data else []
    return {"budget": setting.budget, "data": data, "cpus": cpus, "sentence": "; ".join(words)}


def make_memory(setting: Setting) -> tuple[Any, list[Path]]:
    """Table 5, which needs no training."""
    from onebit.benching.measuring import Effort
    from onebit.reproduction import memory

    effort = Effort(1, 0.01) if setting.budget == "smoke" else Effort(15, 0.1)
    size = 32 if setting.budget == "smoke" else 224
    with Progress("timing", memory.steps(effort)) as progress:
        found = memory.measured(effort, size, progress.advance)
    cpu = this_machine().cpu
    sentence = f"counted, and timed on {cpu}, one core"
    facts = {"budget": setting.budget, "cpus": [cpu], "sentence": sentence}
    setting.out.mkdir(parents=True, exist_ok=True)
    files = {".md": memory.markdown(found, sentence), ".json": memory.as_json(found, facts)}
    for ending, text in files.items():
        write_whole(setting.out / f"{MEMORY}{ending}", text.encode())
    return found, [setting.out / f"{MEMORY}{ending}" for ending in files]


def as_json(made: Made) -> dict[str, Any]:
    """What was made, for a program."""
    entries = [outcome.as_json(made.target.heads) for outcome in made.found]
    files = [str(file) for file in made.files]
    return {"name": made.target.name, "files": files, "entries": entries, "numbers": made.numbers}


def dumps(found: Sequence[dict[str, Any]]) -> str:
    """One document."""
    return json.dumps(list(found))


def check_data_name(runs: Sequence[Experiment], name: str | None) -> None:
    """One name is for one data set."""
    if name and len({run.config.data for run in runs}) > 1:
        raise UserError(f"--data-name {name}: these runs are of several data sets, so one name won't do")
