"""Files that say who is at work in a folder: one holder at a time, of all in this process and in all others."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import IO

from onebit.paths import append_regular

# The system's locks (lockf) belong to a process: they do not keep two holders in one apart, and go when the process
# closes the file, wherever it opened it. So who holds what in this process is written down here. Locks that belong
# to an open file (flock) would need no list, but live on in workers after the process that forked them was killed.
_mutex = threading.Lock()
_held: dict[tuple[int, int], int] = {}  # device and number of each file: the process that holds it, as of a fork


class Lock:
    """A file to hold; what holds it lets go when its process ends, however it ends, workers left over or not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None
        self._key = (0, 0)

    def take(self) -> bool:
        """Whether it is ours now. Raises OSError if there can be no such file."""
        with _mutex:
            if self._file is not None:
                return True
            if self._is_held_here():
                return False
            file = append_regular(self.path)
            if not _locked(file):
                file.close()
                return False
            status = os.fstat(file.fileno())
            self._file, self._key = file, (status.st_dev, status.st_ino)
            _held[self._key] = os.getpid()
            return True

    def is_busy(self) -> bool:
        """Whether somebody else holds it."""
        with _mutex:
            if self._file is not None or not self.path.is_file():
                return False
            if self._is_held_here():  # to open and close the file would let it go
                return True
            with append_regular(self.path) as file:
                return not _locked(file)

    def release(self) -> None:
        """Let go of it."""
        with _mutex:
            if self._file is not None:
                if _held.get(self._key) == os.getpid():
                    del _held[self._key]
                self._file.close()
                self._file = None

    def _is_held_here(self) -> bool:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return False
        return _held.get((status.st_dev, status.st_ino)) == os.getpid()


def _locked(file: IO[bytes]) -> bool:
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
