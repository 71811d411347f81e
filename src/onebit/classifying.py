"""Image files through a packed net: finding them, reading them ahead in threads, and what the net says of each."""

from __future__ import annotations

import glob
import io
import math
import os
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from onebit.errors import UserError
from onebit.imagefiles import FORMATS, SUFFIXES, BadImageError
from onebit.machine import cores
from onebit.modelfile import Model
from onebit.paths import user_path
from onebit.reference import OPERATIONS
from onebit.runnable import Floats, Runnable, prepared

BATCH = 32  # images a call, about
MOST_NUMBERS = 1 << 26  # of a batch, if that is more than one image: a file may ask for images of any size
READERS = 4  # threads, at most: each may hold a large image
STDIN = "-"


class Found(NamedTuple):
    """An image file; or a name behind which there is none, and why."""

    name: str
    content: bytes | None = None  # of an image that came through a pipe
    problem: str = ""


class Guess(NamedTuple):
    """A class that the net sees in an image."""

    label: str
    number: int
    probability: float


class Outcome(NamedTuple):
    """What came of one image: the best guesses, or what was wrong with it."""

    name: str
    guesses: list[Guess]
    problem: str = ""


def find_images(words: Sequence[str], piped: bytes = b"") -> list[Found]:
    """The image files that are meant: files, folders with all in them, patterns, and '-' for what is piped."""
    return [found for word in words for found in _found(word, piped)]


def _found(word: str, piped: bytes) -> Iterator[Found]:
    if word == STDIN:
        yield from _piped(piped)
        return
    path = user_path(word)
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        yield from _matching(word, path)
    except OSError as error:
        yield Found(word, problem=error.strerror or "can't be read")
    else:
        if stat.S_ISDIR(kind):
            yield from _images_in(path) or [Found(word, problem="no images in this folder")]
        elif stat.S_ISREG(kind):
            yield Found(str(path))
        else:  # reading a pipe might never end
            yield Found(word, problem="not a file that can be read to its end; - reads from a pipe")


def _matching(word: str, path: Path) -> Iterator[Found]:
    """Of a pattern: a shell that finds nothing hands it on, and one may be quoted."""
    if not glob.has_magic(word):
        yield Found(word, problem="no such file")
        return
    names = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 a pattern may be absolute
    yield from (found for name in names for found in _found(name, b""))
    if not names:
        yield Found(word, problem="no file is named so")


def _images_in(folder: Path) -> list[Found]:
    """Of the folder and all folders in it, sorted; what is hidden is left out, a folder that is closed is named.

    Links to folders are followed, as training does with those of its classes: each folder once, so that one which
    leads back to where it is ends there.
    """
    found: list[Found] = []
    seen: set[tuple[int, int]] = set()

    def closed(error: OSError) -> None:
        found.append(Found(str(error.filename), problem=error.strerror or "can't be read"))

    for where, folders, files in os.walk(folder, onerror=closed, followlinks=True):
        status = os.stat(where)  # noqa: PTH116
        if (one := (status.st_dev, status.st_ino)) in seen:
            folders.clear()
            continue
        seen.add(one)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names = [name for name in files if os.path.splitext(name)[1].lower() in SUFFIXES]  # noqa: PTH122
        found += [Found(os.path.join(where, name)) for name in sorted(names) if not name.startswith(".")]  # noqa: PTH118
    return found


def _piped(content: bytes) -> Iterator[Found]:
    """An image; or names of files, a line each (or with NUL between them, as `find -print0` has it)."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content), formats=FORMATS):
            pass
    except UnidentifiedImageError:
        lines = content.split(b"\0" if b"\0" in content else b"\n")
        names = [os.fsdecode(line.removesuffix(b"\r")) for line in lines if line.strip()]
        is_text = all(name.isprintable() for name in names[:1])
        names = names if is_text else []
        # `find` names folders beside what is in them; where nothing but folders is named, they are meant.
        files = [name for name in names if not os.path.isdir(name)]  # noqa: PTH112 false, whatever is wrong with it
        yield from dict.fromkeys(found for name in files or names for found in _found(name, b""))
        if not names:
            yield Found("stdin", problem="neither an image nor names of files")
    except Exception as error:  # noqa: BLE001 a damaged image has many ways to say so
        yield Found("stdin", problem=str(error) or type(error).__name__)
    else:
        yield Found("stdin", content)


def classify(net: Runnable, images: Sequence[Found], top: int) -> Iterator[Outcome]:
    """The `top` best guesses for each image, in order; an image that can't be read has none.

    While the net is at work on some images, threads read those that come next.
    """
    batch = net.threads * -(-BATCH // net.threads)  # so that each of the net's threads has as many
    batch = max(1, min(batch, MOST_NUMBERS // math.prod(net.input_shape)))
    parts = [images[start : start + batch] for start in range(0, len(images), batch)]
    pool = ThreadPoolExecutor(max_workers=min(READERS, cores()))
    try:
        coming = [pool.submit(_read, net.model, found) for found in parts[0]] if parts else []
        for part, following in zip(parts, [*parts[1:], ()], strict=True):
            read, coming = coming, [pool.submit(_read, net.model, found) for found in following]
            yield from _outcomes(net, part, [each.result() for each in read], top)
    finally:  # whoever has had enough does not wait for what was read in advance
        pool.shutdown(wait=False, cancel_futures=True)


def _read(model: Model, found: Found) -> Floats | str:
    """The image for the net, or what is wrong with it."""
    if found.problem:
        return found.problem
    try:
        return prepared(model, found.name if found.content is None else io.BytesIO(found.content))
    except BadImageError as error:
        return str(error)


def _outcomes(net: Runnable, part: Sequence[Found], read: Sequence[Floats | str], top: int) -> Iterator[Outcome]:
    good = [image for image in read if not isinstance(image, str)]
    answers = iter(guesses(net, np.stack(good) if len(good) > 1 else good[0][None], top) if good else ())
    for found, image in zip(part, read, strict=True):
        yield Outcome(found.name, [], image) if isinstance(image, str) else Outcome(found.name, next(answers))


def guesses(net: Runnable, images: Floats, top: int) -> list[list[Guess]]:
    """The best guesses for each image of a batch, the best first; of two that are equal, the first class."""
    outputs = net(images)
    if outputs.ndim != 2:
        raise UserError(f"the net makes images of {outputs.shape[1:]}, not classes")
    last = net.model.graph.nodes[-1]
    shares = outputs if last.op == "softmax" else OPERATIONS["softmax"](last, outputs.astype(np.float64))
    labels = net.model.classes or tuple(map(str, range(outputs.shape[1])))
    best = np.argsort(-outputs, axis=1, kind="stable")[:, :top]
    return [
        [Guess(labels[number], int(number), float(row[number])) for number in chosen]
        for row, chosen in zip(shares, best, strict=True)
    ]
