"""Recipes: TOML files with keys of `Config`, in the package or of the user's own; and budgets.

What counts, from the weakest: the defaults, the recipe, the budget, the flags.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from onebit.advice import program
from onebit.console import is_unicode, printable
from onebit.errors import UserError
from onebit.training.config import Config, describe, flag, is_switch

Budget = Literal["paper", "cpu", "smoke"]


def recipe_names() -> list[str]:
    """The package's recipes."""
    files = resources.files("onebit.training").joinpath("recipes").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if not file.name.startswith("_"))


def read_recipe(name: str) -> dict[str, Any]:
    """The keys of a recipe of the package, or of a file if the name ends in '.toml'."""
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise UserError(f"--recipe {name}: no such file")
        try:
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            raise UserError(f"recipe {name}: not UTF-8 text") from None
    else:
        if name not in recipe_names():
            raise UserError(f"--recipe {name}: {_no_recipe(name)}")
        text = resources.files("onebit.training").joinpath("recipes", f"{name}.toml").read_text()
    try:
        keys = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"recipe {name}: not TOML ({error})") from None
    base = keys.pop("extends", None)
    if base is None:
        return keys
    if not isinstance(base, str) or not base.startswith("_"):
        raise UserError(f"recipe {name}: extends = {base!r}: use _cifar or _imagenet")
    shared = resources.files("onebit.training").joinpath("recipes", f"{base}.toml")
    if not shared.is_file():
        raise UserError(f"recipe {name}: extends = {base!r}: use _cifar or _imagenet")
    return tomllib.loads(shared.read_text()) | keys


def resolve(recipe: str | None, budget: Budget, flags: Mapping[str, Any]) -> Config:
    """The config of a run."""
    from_recipe = {} if recipe is None else read_recipe(recipe)
    for key in from_recipe:
        if key not in Config.model_fields:
            raise UserError(f"recipe {recipe}: unknown key {key!r}{nearest(key, Config.model_fields)}")
    sources = dict.fromkeys(from_recipe, f"recipe {recipe}: ") | dict.fromkeys(flags, "")
    keys = {**from_recipe, **flags}
    if budget != "paper":
        # The flags once more: they count for more than the budget, which looks at them.
        keys = {**from_recipe, **_scaled(checked(keys, sources), budget), **flags}
        sources = dict.fromkeys(keys, f"budget {budget}: ") | sources
    return checked(keys, sources)


def checked(keys: Mapping[str, Any], sources: Mapping[str, str] | None = None) -> Config:
    """A config of these keys, or a `UserError` that says which is wrong and where it comes from."""
    sources = sources or {}
    for key, value in keys.items():
        if isinstance(value, str) and not is_unicode(value):
            where = sources.get(key) or f"{flag(key)}: "
            raise UserError(f"{where}'{printable(value)}' is not UTF-8 text, which the run's files could not hold")
        if isinstance(value, bool) and key in Config.model_fields and not is_switch(key):
            raise UserError(
                f"{sources.get(key, 'config: ')}{key} = {str(value).lower()}: not a matter of true or false"
            )
    try:
        return Config(**keys)
    except ValidationError as error:
        found, *others = error.errors()
        if not found["loc"]:
            raise UserError(describe(dict(found))) from None
        key = str(found["loc"][0])
        source = sources.get(key, "config: ")
        what = f"{source}{key} = {keys[key]!r}" if source else f"{flag(key)} {keys[key]}"
        words = [
            e["ctx"]["expected"].strip("'") for e in others if e["loc"][0] == key and e["type"] == "literal_error"
        ]
        raise UserError(f"{what}: {', or '.join([describe(dict(found)), *words])}") from None


def _scaled(config: Config, budget: Budget) -> dict[str, Any]:
    """What a short run changes: a tenth of the epochs, or a handful of images, on a schedule that suits them.

    A step schedule would spend a short run at the large learning rate; a cosine anneals whatever the length,
    and a warm-up keeps the first updates, now a larger part of the whole, from doing harm.
    """
    if budget == "smoke":
        return {
            "epochs": 1, "stage2_epochs": None, "limit_images": 512, "sched": "cosine", "warmup_epochs": 0.1,
            "bn_batches": 2, "batch_size": min(config.batch_size, 64),
        }  # fmt: skip
    epochs = max(2, round(config.epochs / 10))
    second = config.stage2_epochs and max(2, round(config.stage2_epochs / 10))
    milestones = sorted({max(1, round(milestone / 10)) for milestone in config.milestones})
    shorter = {"epochs": epochs, "stage2_epochs": second, "milestones": milestones}
    return shorter | {"sched": "cosine", "warmup_epochs": min(1.0, epochs / 10)}


def to_toml(config: Config) -> str:
    """The config as a recipe: `onebit train --recipe RUN/config.toml` does the same run again."""
    lines = []
    for key, value in config.model_dump(mode="json").items():
        if value is not None:
            # JSON's strings and lists are TOML's, but for one character.
            text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
            lines.append(f"{key} = {text}")
    return "\n".join(lines) + "\n"


def command_of(config: Config) -> str:
    """The config as a line that does the same run again, whatever becomes of recipes: `onebit train` with flags.

    Said are the data, the net, the method, and every key that is not as by default.
    """
    words = ["onebit", "train"]
    for key, value in config:
        if value == Config.model_fields[key].default and key not in {"data", "model", "method"}:
            continue
        if is_switch(key):
            words.append(flag(key) if value else flag(f"no_{key}"))
            continue
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        words += [f"{flag(key)}={text}"] if text.startswith("-") else [flag(key), text]
    return shlex.join(words)


def without_places(config: Config) -> Config:
    """The config without paths of this machine: data is in DATA, other runs are in `runs`, under their names."""
    named: dict[str, str | None] = {"data_dir": None if config.data == "digits" else "DATA"}
    for key in ("teacher", "initial_checkpoint"):
        if (value := getattr(config, key)) is not None:
            path = Path(value)
            named[key] = (
                f"runs/{path.parent.name}/{path.name}" if path.suffix == ".safetensors" else f"runs/{path.name}"
            )
    return config.model_copy(update=named)


def _no_recipe(name: str) -> str:
    if Path(name).is_file():
        return "a recipe of your own is a file that ends in .toml"
    near = get_close_matches(name, recipe_names(), n=1, cutoff=0.5)
    listed = f"{program()} train --list-recipes names them"
    return f"no such recipe; {f'did you mean {near[0]}? ' if near else ''}{listed}"


def nearest(name: str, names: Any) -> str:
    """What to add to an error about a name that is not among these."""
    near = get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(sorted(names))}"
