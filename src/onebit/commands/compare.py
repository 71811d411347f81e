"""`onebit compare`: methods side by side, on equal terms."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from onebit.errors import UserError

if TYPE_CHECKING:
    from onebit.comparison.table import Row

HELP = "train several methods with the same net, data, schedule, seeds and learning rates, and compare them"
EXAMPLES = """examples:
  onebit compare --budget smoke                                     every method on the digits, in under 3 minutes
  onebit compare --methods pcnn,bwn,float --seeds 0,1,2             three of them, with a spread over seeds
  onebit compare --methods pcnn 'pcnn:projections=4,width=4'        a method twice: J = 1 and 4, the same tensors
  onebit compare --activation-bits 1 --recipe cifar10-pcnn22 --data-dir DATA --budget cpu --lrs 0.1,0.03,0.01
  onebit compare --resume compare/digits                            go on, or see the table again
"""
USAGE = "onebit compare [--methods NAME,...] [--recipe NAME] [--budget B] [--seeds N,...] [--lrs X,...] [flags]"
SMOKE = {"epochs": 5, "limit_images": 0}  # on the digits: enough to tell who learns from who does not


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its own, and a flag for every key of a config."""
    from onebit.commands.train import add_config_flags
    from onebit.training.recipes import Budget

    what = parser.add_argument_group("what to compare")
    what.add_argument(
        "--methods", nargs="+", metavar="NAME", help="with commas or spaces; 'NAME:key=value,...' for a variant "
        "(default: all, float among them)",
    )  # fmt: skip
    what.add_argument("--seeds", metavar="N,...", help="(default: 0,1,2; smoke: 0)")
    what.add_argument(
        "--lrs", metavar="X,...", help="learning rates that every method gets; the best on held-out images counts "
        "(default: 1, 3 and 10 times the recipe's; smoke: 1 and 10 times)",
    )  # fmt: skip
    what.add_argument("--recipe", metavar="NAME", help="net, data and schedule (default: digits-pcnn22)")
    what.add_argument("--budget", choices=get_args(Budget), default="paper", help="as for onebit train")
    what.add_argument("--out", metavar="DIR", help="folder of the comparison (default: in compare/)")
    what.add_argument("--resume", metavar="DIR", help="go on with the comparison in DIR")
    what.add_argument("--jobs", type=int, metavar="N", help="runs at once (default: one a core, at most 8; GPU: 1)")
    what.add_argument("--quiet", action="store_true", help="no progress")
    what.add_argument("--json", action="store_true", help="print the table as JSON")
    add_config_flags(parser, leave_out={"method", "seed", "lr"})


def run(arguments: argparse.Namespace) -> int:
    """Run what is not finished, print the table."""
    from onebit.comparison.plan import runs
    from onebit.comparison.running import run_all
    from onebit.comparison.table import as_json, rows
    from onebit.comparison.watching import Display

    folder, plan, base, left_out = _what(arguments)
    planned = runs(plan, base)
    _load_data_once(base)
    jobs = _jobs(arguments.jobs, base, len(planned))
    title = f"{base.model} on {base.data}, {base.epochs} epochs"
    with _held(folder), Display(folder, planned, jobs, quiet=arguments.quiet) as display:
        for method in left_out:
            display.say(f"{method} does not take --activation-bits {base.activation_bits} and is left out")
        failures, stopped = run_all(folder, planned, jobs, display.watch)
    table = rows(folder, plan, planned)
    facts = {
        "net": base.model,
        "data": base.data,
        "epochs": base.epochs,
        "lrs": plan.lrs,
        "seeds": plan.seeds,
        "finished": not stopped and not failures,
        "failures": [{"run": run.name, "why": why} for run, why in failures],
    }
    if table:
        _keep(folder, table, title, facts)
    if stopped:
        print(f"stopped and saved; go on with: onebit compare --resume {folder}", file=sys.stderr)  # noqa: T201
        return 128 + stopped
    for run_, why in failures:
        print(f"{run_.name} failed: {why}", file=sys.stderr)  # noqa: T201
    if arguments.json:
        print(as_json(table, facts | {"folder": str(folder)}), end="")  # noqa: T201
    else:
        _print(table, title, folder)
    return int({row.method for row in table} != {contestant.label for contestant in plan.contestants})


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """No two processes may work on a comparison at once."""
    from onebit.training.runfolder import locked

    with (folder / ".lock").open("a+") as file:
        if not locked(file):
            raise UserError(f"{folder}: another process is at work on this comparison")
        yield


