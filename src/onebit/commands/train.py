"""`onebit train`: a run, from a recipe, from flags, or from where it was interrupted."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from onebit.advice import program
from onebit.console import complain, counted, tell
from onebit.errors import UserError, WorkError
from onebit.jsonfields import json_text

HELP = "train a net; interrupt it whenever you like and go on with --resume"
EXAMPLES = """examples:
  onebit train --recipe digits-pcnn22                                half a minute, on the digits of the package
  onebit train --recipe cifar10-pcnn22-j4 --data-dir DATA            PCNN-22, i = 16, J = 4, as in the paper
  onebit train --recipe cifar10-pcnn22 --data-dir DATA --budget cpu  a tenth of the epochs, for a CPU
  onebit train --model wrn22 --projections 4 --data cifar10 --data-dir DATA --epochs 50 --sched cosine --out RUN
  onebit train --resume RUN                                          go on, bit for bit as if nothing had happened
  onebit train --recipe imagenet-pcnn-resnet18 --data imagefolder --data-dir PHOTOS --image-size 64
  torchrun --nproc-per-node 2 --max-restarts 3 -m onebit train --recipe cifar10-pcnn22 --data-dir DATA --out RUN
"""
USAGE = "onebit train (--recipe NAME | --resume RUN | flags) [flags]"
WORDS = {
    "data_dir": "DIR",
    "device": "NAME",
    "hold_out": "N|auto",
    "initial_checkpoint": "PATH",
    "kernel_rate": "X|authors",
    "levels": "N|N,N,...",
    "method": "NAME",
    "milestones": "N,N,...",
    "teacher": "PATH",
}
PATHS = {"data_dir", "initial_checkpoint", "teacher"}
SHORT = {"batch_size": ["-b"], "workers": ["-j"]}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A flag for every key of a config."""
    from onebit.training.recipes import Budget

    run = parser.add_argument_group("what to do")
    run.add_argument("--recipe", metavar="NAME", help="a recipe of the package (--list-recipes), or a .toml file")
    run.add_argument("--list-recipes", action="store_true", help="print their names")
    run.add_argument(
        "--budget",
        choices=get_args(Budget),
        default="paper",
        help="paper: as the recipe says (default); cpu: a tenth of the epochs; smoke: does it work at all",
    )
    run.add_argument("--out", metavar="RUN", help="folder of the run (default: runs/, named for what it does)")
    run.add_argument(
        "--resume", nargs="?", const="", metavar="RUN", help="go on with the run in RUN, or in --out if it has one"
    )
    run.add_argument("--json", action="store_true", help="print the summary as JSON")
    add_config_flags(parser)


def add_config_flags(parser: argparse.ArgumentParser, leave_out: Collection[str] = ()) -> None:
    """A flag for every key of a config but these."""
    from onebit.training.config import SECTIONS, flag, is_switch

    for section in SECTIONS:
        group = parser.add_argument_group((section.__doc__ or "").strip())
        for key, field in section.model_fields.items():
            if key in leave_out:
                continue
            options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": field.description, "dest": key}
            if field.default is not None and not isinstance(field.default, bool):
                default = field.default
                shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
                options["help"] = f"{field.description} (default: {shown})"
            if is_switch(key):
                options["action"] = argparse.BooleanOptionalAction
            else:
                options["metavar"] = _metavar(key, field.annotation)
            if key == "amp":
                options |= {"nargs": "?", "const": "bfloat16"}
            group.add_argument(*SHORT.get(key, []), flag(key), **options)


