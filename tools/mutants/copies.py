"""A copy of the tree in which bugs are put, one after the other; the tree itself is never written to."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

from .bugs import BugError
from .places import Changed

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns("__pycache__", ".*_cache", "*.egg-info", ".hypothesis")
FOLDERS_LEFT_OUT = {".git", ".venv", "build", "dist", "runs", "compare"}
LIBRARY = "_native" + sysconfig.get_config_var("EXT_SUFFIX")

# Read by Python as it starts, in tests and in what they start: the package is the copy's, not the installed one.
HERE_FIRST = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
sys.path.insert(0, {source!r})
"""


class Stopped(Exception):  # noqa: N818 not an error: Ctrl-C
    """No more is to be started."""


class Copy:
    """The tree in a folder of its own, with processes that can be ended, and an engine that is built there."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        self._stopped = False
        skipped = {str(ROOT / name) for name in FOLDERS_LEFT_OUT}
        shutil.copytree(
            ROOT,
            self.root,
            symlinks=True,
            ignore=lambda where, names: (
                {n for n in names if os.path.join(where, n) in skipped}  # noqa: PTH118
                | LEFT_OUT(where, names)
            ),
        )
        (self.root / "build").mkdir()
        start = self.root / "build" / "start"
        start.mkdir()
        (start / "sitecustomize.py").write_text(HERE_FIRST.format(source=str(self.root / "src")))
        self.environment = os.environ | {
            "PYTHONPATH": str(start),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        self._library = self.root / "src" / "onebit" / LIBRARY
        self._engine = self.root / "build" / "engine"

    def take_engine(self, library: Path) -> None:
        """Use an engine that is built already."""
        shutil.copy2(library, self._library)

    def build_engine(self) -> str:
        """Make the engine of the copy's sources; what the compiler said if it can't be made."""
        if not self._engine.exists():
            words = ["cmake", "-S", ".", "-B", str(self._engine), f"-DPython_EXECUTABLE={sys.executable}"]
            code, said = self.run([*words, "-DCMAKE_BUILD_TYPE=Release"], 600)
            if code:
                raise BugError(f"the engine can't be configured: {said[-2000:]}")
        code, said = self.run(["cmake", "--build", str(self._engine), "--target", "_native"], 1800)
        if code:
            return said
        self.take_engine(next(self._engine.glob("_native*.so")))
        return ""

    @contextlib.contextmanager
    def changed(self, change: Changed) -> Iterator[None]:
        """The copy with the bug in it."""
        path = self.root / change.path
        before = path.read_text()
        path.write_text(change.content)
        try:
            yield
        finally:
            path.write_text(before)

    def run(self, words: list[str], seconds: float) -> tuple[int | None, str]:
        """Exit code (None: it took too long) and output; whatever it has started is ended with it."""
        if self._stopped:
            raise Stopped
        # Into a file: a pipe would stay open for as long as anything that was started holds it.
        output = self.root / "build" / "output.txt"
        with output.open("wb") as out:
            process = subprocess.Popen(  # noqa: S603 no shell; words are ours and of the bugs' files
                words,
                cwd=self.root,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own; and Ctrl-C is for us
            )
        limit = time.monotonic() + seconds
        try:
            while (code := process.poll()) is None and time.monotonic() < limit and not self._stopped:
                time.sleep(0.05)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if self._stopped:
            raise Stopped
        return code, output.read_text(errors="replace")

    def stop(self) -> None:
        """End what runs, start no more."""
        self._stopped = True
