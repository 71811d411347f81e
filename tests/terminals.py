"""Commands as people run them: in a terminal, into a pipe that nobody reads any more."""

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path

import pytest

from children import child
from onebit.commands import main

ONEBIT = [str(Path(sys.executable).parent / "onebit")]  # the entry point that the package installs
PLAIN = {
    "COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "ONEBIT_DATA", "ONEBIT_ISA", "PYTHONUNBUFFERED", "RANK",
    "WORLD_SIZE",
}  # fmt: skip


def environment(**changes):
    kept = {key: value for key, value in os.environ.items() if key not in PLAIN}
    return kept | {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1"} | changes


def piped(*words, command=ONEBIT, **changes):
    """Exit code, output, errors."""
    done = subprocess.run(
        [*command, *words], env=environment(**changes), capture_output=True, text=True, check=False, timeout=240
    )
    return done.returncode, done.stdout, done.stderr


def unread(*words, command=ONEBIT):
    """Exit code and errors of a command whose output goes into a pipe that has been closed."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*command, *words], env=environment(), stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    return done.returncode, done.stderr


def shown_here(*words, columns=100):
    """Exit code, and what a terminal shows, of a command in this process: it saves the start of one."""
    screen, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    parts = []

    def read():
        with contextlib.suppress(OSError):  # nobody has the other side open any more
            while part := os.read(screen, 1 << 16):
                parts.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    with pytest.MonkeyPatch.context() as patch, open(os.dup(slave)) as keyboard, open(slave, "w") as paper:  # noqa: PTH123
        for name in PLAIN:
            patch.delenv(name, raising=False)
        patch.setenv("TERM", "xterm-256color")
        patch.setenv("COLUMNS", str(columns))  # rich would ask the terminal that the tests themselves run in
        for name, stream in (("stdin", keyboard), ("stdout", paper), ("stderr", paper)):
            patch.setattr(sys, name, stream)
        code = main(words)
    reader.join()
    os.close(screen)
    return code, b"".join(parts).decode(errors="replace")


def unread_here(*words):
    """Exit code and errors of a command in this process whose output goes into a pipe that has been closed."""
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryFile("w+") as errors, open(writer, "w") as output:  # noqa: PTH123
        kept = os.dup(errors.fileno())  # `main` lets both streams go nowhere
        patch.setattr(sys, "stdout", output)
        patch.setattr(sys, "stderr", errors)
        code = main(words)
        errors.flush()
    with open(kept, closefd=True) as told:  # noqa: PTH123
        told.seek(0)
        return code, told.read()


class Terminal:
    """A command in a terminal of its own, whose keyboard and screen we are."""

    def __init__(self, *words, command=ONEBIT, columns=100, **changes):
        self._screen, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._process = child(
            [*command, *words],
            env=environment(**changes),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self.shown = ""

    def wait_for(self, text, seconds=120):
        """Read until this stands on the screen."""
        limit = time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < limit, self.shown
            assert self._read(1), self.shown

    def press(self, key):
        os.write(self._screen, key)

    def end(self, seconds=120):
        """The exit code, and all that was shown."""
        limit = time.monotonic() + seconds
        while self._read(1):
            assert time.monotonic() < limit, self.shown
        code = self._process.wait(timeout=seconds)
        os.close(self._screen)
        return code, self.shown

    def _read(self, seconds):
        """Whether more may come."""
        if not select.select([self._screen], [], [], seconds)[0]:
            return True
        try:
            part = os.read(self._screen, 1 << 16)
        except OSError:  # nobody has the other side open any more
            return False
        self.shown += part.decode(errors="replace")
        return bool(part)
