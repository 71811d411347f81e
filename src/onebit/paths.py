"""Files as users name them, and files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from io import BufferedReader, BufferedWriter
from pathlib import Path

LONG_NAME = 100  # bytes, where most systems take 255


def user_path(name: str | os.PathLike[str]) -> Path:
    """The path that is meant: ~ is the user's home, unless there is a file of that very name, or no such user."""
    path = Path(name)
    if str(name).startswith("~") and not os.path.lexists(path):
        try:
            return path.expanduser()
        except RuntimeError:
            return path
    return path


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """The file, open to be read. Raises OSError for a pipe, a socket or a device: reading might never end.

    It is looked at twice: before it is opened, since to open is to act on whoever waits at a pipe's other end, and
    once it is open, since the name may stand for something else by then.
    """
    _check_regular(os.stat(path).st_mode, path)  # noqa: PTH116 a million images: strings, not Paths
    return os.fdopen(_opened(path, os.O_RDONLY), "rb")


def append_regular(path: Path) -> BufferedWriter:
    """The file, made if need be, open to be written at its end; nothing but a regular file, as above."""
    if path.exists():
        _check_regular(path.stat().st_mode, path)
    return os.fdopen(_opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")


def _opened(path: str | os.PathLike[str], flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0), 0o666)
    try:
        _check_regular(os.fstat(descriptor).st_mode, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(mode: int, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file (a pipe, a socket or a device)", str(path))


def write_whole(file: Path, content: bytes) -> None:
    """Replace (or make) a file: who reads it meanwhile, or after an interruption, has the old or the new one.

    Raises OSError, with the name of the file that was asked for.
    """
    try:
        _write(file, content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from error


def _write(file: Path, content: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{shortened(file.name)}.", delete=False) as part:
        try:
            part.write(content)
            part.flush()
            os.fsync(part.fileno())
            Path(part.name).chmod(0o666 & ~_umask())
            Path(part.name).replace(file)
        except BaseException:
            Path(part.name).unlink(missing_ok=True)
            raise


def shortened(name: str) -> str:
    """The beginning of a name, for names with more to come: systems count bytes, and a character may have four."""
    return os.fsencode(name)[:LONG_NAME].decode(errors="ignore")


def _umask() -> int:
    """What the process takes away from the permissions of new files; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
