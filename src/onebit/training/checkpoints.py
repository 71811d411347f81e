"""Files that change together: all of a checkpoint is there, or none of it.

One file is replaced by a rename, which is atomic. Several are not; so a checkpoint is written in three moves:

1. each file under its name for the time being, `.NAME.next`, down to the disk;
2. `.commit` with the list of names, by a rename: from here on the checkpoint counts;
3. each `.NAME.next` becomes NAME, and `.commit` goes.

Whoever is interrupted before 2 leaves the old checkpoint, after 2 the new one: `recover` finishes the moves.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path

from onebit.errors import UserError, WorkError

COMMIT = ".commit"


def switch(folder: Path, files: Mapping[str, bytes]) -> None:
    """Replace (or make) these files of the folder, together."""
    had_some = any((folder / name).exists() for name in files)
    try:
        for name, content in files.items():
            _write(folder / f".{name}.next", content)
        _write(folder / f"{COMMIT}.next", json.dumps(sorted(files)).encode())
        _sync_names(folder)
        (folder / f"{COMMIT}.next").replace(folder / COMMIT)
        _sync_names(folder)
    except OSError as error:
        _drop(folder)
        is_full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
        why = "no space left on the disk" if is_full else f"can't be written ({error.strerror})"
        kept = "what was saved before is whole" if had_some else "nothing of it was saved"
        raise WorkError(f"{folder}: {why}; {kept}") from error
    recover(folder)


def recover(folder: Path) -> None:
    """Finish a change that was interrupted, or drop it if it did not come to count."""
    commit = folder / COMMIT
    if commit.is_file():
        try:
            names = [str(name) for name in json.loads(commit.read_bytes())]
        except (ValueError, TypeError, RecursionError):
            raise UserError(f"{commit}: not a list of files; remove it to go on from what is whole") from None
        for name in names:
            waiting = folder / f".{name}.next"
            if waiting.is_file() and Path(name).name == name:
                waiting.replace(folder / name)
        _sync_names(folder)
        commit.unlink()
        _sync_names(folder)
    _drop(folder)


def _drop(folder: Path) -> None:
    for leftover in folder.glob(".*.next"):
        leftover.unlink()


def _write(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)  # a pipe of that name would be waited for
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_names(folder: Path) -> None:
    """Make renames last through a loss of power, where the system lets one."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
