"""`onebit reproduce`: the paper's tables and figures, made anew."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from onebit.advice import program
from onebit.console import complain, print_table, say, tell
from onebit.errors import UserError
from onebit.paths import user_path

if TYPE_CHECKING:
    from onebit.comparison.running import Job
    from onebit.reproduction.plans import Experiment, Setting, Target

HELP = "make the paper's tables and figures anew: train what is missing, show the paper's figures beside ours"
EXAMPLES = """examples:
  onebit reproduce --list                                      what there is
  onebit reproduce table-memory                                counted and timed, nothing to train: a minute
  onebit reproduce table-lambda --budget smoke                 does it work at all: a minute, on digits
  onebit reproduce table-cifar --budget cpu --data-dir DATA    short runs, 16 channels: hours on two cores
  onebit reproduce table-cifar --budget paper --data-dir DATA  the paper's protocol, for GPUs
  onebit reproduce table-cifar --data-dir DATA --part 2/13     the second of 13 shares of its runs, for a cluster
  onebit reproduce table-cifar --data-dir DATA --plan          a command for each run that is missing
  onebit reproduce table-cifar --data-dir DATA --no-train      the table of the runs that are finished
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    from onebit.training.recipes import Budget

    parser.add_argument("names", metavar="NAME", nargs="*", help="tables and figures (--list names them)")
    parser.add_argument("--list", action="store_true", help="print what there is")
    parser.add_argument(
        "--budget", choices=get_args(Budget), default="cpu", help="paper: the paper's protocol, for GPUs; cpu: "
        "hours on two cores (default); smoke: a minute, does it work at all",
    )  # fmt: skip
    parser.add_argument("--data-dir", metavar="DIR", help="the folder that holds the data ($ONEBIT_DATA)")
    parser.add_argument(
        "--data-name",
        metavar="TEXT",
        help="what to call the data, if it is not the published one: 'CIFAR-10 (JPEG)'",
    )
    parser.add_argument("--seeds", metavar="N,...", help="instead of those that the table has")
    parser.add_argument(
        "--own-structure",
        action="store_true",
        help="table-imagenet: each rival in the Resnet18 of its own authors, not all in PCNN's",
    )
    parser.add_argument("-o", "--out", metavar="DIR", help="where runs and results go (default: reproduce/BUDGET)")
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="runs at once (default: one a core, at most 8; GPU: 1)"
    )
    parser.add_argument(
        "--part", metavar="K/N", help="only the K-th of N shares of the runs, for a job of a cluster"
    )
    parser.add_argument(
        "--plan", action="store_true", help="print a command for each missing run, and train nothing"
    )
    parser.add_argument(
        "--no-train", action="store_true", help="make it of the runs that are finished, and train nothing"
    )
    parser.add_argument("--json", action="store_true", help="print what was made as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Train what is missing, write the tables and figures."""
    from onebit.reproduction.making import PLANNERS, TITLES, keep_records
    from onebit.training.recipes import nearest
    from onebit.training.runfolder import check_out

    if arguments.list:
        for name, title in TITLES.items():
            tell(f"{name:20} {title}")
        return 0
    if not arguments.names:
        raise UserError(f"say what to make: {', '.join(TITLES)}; see --list")
    for name in arguments.names:
        if name not in TITLES:
            raise UserError(f"{name}: there is no such table or figure{nearest(name, TITLES)}")
    setting = _setting(arguments)
    check_out(setting.out)
    targets = [PLANNERS[name](setting) for name in dict.fromkeys(arguments.names) if name in PLANNERS]
    missing = _missing(setting, targets, arguments)
    if arguments.plan:
        return _print_plan(setting, missing)
    if arguments.no_train:
        keep_records(setting, missing, arguments.data_name)
    code = _train(setting, missing, arguments) if missing and not arguments.no_train else 0
    if code >= 128 or arguments.part:
        return code
    _make(setting, targets, arguments)
    return code


def _setting(arguments: argparse.Namespace) -> Setting:
    from onebit.commands.compare import numbers_of
    from onebit.reproduction.plans import Setting

    seeds = numbers_of("--seeds", [arguments.seeds], int) if arguments.seeds else None
    out = user_path(arguments.out or f"reproduce/{arguments.budget}").absolute()
    data_dir = arguments.data_dir and str(user_path(arguments.data_dir).absolute())
    if arguments.own_structure and set(arguments.names) != {"table-imagenet"}:
        raise UserError("--own-structure: a choice of table-imagenet; make the others without it")
    if arguments.own_structure and arguments.budget == "cpu":
        raise UserError("--own-structure: --budget cpu has no rivals on ImageNet; use --budget paper")
    return Setting(arguments.budget, out, data_dir, seeds, arguments.own_structure)


def _missing(setting: Setting, targets: Sequence[Target], arguments: argparse.Namespace) -> list[Experiment]:
    """The runs that are to be trained now: all, or a share of them."""
    from onebit.reproduction.making import check_data_name, missing_runs
    from onebit.reproduction.plans import check_names, share_of

    check_names(targets)
    check_data_name(setting, [run for target in targets for run in target.experiments], arguments.data_name)
    missing = missing_runs(setting, targets)
    if not arguments.part:
        return missing
    number, _, of = arguments.part.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise UserError(f"--part {arguments.part}: use K/N, such as 2/13")
    share = {run.name for run in share_of(targets, int(number), int(of))}
    return [run for run in missing if run.name in share]


def _print_plan(setting: Setting, missing: Sequence[Experiment]) -> int:
    import shlex

    from onebit.comparison.running import prepare
    from onebit.reproduction.making import write_images
    from onebit.reproduction.plans import RUNS

    write_images(setting, missing)
    if not missing:
        say("nothing to train")
    for run in missing:
        tell(f"{program()} {shlex.join(prepare(setting.out / RUNS, run))}")
    return 0


def _train(setting: Setting, missing: Sequence[Experiment], arguments: argparse.Namespace) -> int:
    """Bring the runs to their ends, those that others need first; the exit code."""
    from contextlib import nullcontext

    from onebit.commands.compare import held, jobs_of
    from onebit.comparison.running import run_all, summary_of
    from onebit.comparison.watching import Display
    from onebit.reproduction.making import check_data, keep_records, ready, write_images
    from onebit.reproduction.plans import RUNS

    write_images(setting, missing)
    check_data(missing)
    folder, waiting, failed = setting.out / RUNS, list(missing), False
    jobs = jobs_of(arguments.jobs, missing[0].config, len(missing))

    def watch(under_way: Sequence[Job], ended: Sequence[Job]) -> None:
        keep_records(setting, ended, arguments.data_name)
        display.watch(under_way, ended)

    with nullcontext() if arguments.part else held(folder), Display(
        folder, missing, jobs, quiet=arguments.quiet
    ) as display:  # fmt: skip
        while waiting and (now := ready(waiting)):
            failures, stopped = run_all(folder, now, jobs, watch)
            keep_records(setting, now, arguments.data_name)  # of those, too, that were finished before
            if stopped:
                complain("onebit reproduce", "stopped and saved; the same command goes on")
                return 128 + stopped
            failed = failed or bool(failures)
            # Who needs a run needs one that needs none, so after one round all that can come have come.
            waiting = [run for run in waiting if run not in now and all(summary_of(folder, b) for b in run.needs)]
            for failure in failures:
                complain("onebit reproduce", f"{failure.run.name} failed: {failure.why}")
    return int(failed or not all(summary_of(folder, run) for run in missing))


def _make(setting: Setting, targets: Sequence[Target], arguments: argparse.Namespace) -> None:
    """Write and show the tables and figures."""
    from onebit.jsonfields import json_text
    from onebit.reproduction.making import MEMORY, make, make_memory
    from onebit.reproduction.sheets import write

    documents: list[dict[str, Any]] = []
    for target in [*targets, *([None] if MEMORY in arguments.names else [])]:
        made = make(setting, target) if target else make_memory(setting)
        files = write(setting.out, made)
        documents.append(made.as_json() | {"files": list(map(str, files))})
        if not arguments.json:
            for number, sheet in enumerate(made.sheets):
                print_table("" if number else made.heading, sheet.heads, sheet.rows, left=sheet.words)
            tell(made.sentence)  # no table without its budget
            for line in [*made.remarks, f"written: {', '.join(map(str, files))}"]:
                say(line)
    if arguments.json:
        tell(json_text(documents))
