"""Fetches an archive: with progress, checked, and there whole or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import urllib.error
import urllib.request
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from onebit.console import Progress, say
from onebit.errors import UserError
from onebit.paths import open_regular

CHUNK = 1 << 20


class Archive(NamedTuple):
    """A published tar file and the folder that it unpacks to."""

    url: str
    sha256: str
    folder: str

    @property
    def name(self) -> str:
        """The file's name."""
        return self.url.rsplit("/", 1)[-1]


def fetch(archive: Archive, data_dir: Path) -> Path:
    """The archive's folder in `data_dir`, downloaded and unpacked."""
    file = data_dir / archive.name
    made = [place for place in (data_dir, *data_dir.parents) if not place.exists()]
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            _download(archive, file)
        elif _digest(file) != archive.sha256:
            raise UserError(f"{file}: not the whole published archive (by its SHA-256): remove it to fetch it anew")
        _unpack(file, data_dir / archive.folder)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        with suppress(OSError):  # somebody else has put something there
            for place in made:  # innermost first: a folder that was mistyped is not left behind
                place.rmdir()
        reason = getattr(error, "reason", error)
        raise UserError(
            f"{data_dir}: has no {archive.folder}, and it could not be downloaded ({reason}); where there is a "
            f"network, fetch {archive.url}, and put that file, or the folder {archive.folder} in it, there"
        ) from None
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise UserError(f"{file}: not a whole archive ({error}): remove it to fetch it anew") from None
    except OSError as error:
        raise UserError(f"{error.filename or data_dir}: {error.strerror or error}") from None
    return data_dir / archive.folder


def _digest(file: Path) -> str:
    with open_regular(file) as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _download(archive: Archive, file: Path) -> None:
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(archive.url, timeout=30) as answer, part.open("wb") as out:  # noqa: S310 our own https
            size = int(answer.headers.get("Content-Length") or 0)
            say(f"fetching {archive.name}" + (f" ({size / 1e6:.0f} MB)" if size else ""))
            with Progress(archive.name, size, of_bytes=True) as progress:
                while chunk := answer.read(CHUNK):
                    digest.update(chunk)
                    out.write(chunk)
                    progress.advance(len(chunk))
        if digest.hexdigest() != archive.sha256:
            raise UserError(
                f"{archive.url}: what came has the SHA-256 {digest.hexdigest()[:12]}..., not the published "
                f"{archive.sha256[:12]}...: nothing was kept; try again, or fetch the file by other means"
            )
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def _unpack(file: Path, folder: Path) -> None:
    """Only plain files straight in the archive's folder, written by us under their last name."""
    part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    part.mkdir()
    try:
        with tarfile.open(file, "r:*") as archive:
            for member in archive:
                parts = Path(member.name).parts
                source = archive.extractfile(member) if member.isfile() else None
                if source is not None and len(parts) == 2 and parts[0] == folder.name and ".." not in parts:
                    with source, (part / parts[1]).open("wb") as out:
                        shutil.copyfileobj(source, out, CHUNK)
        if not any(part.iterdir()):
            raise UserError(f"{file}: holds no folder {folder.name}")
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