def _what(arguments: argparse.Namespace) -> tuple[Path, Any, Any, list[str]]:
    """The folder, the plan, what all runs share, and the methods that can't take part."""
    from onebit.commands.train import config_flags
    from onebit.comparison.plan import Plan, parse_contestants, store, stored
    from onebit.comparison.running import cores
    from onebit.training.checkpoints import switch
    from onebit.training.config import flag
    from onebit.training.recipes import resolve

    flags = config_flags(arguments)
    if arguments.resume:
        given = [flag(key) for key in flags] + [
            f"--{name}" for name in ("methods", "seeds", "lrs", "recipe", "out") if getattr(arguments, name)
        ]
        if given:
            raise UserError(f"{given[0]}: a comparison that is resumed stays as it is")
        folder = Path(arguments.resume)
        return folder, *stored(folder), []
    recipe = arguments.recipe or (None if "data" in flags else "digits-pcnn22")
    base = resolve(recipe, arguments.budget, flags)
    if arguments.budget == "smoke" and base.data == "digits":
        base = resolve(recipe, "smoke", SMOKE | flags)
    if not base.threads:
        base = base.model_copy(update={"threads": max(1, cores() // _jobs(arguments.jobs, base, 1 << 30))})
    contestants, left_out = parse_contestants(_words(arguments.methods or ["all"]), base)
    seeds = _numbers("--seeds", arguments.seeds or ("0" if arguments.budget == "smoke" else "0,1,2"), int)
    # Not below the recipe's: methods without a scale want more (docs/comparing.md), and none so far wanted less.
    factors = (1, 10) if arguments.budget == "smoke" else (1, 3, 10)
    lrs = _numbers("--lrs", arguments.lrs or ",".join(f"{factor * base.lr:g}" for factor in factors), float)
    if len(lrs) > 1 and base.hold_out == 0:
        raise UserError(
            "--hold-out 0: without held-out images a learning rate can't be chosen: give a single --lrs"
        )
    plan = Plan(contestants=contestants, lrs=lrs, seeds=seeds)
    name = recipe and Path(recipe).name.removesuffix(".toml").split("-")[0]
    budget = "" if arguments.budget == "paper" else f"-{arguments.budget}"
    folder = Path(arguments.out or f"compare/{name or base.data}{budget}")
    if (folder / "plan.json").exists():
        if stored(folder) != (plan, base):
            raise UserError(f"{folder}: holds another comparison: --resume {folder} to go on with it, or use --out")
        return folder, plan, base, left_out
    folder.mkdir(parents=True, exist_ok=True)
    switch(folder, store(plan, base))
    return folder, plan, base, left_out


def _words(given: list[str]) -> list[str]:
    """['a,b', 'c:x=1,y=2'] to ['a', 'b', 'c:x=1,y=2']: a comma inside a variant belongs to it."""
    words: list[str] = []
    for part in ",".join(given).split(","):
        if "=" in part and ":" not in part and words and ":" in words[-1]:
            words[-1] += f",{part}"
        elif part.strip():
            words.append(part.strip())
    return words


def _numbers(name: str, text: str, kind: type) -> tuple[Any, ...]:
    try:
        found = tuple(kind(part) for part in text.split(",") if part.strip())
    except ValueError:
        found = ()
    least, most = (0, 2**63 - 1) if kind is int else (1e-300, 1e300)
    if not found or not all(least <= number <= most for number in found):
        what = "whole numbers from 0" if kind is int else "numbers above 0"
        raise UserError(f"{name} {text}: use {what}, with commas")
    if len(set(found)) < len(found):
        raise UserError(f"{name} {text}: a number comes twice")
    return found


def _jobs(asked: int | None, base: Any, runs: int) -> int:
    from onebit.comparison.running import cores

    if asked is not None and asked < 1:
        raise UserError(f"--jobs {asked}: use at least 1")
    if asked is None:
        import torch

        on_gpu = base.device != "cpu" and (base.device != "auto" or torch.cuda.is_available())
        asked = 1 if on_gpu else min(8, cores())
    return min(asked, runs)


def _load_data_once(base: Any) -> None:
    """A mistake about the data is better said now than by every run; and if it must be fetched, once will do."""
    from onebit.data.catalog import load_data

    load_data(
        base.data, base.data_dir, image_size=base.image_size, workers=base.workers, on_bad_image=base.on_bad_image
    )


def _keep(folder: Path, table: list[Row], title: str, facts: dict[str, Any]) -> None:
    from onebit.comparison.plot import plot
    from onebit.comparison.table import as_csv, as_json, as_markdown
    from onebit.training.checkpoints import switch

    files = {
        "table.json": as_json(table, facts).encode(),
        "table.csv": as_csv(table).encode(),
        "table.md": as_markdown(table, title).encode(),
        "accuracy-bytes.svg": plot(table, title, "svg"),
        "accuracy-bytes.png": plot(table, title, "png"),
    }
    switch(folder, files)


def _print(table: list[Row], title: str, folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from onebit.comparison.table import HEADINGS, cells

    shown = Table(title=title)
    for heading in HEADINGS:
        shown.add_column(heading, justify="left" if heading == "method" else "right")
    for row in table:
        shown.add_row(*cells(row))
    console = Console()
    console.print(shown)
    console.print(
        f"top-1 is of the test images after the last epoch; bytes are counted (onebit.storage). Table and picture "
        f"are in {folder}: table.md, table.csv, table.json, accuracy-bytes.svg",
        highlight=False,
    )
    if any(row.spread is None for row in table):
        console.print("One seed: differences of a point or two are within chance; --seeds 0,1,2 shows the spread.")
