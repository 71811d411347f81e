"""Runs the tests that a bug names on a copy of the tree that has it."""

from __future__ import annotations

import contextlib
import queue
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

from .bugs import Bug, BugError
from .copies import Copy, Stopped
from .places import NATIVE, Changed, Tree

SECONDS = (
    600  # for the tests of one bug; what takes longer counts as not seen: a busy machine is slow without a bug
)
PASSED, INTERRUPTED = 0, 2  # of pytest's exit codes; 2: a test file could not even be imported
PYTEST = ["-q", "-p", "no:cacheprovider"]


class Verdict(NamedTuple):
    """What became of a bug."""

    bug: Bug
    killed: bool
    seconds: float
    failed: str = ""  # the test that saw it, if it is known
    timed_out: bool = False  # nothing is known: it may have been seen, or not


class Trial(NamedTuple):
    """A bug, and the file that it makes."""

    bug: Bug
    change: Changed

    @property
    def is_native(self) -> bool:
        """Whether the engine has to be built with it."""
        return NATIVE in self.change.path.parents


def campaign(bugs: Sequence[Bug], jobs: int, tell: Callable[[Verdict], None]) -> list[Verdict]:
    """The verdicts on all bugs, with so many copies of the tree at work at once."""
    with tempfile.TemporaryDirectory(prefix="onebit-mutants-") as folder:
        copies = [Copy(Path(folder, str(number))) for number in range(min(jobs, len(bugs)))]
        trials = trials_of(bugs, copies[0].root)
        try:
            _put_engines(copies, trials)
            verdicts = _run(copies, trials, tell)
            _check_without_bugs(copies[0], verdicts)
        finally:
            for copy in copies:
                copy.close()
    return verdicts


def trials_of(bugs: Sequence[Bug], root: Path) -> list[Trial]:
    """What the bugs make of the tree; raises an error with a line for every one that does not apply."""
    tree, trials, wrong = Tree(root), [], []
    for bug in bugs:
        try:
            trials.append(Trial(bug, tree.change(bug)))
        except BugError as error:
            wrong.append(str(error))
    if wrong:
        raise BugError("\n".join(wrong))
    return trials


def _put_engines(copies: Sequence[Copy], trials: Sequence[Trial]) -> None:
    if any(trial.is_native for trial in trials):
        for copy in copies:
            if said := copy.build_engine():
                raise BugError(f"the engine can't be built: {said[-2000:]}")
    else:
        from onebit import _native

        for copy in copies:
            copy.take_engine(Path(str(_native.__file__)))


def _check_without_bugs(copy: Copy, verdicts: Sequence[Verdict]) -> None:
    """What has failed must have failed because of the bug: without any, those tests pass."""
    if said := copy.build_engine() if copy.has_built else "":
        raise BugError(f"the engine can't be built: {said[-2000:]}")
    killed = [verdict for verdict in verdicts if verdict.killed]
    tests = {test for verdict in killed for test in ([verdict.failed] if verdict.failed else verdict.bug.tests)}
    code, said = copy.pytest([*PYTEST, *sorted(tests)], SECONDS + 10 * len(tests)) if tests else (PASSED, "")
    if code is None:
        raise BugError(f"without any bug the tests that failed do not end in time:\n{said[-4000:]}")
    if code != PASSED:
        raise BugError(f"without any bug, too, there are tests that fail:\n{said[-4000:]}")


def _run(copies: Sequence[Copy], trials: Sequence[Trial], tell: Callable[[Verdict], None]) -> list[Verdict]:
    """Each copy takes a trial from those that wait, until there is none, or until one of them raises an error."""
    waiting: queue.SimpleQueue[Trial] = queue.SimpleQueue()
    for trial in sorted(trials, key=lambda trial: trial.is_native):  # at last: their engines are left as they are
        waiting.put(trial)
    with ThreadPoolExecutor(len(copies)) as pool:
        working = [pool.submit(_work, copy, waiting, tell) for copy in copies]
        try:
            wait(working, return_when=FIRST_EXCEPTION)
            if any(each.done() and each.exception() for each in working):
                for copy in copies:
                    copy.stop()
        except BaseException:  # Ctrl-C, too: the pool waits for them
            for copy in copies:
                copy.stop()
            raise
    return [verdict for each in working for verdict in each.result()]


def _work(copy: Copy, waiting: queue.SimpleQueue[Trial], tell: Callable[[Verdict], None]) -> list[Verdict]:
    found: list[Verdict] = []
    with contextlib.suppress(queue.Empty, Stopped):
        while True:
            found.append(_try(copy, waiting.get_nowait()))
            tell(found[-1])
    return found


def _try(copy: Copy, trial: Trial) -> Verdict:
    begun, bug = time.monotonic(), trial.bug
    with copy.changed(trial.change):
        before = copy.engine()
        if trial.is_native and (said := copy.build_engine()):
            raise BugError(f"{bug.name}: its new text is no C: {said[-2000:]}")
        if trial.is_native and copy.engine() == before:
            raise BugError(f"{bug.name}: the engine is the same with it")
        code, said = copy.pytest([*PYTEST, "-x", *bug.tests], SECONDS)
    seconds = time.monotonic() - begun
    if code is None:
        return Verdict(bug, killed=False, seconds=seconds, timed_out=True)
    if code > INTERRUPTED:
        raise BugError(f"{bug.name}: its tests can't be run:\n{said[-2000:]}")
    return Verdict(bug, code != PASSED, seconds, _failed(said))


def _failed(said: str) -> str:
    """The test that failed, of what pytest printed; nothing if it could not say so."""
    found = re.findall(r"^(?:FAILED|ERROR) (tests/\S+::.+?)(?: - .*)?$", said, re.MULTILINE)
    return found[-1] if found else ""
