"""onebit beside PyTorch, ONNX Runtime, OpenVINO and Larq Compute Engine: one machine, as many threads, in turns.

    python -m benchmarks.peers                                  # every table, five runs
    python -m benchmarks.peers --isa avx2                       # as on a CPU without AVX-512
    python -m benchmarks.peers --quick --tables conv            # a look
    python -m benchmarks.peers --tables wrn22 --threads 4       # four threads each
    python -m benchmarks.peers --peers torch onebit --engine reference

Each peer runs in an environment of its own, which is made at its first use. A peer that can't be had gets a row
that says why. The report goes to the terminal and, as Markdown and JSON, into a folder.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from onebit.machine import cores, source_commit

from . import report
from .driving import Setting
from .environments import DEFAULT_FOLDER, LIMITS
from .measuring import QUICK, Effort, run_once
from .nets import TABLES, Case, make_files
from .rows import PEERS


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--runs", type=int, default=5, help="the middle one is reported")
    parser.add_argument(
        "--rounds", type=int, default=Effort().rounds, help="of each run: every row has a burst in each"
    )
    parser.add_argument("--quick", action="store_true", help="one run of few rounds")
    parser.add_argument(
        "--threads", type=int, help="of each row (default: 1; in the tables 'threads', 2)", metavar="N"
    )
    parser.add_argument("--engine", help="of onebit, if not its own choice: reference, ...")
    parser.add_argument(
        "--isa",
        choices=list(LIMITS),
        help="no more than this of the CPU's instructions: for torch, OpenVINO and onebit; others have no switch",
    )
    parser.add_argument(
        "--environments", type=Path, default=DEFAULT_FOLDER, help="folder of the peers' environments"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the report")
    arguments = parser.parse_args()
    if arguments.threads is not None and not 1 <= arguments.threads <= cores():
        parser.error(f"--threads {arguments.threads}: use 1 to {cores()}, the cores that this process may use")
    now = datetime.now(UTC)
    effort = QUICK if arguments.quick else Effort(max(1, arguments.rounds))
    runs = 1 if arguments.quick else max(1, arguments.runs)
    tables = []
    for case in _cases(arguments):
        tables.append(_measure(case, arguments, effort, runs))
        print(report.as_text(tables[-1]), end="\n\n", flush=True)
    print(report.legend())
    burst = f"bursts of {effort.seconds} s or {effort.most} calls"
    about = {
        "date": f"{now:%Y-%m-%d %H:%M} UTC",
        "command": shlex.join(["python", "-m", "benchmarks.peers", *sys.argv[1:]]),
        "commit": source_commit() or "unknown",
        **report.machine(),
        "of these": f"{arguments.isa} at most for torch, OpenVINO and onebit" if arguments.isa else "all",
        "versions": report.versions(tables),
        "effort": f"{runs} runs of {effort.rounds} rounds; {burst}; 1 thread where a table says no other number",
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    file = arguments.results / f"peers-{now:%Y%m%d-%H%M%S}"
    file.with_suffix(".md").write_text(report.as_markdown(tables, about))
    file.with_suffix(".json").write_text(json.dumps(report.as_json(tables, about), indent=1) + "\n")
    print(f"\nwritten: {file}.md and .json")


def _cases(arguments: argparse.Namespace) -> list[Case]:
    cases = [case for name in arguments.tables for case in TABLES[name]]
    if arguments.threads is None:
        return cases
    return [case._replace(threads=arguments.threads) for case in cases]


def _measure(case: Case, arguments: argparse.Namespace, effort: Effort, runs: int) -> report.Table:
    rows = [row for row in case.contestants if row.peer in arguments.peers]
    setting = Setting(arguments.environments, arguments.engine, arguments.isa, case.threads)
    with tempfile.TemporaryDirectory(prefix="onebit-peers-") as folder:
        files = make_files(case, Path(folder))
        made = [run_once(files, case.batch, rows, effort, setting) for _ in range(runs)]
    return report.Table(case, made)


if __name__ == "__main__":
    main()
