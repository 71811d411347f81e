"""Do the tests see it? Some six hundred bugs made by hand, each tried on a copy of the tree.

    make mutants                                   # all of them
    python -m tools.mutants --list                 # their names, by area
    python -m tools.mutants --only sgn-of-zero     # one; patterns, too: --only 'delta-*'
    python -m tools.mutants --area native --jobs 4
    python -m tools.mutants --bugs FOLDER          # those of a folder, in files like tools/mutants/bugs/*.toml

Exit code 1 if the tests see fewer than 95 % of them, 2 if an entry no longer applies. A bug whose tests do not end
in time counts as not seen.
"""

from __future__ import annotations

import argparse
import fnmatch
import signal
import sys
from collections import Counter
from pathlib import Path

from .bugs import FOLDER, Bug, BugError, read_bugs
from .running import SECONDS, Verdict, campaign

ENOUGH = 0.95


def main() -> int:
    """Choose, run, report."""
    parser = argparse.ArgumentParser(
        "python -m tools.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--bugs", type=Path, default=FOLDER, metavar="FOLDER", help="bugs of another folder than tools/mutants/bugs"
    )
    parser.add_argument("--list", action="store_true", help="show the bugs, run nothing")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these, or those that fit a pattern")
    parser.add_argument("--area", nargs="+", help="those of these areas")
    parser.add_argument("--jobs", type=int, default=1, help="how many at once, each in a copy of its own (1)")
    words = parser.parse_args()
    try:
        bugs = chosen(read_bugs(words.bugs), words.only, words.area)
        if words.list:
            for bug in bugs:
                print(f"{bug.area:12} {bug.name:45} {bug.symbol}")
            return 0
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the copies go
        return report(campaign(bugs, max(1, words.jobs), tell))
    except BugError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the tree is as it was", file=sys.stderr)
        return 130


def chosen(bugs: list[Bug], only: list[str] | None, areas: list[str] | None) -> list[Bug]:
    """The bugs that are asked for."""
    for pattern in only or []:
        if not any(fnmatch.fnmatch(bug.name, pattern) for bug in bugs):
            raise BugError(f"--only {pattern}: there is no such bug; --list shows them")
    if unknown := {*(areas or [])} - {bug.area for bug in bugs}:
        raise BugError(f"--area {', '.join(unknown)}: use some of {', '.join(sorted({bug.area for bug in bugs}))}")
    found = [
        bug
        for bug in bugs
        if (not only or any(fnmatch.fnmatch(bug.name, pattern) for pattern in only))
        and (not areas or bug.area in areas)
    ]
    if not found:
        raise BugError("--only and --area have no bug in common")
    return found


def tell(verdict: Verdict) -> None:
    """A line for each, as it comes."""
    outcome = "killed" if verdict.killed else "TOO LONG" if verdict.timed_out else "SURVIVED"
    seen = f": {verdict.failed}" if verdict.killed else ""
    print(f"{verdict.seconds:6.1f} s  {outcome:8}  {verdict.bug.name}{seen}", flush=True)


def report(verdicts: list[Verdict]) -> int:
    """The rate by area and of all; the exit code."""
    killed = Counter(verdict.bug.area for verdict in verdicts if verdict.killed)
    total = Counter(verdict.bug.area for verdict in verdicts)
    for area, count in total.items():
        print(f"{area:12} {killed[area]:3} of {count:3}")
    rate = killed.total() / len(verdicts)
    print(f"{killed.total()} of {len(verdicts)} killed: {100 * rate:.1f} %")
    for verdict in verdicts:
        bug = verdict.bug
        if verdict.timed_out:
            print(f"too long: {bug.name}: its tests had not ended after {SECONDS} s; it counts as not seen")
        elif not verdict.killed:
            print(f"survived: {bug.name}: in {bug.symbol}, {bug.old!r} became {bug.new!r}")
    return 0 if rate >= ENOUGH else 1


if __name__ == "__main__":
    sys.exit(main())
