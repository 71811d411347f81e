"""What a table or a figure is made of: its entries, and the runs that each entry needs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from onebit.machine import this_machine
from onebit.training.config import FREE_AT_RESUME, OPTIONS, Config, activation_bits, settled
from onebit.training.recipes import Budget, checked, read_recipe

# What changes how a run is computed, but not what is asked for: runs that differ in it stand for each other.
FREE = FREE_AT_RESUME | {"amp", "channels_last"}
RUNS = "runs"  # the folder of the runs, in the folder of a reproduction


class Experiment(NamedTuple):
    """A run that is planned; `needs` are runs that must be finished before."""

    name: str
    config: Config
    needs: tuple[Experiment, ...] = ()

    @property
    def label(self) -> str:
        """For people."""
        return self.name


class Entry(NamedTuple):
    """A number of a table, or a part of a figure.

    where    what it is: a cell for each of the target's heads
    top1     the paper's, in percent; None: the paper has none
    runs     all seeds and learning rates; none: not in this budget
    """

    where: tuple[str, ...]
    runs: tuple[Experiment, ...]
    top1: float | None = None
    top5: float | None = None


class Target(NamedTuple):
    """A table or a figure.

    number   in the paper, such as 'Table 2'; '': not in the paper
    notes    what a reader must know to read the numbers
    """

    name: str
    number: str
    title: str
    heads: tuple[str, ...]
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()

    @property
    def experiments(self) -> list[Experiment]:
        """All runs, each once."""
        return list({run.name: run for entry in self.entries for run in entry.runs}.values())


@dataclass(frozen=True)
class Setting:
    """For whom runs are planned: the budget, and where data and results are."""

    budget: Budget
    out: Path
    data_dir: str | None = None
    seeds: tuple[int, ...] | None = None  # None: as many as the table has
    own_structure: bool = False  # rivals in the nets of their authors, where there is a choice

    def plan(self, recipe: str, budget_keys: dict[str, Any], *needs: Experiment, **keys: Any) -> Experiment:
        """A run: a recipe, what the budget changes of it, and what is this run's own."""
        placed: dict[str, Any] = {"threads": 1} if self.budget != "paper" else {}
        if self.data_dir:
            placed["data_dir"] = self.data_dir
        config = checked({**read_recipe(recipe), **budget_keys, **placed, **keys})
        return Experiment(run_name(config), config, needs)

    def seeds_or(self, *usual: int) -> tuple[int, ...]:
        """The seeds that were asked for, or those that a table usually has; one is enough to see that it works."""
        return self.seeds or (usual[:1] if self.budget == "smoke" else usual)

    def run_folder(self, name: str) -> str:
        """Where a run is, for a run that begins from it or has it for a teacher."""
        return str(self.out / RUNS / name)


def precision() -> dict[str, Any]:
    """bfloat16 where the CPU computes with it: half as long again or twice as fast, and the same for all runs."""
    has_it = any(name in this_machine().instructions for name in ("avx512_bf16", "amx_bf16"))
    return {"amp": "bfloat16"} if has_it else {}


def run_name(config: Config) -> str:
    """The name of a run: what it is, with no word for what is as usual."""
    parts = [_data_word(config), config.model, config.method, f"i{config.width}"]
    if config.projections > 1 or config.method in {"pcnn", "mcn"}:
        parts.append(f"j{config.projections}")
    if config.method != "float":
        parts.append(f"a{activation_bits(config)}")
    told = {key: getattr(config, key) for key in (*OPTIONS, "shortcuts", "form")}
    parts += [f"{key}_{value}" for key, value in told.items() if value is not None]
    if not settled(config).decay_kernels:
        parts.append("nodecay")
    if config.kernel_rate != 1:
        parts.append(f"k{rate_word(config.kernel_rate)}")
    if config.two_stage:
        parts.append("two_stage")
    if config.hold_out == 0:
        parts.append("all_images")
    parts += [key for key in ("teacher", "initial_checkpoint") if getattr(config, key) is not None]
    parts += [f"lr{config.lr:g}", f"{config.epochs}ep", f"seed{config.seed}"]
    return "-".join(parts)


def rate_word(rate: float | str) -> str:
    """A multiplier of kernels' rate as people read it."""
    return rate if isinstance(rate, str) else f"{rate:g}"


def _data_word(config: Config) -> str:
    """Folders of images are told apart by their names."""
    if config.data != "imagefolder" or config.data_dir is None:
        return config.data
    return re.sub(r"[^\w.-]", "_", Path(config.data_dir).name) or config.data


def check_names(targets: Iterable[Target]) -> None:
    """A name stands for one run only."""
    known: dict[str, Config] = {}
    for target in targets:
        for run in target.experiments:
            config = settled(run.config)
            if known.setdefault(run.name, config) != config:
                raise ValueError(f"{run.name}: two different runs have this name")


def share_of(targets: Iterable[Target], number: int, of: int) -> list[Experiment]:
    """The `number`-th of `of` shares of all runs: the same while runs finish. Who needs a run is in its share."""
    needed = {
        run.name: run for target in targets for planned in target.experiments for run in (*planned.needs, planned)
    }
    first = [run for run in needed.values() if not run.needs]
    mine = {run.name for run in first[number - 1 :: of]}
    return [run for run in needed.values() if (run.needs[0] if run.needs else run).name in mine]


def same_run(one: Config, another: Config) -> bool:
    """Whether a run of one config stands for one of the other."""
    one, another = settled(one), settled(another)
    return all(getattr(one, key) == getattr(another, key) for key in Config.model_fields if key not in FREE)