def run(arguments: argparse.Namespace) -> int:
    """Train, and say what came of it."""
    from onebit.training.recipes import recipe_names

    if arguments.list_recipes:
        tell(*recipe_names())
        return 0
    flags = config_flags(arguments)
    if not (arguments.resume or arguments.recipe or flags):
        raise UserError("say what to train: --recipe NAME (see --list-recipes), flags, or --resume RUN; see --help")

    from onebit.training.loop import Interrupted
    from onebit.training.runfolder import check_out
    from onebit.training.session import train

    config, out, resume = _what(arguments, flags)
    check_out(out)
    try:
        summary = train(config, out, resume=resume, quiet=arguments.quiet)
    except Interrupted as stop:
        if os.environ.get("RANK", "0") == "0":
            complain("onebit train", f"stopped and saved; go on with: {_resume(out)}")
        return 128 + stop.signal_number
    except WorkError as error:
        raise WorkError(f"{error}. {_what_next(out)}") from error
    if os.environ.get("RANK", "0") == "0":  # of several processes one speaks
        tell(*([json_text(summary | {"run": str(out)})] if arguments.json else _lines(summary, out)))
    return 0


def _what_next(out: Path) -> str:
    """What to do after a failure that is not the user's."""
    from onebit.training.runfolder import RunFolder

    if RunFolder(out).has_checkpoint():
        return f"Go on with: {_resume(out)}"
    return "There is no checkpoint yet: the same command begins anew"


def _resume(out: Path) -> str:
    return f"{program()} train --resume {shlex.quote(str(out))}"


def _what(arguments: argparse.Namespace, flags: dict[str, Any]) -> tuple[Any, Path, bool]:
    """The config, the folder, and whether to go on with what is there."""
    from onebit.training.recipes import resolve
    from onebit.training.runfolder import RunFolder
    from onebit.training.session import resumed_config

    resume, named = arguments.resume is not None, arguments.resume or ""
    if named and not arguments.recipe and arguments.budget != "paper":
        raise UserError(f"--budget {arguments.budget}: a resumed run keeps its own")
    if named and arguments.out not in {None, named}:
        raise UserError(f"--out {arguments.out}: a resumed run stays in its folder, {named}")
    asked = None if named and not arguments.recipe else resolve(arguments.recipe, arguments.budget, flags)
    out = Path(named or arguments.out or f"runs/{_name(arguments, asked)}")
    if asked is None or (resume and RunFolder(out).has_checkpoint()):
        return resumed_config(out, asked, flags), out, resume
    return asked, out, resume


def config_flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """The keys of a config that were given as flags."""
    from onebit.training.config import Config

    flags = {key: value for key, value in vars(arguments).items() if key in Config.model_fields}
    # A run must find its files again when it is resumed from elsewhere.
    return {k: os.path.abspath(os.path.expanduser(v)) if k in PATHS else v for k, v in flags.items()}  # noqa: PTH100, PTH111


def _lines(summary: dict[str, Any], out: Path) -> list[str]:
    scores = f"top-1 {summary['test_top1']:.2f} %, top-5 {summary['test_top5']:.2f} %"
    cost = f"{counted(summary['epochs'], 'epoch')} ({summary['training_seconds']:.0f} s of training)"
    where = counted(summary["test_images"], "test image")
    lines = [f"{summary['net']} on {summary['data']}: {scores} of {where} after {cost}"]
    if summary["best_held_out_top1"] is not None:
        held = f"{summary['best_held_out_top1']:.2f} % of the held-out images"
        lines.append(f"best epoch {summary['best_epoch']}: {held} (best.safetensors)")
    if summary["skipped_images"]:
        lines.append(f"left out, since they can't be read: {counted(summary['skipped_images'], 'image')}")
    return [*lines, f"all of it is in {out}"]


def _name(arguments: argparse.Namespace, config: Any) -> str:
    recipe = arguments.recipe and Path(arguments.recipe).name.removesuffix(".toml")
    name = recipe or f"{config.data}-{config.method}-{config.model}"
    budget = "" if arguments.budget == "paper" else f"-{arguments.budget}"
    return f"{name}{budget}" + (f"-seed{config.seed}" if config.seed else "")


def _metavar(key: str, annotation: Any) -> str:
    """A|B|C for choices, else a word, else N."""
    kinds = (annotation, *get_args(annotation))
    choices = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())
    return WORDS.get(key) or "|".join(map(str, choices)) or "N"
