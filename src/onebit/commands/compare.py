"""`onebit compare`: methods side by side, on equal terms."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from onebit.advice import program
from onebit.console import complain, counted, print_table, tell
from onebit.errors import UserError

if TYPE_CHECKING:
    from onebit.comparison.plan import Plan, Run
    from onebit.comparison.running import Failure
    from onebit.comparison.table import Point, Row
    from onebit.training.config import Config

HELP = "train several methods with the same net, data, schedule, seeds and learning rates, and compare them"
EXAMPLES = """examples:
  onebit compare --budget smoke                                     every method on the digits, in under 3 minutes
  onebit compare --methods pcnn,bwn,float --seeds 0,1,2             three of them, with a spread over seeds
  onebit compare --methods pcnn 'pcnn:projections=4,width=4'        J = 1 and J = 4 with the same tensors, 16 wide
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
        "--methods", nargs="+", metavar="NAME", help="with commas or spaces (default: all, float among them); "
        "'NAME:key=value,...' for a variant. A net's tensors are width * projections wide",
    )  # fmt: skip
    what.add_argument("--seeds", nargs="+", metavar="N,...", help="(default: 0,1,2; smoke: 0)")
    what.add_argument(
        "--lrs", nargs="+", metavar="X,...", help="learning rates that every method gets; the best on held-out "
        "images counts (default: 1, 3 and 10 times the recipe's; smoke: 1 and 10 times)",
    )  # fmt: skip
    what.add_argument(
        "--kernel-rates", nargs="+", metavar="X,...", help="by what that of kernels is multiplied, for every "
        "method; authors: what its authors use (default: 1,10,authors, and the recipe's; smoke: the recipe's)",
    )  # fmt: skip
    what.add_argument("--recipe", metavar="NAME", help="net, data and schedule (default: digits-pcnn22)")
    what.add_argument(
        "--budget", choices=get_args(Budget), help="paper: as the recipe says (default); cpu: a "
        "tenth of the epochs; smoke: does it work at all (on the digits 5 epochs)",
    )  # fmt: skip
    what.add_argument("--out", metavar="DIR", help="folder of the comparison (default: in compare/)")
    what.add_argument("--resume", metavar="DIR", help="go on with the comparison in DIR")
    what.add_argument("--jobs", type=int, metavar="N", help="runs at once (default: one a core, at most 8; GPU: 1)")
    what.add_argument("--json", action="store_true", help="print the table as JSON")
    add_config_flags(parser, leave_out={"method", "seed", "lr", "kernel_rate"})


def run(arguments: argparse.Namespace) -> int:
    """Run what is not finished, print the table."""
    from onebit.comparison.plan import check, runs
    from onebit.comparison.running import run_all, summary_of
    from onebit.comparison.table import grid, rows
    from onebit.comparison.watching import Display
    from onebit.training.runfolder import check_out
    from onebit.training.session import data_of

    plan, base, left_out = _stored(arguments) if arguments.resume else _asked(arguments)
    planned = runs(plan, base)
    folder = _folder(arguments, base)
    check_out(folder)
    jobs = jobs_of(arguments.jobs, base, len(planned))
    if not all(summary_of(folder, run) for run in planned):
        check(planned, data_of(base))  # data that must be fetched is fetched here, once
    with held(folder):
        if not arguments.resume:
            base = _begun(folder, plan, base)
            planned = runs(plan, base)
        with Display(folder, planned, jobs, quiet=arguments.quiet) as display:
            for method in left_out:
                display.say(f"{method} does not take --activation-bits {base.activation_bits} and is left out")
            failures, stopped = run_all(folder, planned, jobs, display.watch)
        points = grid(folder, plan, planned)
        table = rows(folder, plan, planned, points)
        facts = _facts(folder, plan, planned, base, failures, points)
        _keep(folder, table, facts)
    if stopped:
        complain("onebit compare", f"stopped and saved; go on with: {_resume(folder)}")
        return 128 + stopped
    if arguments.quiet:  # else it was said when it happened
        for failure in failures:
            complain("onebit compare", f"{failure.run.name} failed: {failure.why}")
    _tell(table, facts, folder, plan, as_json=arguments.json)
    return int(bool(facts["without_result"]))


