"""A copy of the tree in which bugs are put, one after the other; the tree itself is never written to."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

from .places import Changed

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns("__pycache__", ".*_cache", "*.egg-info", ".hypothesis")
FOLDERS_LEFT_OUT = {".git", ".venv", "build", "dist", "runs", "compare"}
LIBRARY = f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"

# Read by Python as it starts, in tests and in what they start: the package is the copy's, not the installed one.
HERE_FIRST = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
sys.path.insert(0, {source!r})
"""


class Stopped(Exception):  # noqa: N818 not an error: Ctrl-C
    """No more is to be started."""


class Copy:
    """The tree in a folder of its own, an engine that is built there, and pytest at work on it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        self._stopped = False
        self._clock = 0
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
        start = self.root / "build" / "start"
        start.mkdir(parents=True)
        (start / "sitecustomize.py").write_text(HERE_FIRST.format(source=str(self.root / "src")))
        self._environment = os.environ | {"PYTHONPATH": str(start), "OMP_NUM_THREADS": "1"}
        self._library = self.root / "src" / "onebit" / LIBRARY
        self._engine = self.root / "build" / "engine"
        self._nursery: subprocess.Popen[str] | None = None

    def take_engine(self, library: Path) -> None:
        """Use an engine that is built already."""
        shutil.copy2(library, self._library)

    def engine(self) -> bytes:
        """What its tests run."""
        return self._library.read_bytes()

    def build_engine(self) -> str:
        """Make the engine of the copy's sources; what the compiler said if it can't be made."""
        configure = ["cmake", "-S", ".", "-B", str(self._engine), f"-DPython_EXECUTABLE={sys.executable}"]
        build = ["cmake", "--build", str(self._engine), "--target", "_native"]
        for words in ([] if self.has_built else [configure]) + [build]:
            done = subprocess.run(  # noqa: S603 no shell; words are ours
                words, cwd=self.root, env=self._environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                return done.stdout + done.stderr
        self.take_engine(next(self._engine.glob("_native*.so")))
        return ""

    @property
    def has_built(self) -> bool:
        """Whether its engine is made here."""
        return self._engine.exists()

    @contextlib.contextmanager
    def changed(self, change: Changed) -> Iterator[None]:
        """The copy with the bug in it."""
        path = self.root / change.path
        before = path.read_text()
        self._write(path, change.content)
        try:
            yield
        finally:
            self._write(path, before)

    def _write(self, path: Path, content: str) -> None:
        """Each time with a time of its own, in whole seconds: Python asks if it is another, make if it is later."""
        path.write_text(content)
        self._clock = max(self._clock, int(time.time())) + 1
        os.utime(path, (self._clock, self._clock))

    def pytest(self, words: list[str], seconds: float) -> tuple[int | None, str]:
        """Exit code (None: it took too long) and output; whatever the tests have started is ended with them."""
        if self._stopped:
            raise Stopped
        if self._nursery is None:
            self._nursery = subprocess.Popen(  # noqa: S603 our own interpreter and module
                [sys.executable, str(Path(__file__).with_name("nursery.py"))],
                cwd=self.root,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
                start_new_session=True,  # Ctrl-C is for us
            )
        asked, answers = self._nursery.stdin, self._nursery.stdout
        if asked is None or answers is None:
            raise RuntimeError("the nursery has no pipes")
        output = self.root / "build" / "output.txt"
        asked.write(json.dumps([words, str(output)]) + "\n")
        pid = int(answers.readline())
        limit, is_done = time.monotonic() + seconds, False
        while not is_done and time.monotonic() < limit and not self._stopped:
            is_done = bool(select.select([answers], [], [], 0.1)[0])
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        code = int(answers.readline())
        if self._stopped:
            raise Stopped
        return (code if is_done else None), output.read_text(errors="replace")

    def stop(self) -> None:
        """Start no more; what runs is ended."""
        self._stopped = True

    def close(self) -> None:
        """Once nothing runs any more."""
        if self._nursery is not None and self._nursery.stdin is not None:
            self._nursery.stdin.close()
            self._nursery.wait()
