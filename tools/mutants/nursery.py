"""Runs pytest again and again, each time in a fork of a process that has imported what takes long to import.

Reads a line of JSON for each run, [words, file for the output]; answers with the number of the process and, once it
has ended, its exit code. Nothing of the project itself is imported before the fork.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys

HEAVY = ("hypothesis", "matplotlib", "numpy", "PIL.Image", "pydantic", "pytest", "rich.console", "torch.export")


def main() -> None:
    """Until stdin ends."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what is behind a & without it
    for name in HEAVY:
        importlib.import_module(name)
    for line in sys.stdin:
        words, output = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(words, output)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(words: list[str], output: str) -> None:
    """Be a pytest of its own: with its own group of processes, output and stdin."""
    code = 70
    try:
        os.setsid()
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        import pytest

        code = int(pytest.main(words))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
