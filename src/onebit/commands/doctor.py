"""`onebit doctor`: what is installed and works here, what is missing and how to get it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Literal

from onebit.console import painted, tell
from onebit.jsonfields import json_text

if TYPE_CHECKING:
    from onebit.checkup import Finding

HELP = "look at Python, packages, engine, CPU and data folders: what is missing, and how to get it"
EXAMPLES = """examples:
  onebit doctor                    everything, with what to do about what is missing
  onebit doctor --data-dir DATA    is there data in this folder?
  onebit doctor --quiet            only what keeps .onebit files from running (exit code 1)
  onebit doctor --json             for a program to read
"""
COLOURS: dict[str, Literal["red", "green", "yellow"]] = {"ok": "green", "missing": "yellow", "wrong": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--data-dir", metavar="DIR", help="look for data in this folder (default: $ONEBIT_DATA)")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.add_argument("--quiet", action="store_true", help="print only what is wrong")


def run(arguments: argparse.Namespace) -> int:
    """Look at everything, and say it as it is found."""
    from onebit.checkup import findings, summary

    found: list[Finding] = []
    for finding in findings(arguments.data_dir):
        found.append(finding)
        if not arguments.json and (finding.mark == "wrong" or not arguments.quiet):
            _tell(finding)
    is_sound = all(finding.mark != "wrong" for finding in found)
    if arguments.json:
        tell(json_text({"ok": is_sound, "findings": [finding._asdict() for finding in found]}))
    elif not arguments.quiet:
        tell(summary(found))
    return 0 if is_sound else 1


def _tell(finding: Finding) -> None:
    mark = painted(f"{finding.mark:<7}", COLOURS[finding.mark], sys.stdout)
    tell(finding.found, before=f"{finding.name:<12} {mark}  ", flush=True)
    if finding.advice:
        tell(f"{'':<22}{finding.advice}", flush=True)
