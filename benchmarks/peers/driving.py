"""The driver's end of a worker."""

from __future__ import annotations

import json
import select
import subprocess
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from .environments import ROOT, python_of, variables_of
from .rows import Row
from .runner import CannotRunError

PATIENCE = 900.0  # seconds for an answer: calibration of a large net takes a minute or two


class Setting(NamedTuple):
    """What is the same for all workers.

    environments   folder of the peers' environments
    engine         of onebit, if not its own choice
    isa            the most that the CPU's instructions are used for, of `environments.LIMITS`; None: all of them
    threads        of a call
    """

    environments: Path
    engine: str | None = None
    isa: str | None = None
    threads: int = 1


class Contestant:
    """A worker process. Everything that goes wrong with it raises CannotRunError with a line that says why."""

    def __init__(self, row: Row, setting: Setting, log: Path) -> None:
        python = python_of(row.environment, setting.environments)
        self.row, self.log = row, log
        self.threads = row.threads or setting.threads
        with log.open("w") as errors:
            self.process = subprocess.Popen(  # noqa: S603 our own words
                [str(python), "-m", f"{__package__}.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env=variables_of(row.environment, setting.isa, self.threads),
            )

    def ask(self, do: str, **details: Any) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        if self.process.stdin is None or self.process.stdout is None:
            raise CannotRunError("has no pipes")
        try:
            self.process.stdin.write(json.dumps({"do": do, **details}) + "\n")
            self.process.stdin.flush()
        except OSError:
            raise CannotRunError(self._last_words()) from None
        if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
            raise CannotRunError(f"no answer within {PATIENCE:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise CannotRunError(self._last_words())
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise CannotRunError(reply["error"])
        return reply

    def _last_words(self) -> str:
        code = self.process.wait()
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return f"ended with code {code}{': ' + lines[-1][:200] if lines else ''}"

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(OSError):  # a request that it never read
                if stream is not None:
                    stream.close()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
