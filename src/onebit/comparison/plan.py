"""What a comparison consists of: a run for each contestant, learning rate and seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from onebit.data.splits import DataSet
from onebit.errors import UserError
from onebit.methods import METHODS, kernel_rates_of, layer_of, method_options, nearest_method
from onebit.training.config import OPTIONS, Config, Net, Rate
from onebit.training.loop import divide
from onebit.training.nets import spec_of
from onebit.training.recipes import checked, read_recipe, to_toml

PLAN, BASE = "plan.json", "base.toml"
ALIASES = {"num_projections": "projections", "J": "projections", "K": "projections"}


class Contestant(BaseModel):
    """A method and what it has of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    keys: dict[str, str] = {}

    @property
    def label(self) -> str:
        """As it was asked for: 'bnn', 'pcnn:projections=4,width=4'."""
        own = ",".join(f"{key}={value}" for key, value in self.keys.items())
        return f"{self.method}:{own}" if own else self.method


class Plan(BaseModel):
    """The contestants, and the learning rates, rates of kernels and seeds that each of them gets."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    contestants: Annotated[tuple[Contestant, ...], Field(min_length=1, max_length=1000)]
    lrs: Annotated[tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...], Field(min_length=1)]
    # By what that of the kernels is multiplied; plans were without it when it was always 1.
    kernel_rates: Annotated[tuple[Rate, ...], Field(min_length=1)] = (1.0,)
    seeds: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**63)], ...], Field(min_length=1)]


class Run(NamedTuple):
    """One of the runs."""

    contestant: Contestant
    lr: float
    kernel_rate: float | str
    seed: int
    config: Config

    @property
    def label(self) -> str:
        """Of its contestant."""
        return self.contestant.label

    @property
    def name(self) -> str:
        """Of its folder."""
        own = "".join(f"-{key}{value}" for key, value in self.contestant.keys.items())
        safe = "".join(c if c.isalnum() or c in "-._" else "_" for c in own)
        kernels = "" if self.kernel_rate == 1 else f"-k{str(self.kernel_rate).removesuffix('.0')}"
        return f"{self.contestant.method}{safe}-lr{str(self.lr).removesuffix('.0')}{kernels}-seed{self.seed}"


def parse_contestants(words: Sequence[str], base: Config) -> tuple[tuple[Contestant, ...], list[str]]:
    """The contestants that are named, or all that take the activations asked for; and who does not."""
    if list(words) == ["all"]:
        asked = base.activation_bits
        out = [method for method in METHODS if asked is not None and not _takes(method, asked)]
        return tuple(Contestant(method=method) for method in METHODS if method not in out), out
    if not words:
        raise UserError(f"--methods: name at least one of {', '.join(METHODS)}, or leave it out for all")
    found = tuple(_contestant(word) for word in words)
    labels = [contestant.label for contestant in found]
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(f"--methods: {label} is named twice")
    return found, []


def _takes(method: str, activation_bits: int) -> bool:
    layer_class = layer_of(method)
    return layer_class is None or activation_bits in layer_class.ACTIVATION_BITS


def _contestant(word: str) -> Contestant:
    method, _, rest = word.partition(":")
    if method not in METHODS:
        near = nearest_method(method)
        hint = f"did you mean {near}? " if near else ""
        raise UserError(f"--methods {method}: {hint}use some of {', '.join(METHODS)}")
    keys: dict[str, str] = {}
    own = _own_keys(method)
    for part in rest.split(",") if rest else ():
        key, equals, value = (word.strip() for word in part.partition("="))
        key = ALIASES.get(key, key)
        if not equals or key not in own:
            raise UserError(f"--methods {word}: after the colon use key=value,...; {method} has {', '.join(own)}")
        if key in keys:
            raise UserError(f"--methods {word}: {key} comes twice")
        keys[key] = value
    return Contestant(method=method, keys=keys)


def _own_keys(method: str) -> list[str]:
    """What a contestant may have of its own; the rest is the same for all."""
    taken = [ALIASES.get(option, option) for option in method_options(method)]
    return ["width", *(key for key in Net.model_fields if key in taken)]


def runs(plan: Plan, base: Config) -> list[Run]:
    """All runs, those of one seed and learning rate together, so that a table soon has a row for every method."""
    planned = [
        Run(contestant, lr, rate, seed, _config(base, contestant, lr, rate, seed))
        for seed in plan.seeds
        for lr, number in product(plan.lrs, range(len(plan.kernel_rates)))
        for contestant in plan.contestants
        for rate in rates_of(plan, contestant, base)[number : number + 1]
    ]
    names = [run.name for run in planned]
    if len(set(names)) < len(names):
        raise UserError(f"--methods: two of them would share the folder {max(names, key=names.count)}")
    first = planned[: len(plan.contestants)]
    for number, run in enumerate(first):
        for other in first[:number]:
            if run.config == other.config:
                labels = f"{other.contestant.label} and {run.contestant.label}"
                raise UserError(f"--methods: {labels} are the same net, trained twice")
    return planned


def check(planned: Sequence[Run], data: DataSet) -> None:
    """Raise now what every run would raise on its own."""
    divide(planned[0].config, data)
    for run in {run.contestant.label: run for run in planned}.values():
        with torch.device("meta"):
            spec_of(run.config, data).build()


def rates_of(plan: Plan, contestant: Contestant, base: Config) -> tuple[float | str, ...]:
    """Of the plan's rates of kernels those that make a difference to a contestant."""
    return kernel_rates_of(contestant.method, plan.kernel_rates, adaptive=base.opt == "adamw")


def _config(base: Config, contestant: Contestant, lr: float, kernel_rate: float | str, seed: int) -> Config:
    """The same for all but for what the contestant is; rates that hang on lr keep their ratio to it."""
    keys: dict[str, Any] = base.model_dump(exclude_none=True) | {
        "method": contestant.method,
        "seed": seed,
        "lr": lr,
        "kernel_rate": kernel_rate,
    }
    if contestant.method == "float":
        keys.pop("activation_bits", None)
    for key in ("lr_w", "stage2_lr"):
        if key in keys:
            keys[key] *= lr / base.lr
    if base.two_stage and contestant.method == "float":  # it has no signs to insert: as many epochs in one stage
        epochs = base.epochs + (base.stage2_epochs or base.epochs)
        milestones = [round(milestone * epochs / base.epochs) for milestone in base.milestones]
        keys |= {"two_stage": False, "epochs": epochs, "milestones": milestones}
        keys = {key: value for key, value in keys.items() if not key.startswith("stage2_")}
    try:
        return checked(keys | contestant.keys, dict.fromkeys(contestant.keys, ""))
    except UserError as error:
        shared = [key for key in ("projections", *OPTIONS) if str(error).startswith(f"{key}=")]
        hint = f". Give it to one alone: --methods 'pcnn:{shared[0]}=...'" if shared and not contestant.keys else ""
        raise UserError(f"{contestant.label}: {error}{hint}") from None


def store(plan: Plan, base: Config) -> dict[str, bytes]:
    """The files that say what a comparison is."""
    return {PLAN: (plan.model_dump_json(indent=2) + "\n").encode(), BASE: to_toml(base).encode()}


def stored(folder: Path) -> tuple[Plan, Config]:
    """What the comparison in this folder is."""
    path = folder / PLAN
    if not path.is_file():
        raise UserError(f"{folder}: holds no comparison that could be resumed")
    try:
        plan = Plan.model_validate(json.loads(path.read_text()))
    except (ValidationError, ValueError, RecursionError):
        raise UserError(f"{path}: not a plan that this version writes") from None
    return plan, checked(read_recipe(str(folder / BASE)))
