"""`onebit bench`: how fast a model file runs here, layer by layer, and beside other programs."""

from __future__ import annotations

import argparse
import math
from difflib import get_close_matches
from typing import TYPE_CHECKING

from onebit.commands import threads_in
from onebit.console import counted, tell
from onebit.errors import UserError
from onebit.jsonfields import json_text

if TYPE_CHECKING:
    from onebit.benching.report import Report

HELP = "time a .onebit file: latency, throughput, layers; beside PyTorch, ONNX Runtime and OpenVINO"
EXAMPLES = """examples:
  onebit bench net.onebit                      with 1 and 32 images a call, beside every program that is installed
  onebit bench net.onebit --against none       onebit alone
  onebit bench net.onebit --against torch --batch 64   batches of 64 images, beside PyTorch
  onebit bench net.onebit --isa scalar         with the kernels in plain C
  onebit bench net.onebit --threads 2,8        onebit with one, two and eight threads; --threads 1: with one alone
  onebit bench net.onebit --json               for a program to read
"""
AGAINST = ("torch", "onnxruntime", "openvino")
BATCHES = (1, 32)
MOST_BYTES = 1 << 30  # of a batch of images


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("file", metavar="FILE", help="a .onebit file, or zoo:NAME (see onebit zoo)")
    parser.add_argument(
        "--batch",
        type=int,
        action="append",
        metavar="N",
        help="images a call; may be given several times (default: 1, for latency, and 32, for throughput)",
    )
    parser.add_argument(
        "--against",
        default=",".join(AGAINST),
        metavar="torch|onnxruntime|openvino|none",
        help="programs to compare with, with commas between them (default: all that are installed)",
    )
    parser.add_argument(
        "--isa",
        default="auto",
        metavar="auto|avx512|avx2|neon|scalar",
        help="onebit's kernels (default: auto, the fastest)",
    )
    parser.add_argument(
        "--threads",
        metavar="N|auto[,N...]",
        help="numbers of threads with which onebit is timed, too, beside itself with one; auto: all cores; other"
        " programs have one"
        " (default: 2, 4, ... and all cores that this process may use)",
    )
    parser.add_argument(
        "--rounds", type=int, default=10, metavar="N", help="turns that every program has (default: 10)"
    )
    parser.add_argument(
        "--seconds", type=float, default=0.1, metavar="S", help="of a turn, about; one call at least (default: 0.1)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measure, and print what was found."""
    names = _names(arguments.against)
    _check(arguments)
    threads = _threads(arguments.threads)
    if not arguments.json:
        import rich  # noqa: F401 so that its lack is said before the work, not after
    report = _measured(arguments, names, threads)
    if arguments.json:
        tell(json_text(report.as_json()))
    else:
        report.show()
    return 0


def _names(against: str) -> list[str]:
    words = [word for word in against.split(",") if word]
    if words == ["none"]:
        return []
    for word in words:
        if word not in AGAINST:
            near = get_close_matches(word, AGAINST, n=1)
            hint = f"did you mean {near[0]}?" if near else f"use {', '.join(AGAINST)} or none"
            raise UserError(f"--against {against}: there is no {word!r}; {hint}")
    if not words:
        raise UserError(f"--against needs names: use {', '.join(AGAINST)} or none")
    return list(dict.fromkeys(words))


def _check(arguments: argparse.Namespace) -> None:
    from onebit.native import ISAS

    for batch in arguments.batch or BATCHES:
        if batch < 1:
            raise UserError(f"--batch {batch}: use at least 1")
    if arguments.rounds < 1:
        raise UserError(f"--rounds {arguments.rounds}: use at least 1")
    if not (math.isfinite(arguments.seconds) and arguments.seconds > 0):
        raise UserError(f"--seconds {arguments.seconds:g}: use more than 0")
    if arguments.isa not in {"auto", *ISAS}:
        near = get_close_matches(arguments.isa, ISAS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use auto, {', '.join(ISAS[:-1])} or {ISAS[-1]}"
        raise UserError(f"--isa {arguments.isa}: there is no such kernel; {hint}")


def _threads(numbers: str | None) -> list[int]:
    """How many, rising; one is always among them."""
    from onebit.benching.scaling import doubling
    from onebit.machine import cores

    if numbers is None:
        return doubling(cores())
    asked = threads_in([word.strip() for word in numbers.split(",")], numbers)
    return sorted({1, *(number or cores() for number in asked)})


def _measured(arguments: argparse.Namespace, names: list[str], threads: list[int]) -> Report:
    from onebit.benching.contestants import PEERS, Nets, versions
    from onebit.benching.layers import layers_of, limits_of
    from onebit.benching.measuring import Effort, measure, turns
    from onebit.benching.report import Report
    from onebit.benching.scaling import measure_scaling
    from onebit.console import Progress
    from onebit.engine import Engine
    from onebit.loading import load
    from onebit.machine import this_machine
    from onebit.native import why_isa
    from onebit.peers.twin import float_twin

    engine = load(arguments.file, isa=arguments.isa)
    model, machine, why = engine.model, this_machine(), why_isa(arguments.isa)
    batches = list(dict.fromkeys(arguments.batch or BATCHES))
    most = MOST_BYTES // (4 * math.prod(model.graph.input_shape))
    if max(batches) > most:
        raise UserError(f"--batch {max(batches)}: use at most {counted(most, 'image')} of this size")
    missing = {name: lacks for name in names if (lacks := PEERS[name].missing())}
    there = [name for name in names if name not in missing]
    nets, effort = Nets(engine, float_twin(model) if there else model), Effort(arguments.rounds, arguments.seconds)
    teams = [engine, *(Engine(model, arguments.isa, count) for count in threads[1:])] if threads[1:] else []
    total = turns(there, batches, effort) + len(teams) * effort.rounds * len(batches)
    with Progress("timing", total) as progress:
        measured = [measure(nets, there, batch, effort, progress.advance) for batch in batches]
        tables, step_seconds = [table for table, _ in measured], measured[0][1]
        scaling = [
            measure_scaling(teams, table.rows[0].way, table.batch, effort, progress.advance)
            for table in tables
            if teams
        ]
    layers = layers_of(engine, step_seconds)
    return Report(
        file=arguments.file,
        description=model.description,
        input_shape=model.graph.input_shape,
        machine=machine,
        isa=engine.isa,
        why_isa=why,
        versions=versions(there),
        effort=effort,
        tables=tables,
        scaling=scaling,
        layers=layers,
        limits=limits_of(engine, layers, why, machine),
        missing=missing,
        memory=(engine.info()["weight_bytes"], engine.info()["workspace_bytes"]),
    )