def _stored(arguments: argparse.Namespace) -> tuple[Plan, Config, list[str]]:
    from onebit.commands.train import config_flags
    from onebit.comparison.plan import stored
    from onebit.training.config import flag

    own = [
        f"--{name}"
        for name in ("methods", "seeds", "lrs", "kernel-rates", "recipe", "budget", "out")
        if getattr(arguments, name.replace("-", "_"))
    ]
    for given in [*map(flag, config_flags(arguments)), *own]:
        raise UserError(f"{given}: a comparison that is resumed stays as it is")
    return *stored(Path(arguments.resume)), []


def _asked(arguments: argparse.Namespace) -> tuple[Plan, Config, list[str]]:
    """The plan, what all runs share, and the methods that can't take part."""
    from onebit.commands.train import config_flags
    from onebit.comparison.plan import Plan, parse_contestants
    from onebit.machine import cores
    from onebit.methods import METHODS
    from onebit.training.recipes import resolve

    flags = config_flags(arguments)
    words = ["all"] if arguments.methods is None else _words(arguments.methods)
    first = words[0].partition(":")[0] if words else ""
    if first in METHODS:  # whether the rest goes together may depend on the method
        flags["method"] = first
    recipe = arguments.recipe or (None if "data" in flags else "digits-pcnn22")
    base = resolve(recipe, arguments.budget or "paper", flags)
    if arguments.budget == "smoke" and base.data == "digits":
        base = resolve(recipe, "smoke", SMOKE | flags)
    if not base.threads:
        base = base.model_copy(update={"threads": max(1, cores() // jobs_of(arguments.jobs, base, 1 << 30))})
    contestants, left_out = parse_contestants(words, base)
    is_smoke = arguments.budget == "smoke"
    seeds = numbers_of("--seeds", arguments.seeds or (["0"] if is_smoke else ["0,1,2"]), int)
    # Not below the recipe's: methods without a scale want more (docs/comparing.md), and none so far wanted less.
    factors = (1, 10) if is_smoke else (1, 3, 10)
    lrs = numbers_of("--lrs", arguments.lrs or [f"{factor * base.lr:g}" for factor in factors], float)
    is_single = is_smoke or base.hold_out == 0
    usual = dict.fromkeys([base.kernel_rate] if is_single else [1.0, 10.0, "authors", base.kernel_rate])
    kernel_rates = _kernel_rates(arguments.kernel_rates) if arguments.kernel_rates else tuple(usual)
    if len(lrs) * len(kernel_rates) > 1 and base.hold_out == 0:
        raise UserError(
            "--hold-out 0: without held-out images no learning rate can be chosen: give a single --lrs and "
            "--kernel-rates"
        )
    return Plan(contestants=contestants, lrs=lrs, kernel_rates=kernel_rates, seeds=seeds), base, left_out


def _kernel_rates(given: Sequence[str]) -> tuple[float | Literal["authors"], ...]:
    """Numbers, and 'authors' where it stands."""
    words = [word.strip() for word in ",".join(given).split(",") if word.strip()]
    numbers = [word for word in words if word != "authors"]
    found = iter(numbers_of("--kernel-rates", numbers, float) if numbers or not words else ())
    if words.count("authors") > 1:
        raise UserError(f"--kernel-rates {','.join(words)}: authors comes twice")
    return tuple("authors" if word == "authors" else next(found) for word in words)


def _folder(arguments: argparse.Namespace, base: Config) -> Path:
    if arguments.resume:
        return Path(arguments.resume)
    name = Path(arguments.recipe or base.data).name.removesuffix(".toml").split("-")[0]
    budget = f"-{arguments.budget}" if arguments.budget in {"cpu", "smoke"} else ""
    return Path(arguments.out or f"compare/{name}{budget}")


def _begun(folder: Path, plan: Plan, base: Config) -> Config:
    """Say in the folder what is compared there, or go on with the same; what all runs share."""
    from onebit.comparison.plan import PLAN, store, stored
    from onebit.training.checkpoints import switch
    from onebit.training.session import changed_keys

    if not (folder / PLAN).exists():
        switch(folder, store(plan, base))
        return base
    old_plan, old_base = stored(folder)
    if old_plan != plan or changed_keys(old_base, base):
        raise UserError(f"{folder}: holds another comparison; go on with it: {_resume(folder)}; or use --out")
    return old_base


def _resume(folder: Path) -> str:
    return f"{program()} compare --resume {shlex.quote(str(folder))}"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder, made if need be; no two processes may work on a comparison at once."""
    from onebit.training.locks import Lock

    folder.mkdir(parents=True, exist_ok=True)
    lock = Lock(folder / ".lock")
    if not lock.take():
        raise UserError(f"{folder}: another process is at work on this comparison")
    try:
        yield
    finally:
        lock.release()


def _words(given: Sequence[str]) -> list[str]:
    """['a,b', 'c:x=1,y=2'] to ['a', 'b', 'c:x=1,y=2']: a comma inside a variant belongs to it."""
    words: list[str] = []
    for part in ",".join(given).split(","):
        if "=" in part and ":" not in part and words and ":" in words[-1]:
            words[-1] += f",{part.strip()}"
        elif part.strip():
            words.append(part.strip())
    return words


def numbers_of(name: str, given: Sequence[str], kind: type) -> tuple[Any, ...]:
    """What --seeds and --lrs are given: different numbers, with commas between them."""
    text = ",".join(given)
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


def jobs_of(asked: int | None, base: Config, runs: int) -> int:
    """How many runs go on at once."""
    from onebit.machine import cores

    if asked is not None and asked < 1:
        raise UserError(f"--jobs {asked}: use at least 1")
    if asked is None:
        import torch

        on_gpu = base.device != "cpu" and (base.device != "auto" or torch.cuda.is_available())
        asked = 1 if on_gpu else min(8, cores())
    return min(asked, runs)


def _facts(
    folder: Path,
    plan: Plan,
    planned: Sequence[Run],
    base: Config,
    failures: Sequence[Failure],
    points: Sequence[Point],
) -> dict[str, Any]:
    """About the comparison as a whole."""
    from onebit.comparison.running import failure_of, summary_of

    with_result = {point.method for point in points if point.finished}
    return {
        "title": f"{base.model} on {base.data}, {counted(base.epochs, 'epoch')}",
        "net": base.model,
        "data": base.data,
        "epochs": base.epochs,
        "lrs": plan.lrs,
        "kernel_rates": plan.kernel_rates,
        "seeds": plan.seeds,
        "finished": all(summary_of(folder, run) or failure_of(folder, run) for run in planned),
        "without_result": [c.label for c in plan.contestants if c.label not in with_result],
        "failures": [{"run": run.name, "why": why} for run, why in failures],
        "grid": [point._asdict() for point in points],
    }


def _keep(folder: Path, table: list[Row], facts: dict[str, Any]) -> None:
    from onebit.comparison.plot import plot
    from onebit.comparison.table import as_csv, as_json, as_markdown
    from onebit.training.checkpoints import switch

    title = facts["title"]
    files = {
        "table.json": as_json(table, facts).encode(),
        "table.csv": as_csv(table).encode(),
        "table.md": as_markdown(table, facts["without_result"], title).encode(),
    }
    if table:
        files |= {f"accuracy-bytes.{kind}": plot(table, title, kind) for kind in ("svg", "png")}
    switch(folder, files)


def _tell(table: list[Row], facts: dict[str, Any], folder: Path, plan: Plan, *, as_json: bool) -> None:
    from onebit.comparison import table as tables

    if as_json:
        tell(*tables.as_json(table, facts | {"folder": str(folder)}).splitlines())
        return
    shown = [*map(tables.cells, table), *map(tables.missing_cells, facts["without_result"])]
    # A variant's keys, a line each.
    rows = [(name.replace(":", "\n  ").replace(",", "\n  "), *numbers) for name, *numbers in shown]
    print_table(facts["title"], tables.HEADINGS, rows)
    lines = [
        "top-1: test images, last epoch; bytes: counted, see onebit.storage; lr: the best on held-out images",
        "kernels: by what their learning rate is multiplied, chosen with it",
        f"table.md, .csv, .json and accuracy-bytes.svg, .png are in {folder}",
    ]
    if any(row.spread is None for row in table):
        lines.append("one seed: differences of a point or two are within chance; --seeds 0,1,2 shows the spread")
    if edge := tables.at_the_edge(table, plan):
        lines.append(
            f"best at an end of the grid, where others of --lrs or --kernel-rates may do better: {', '.join(edge)}"
        )
    tell(*lines)
