"""Image files to bytes of pixels, in worker processes.

A worker gets nothing but items (path, crop) and returns nothing but bytes: which images, in what order and how
cropped is decided in the main process, so that the number of workers changes nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from onebit.imagefiles import BadImageError, Crop, read_pixels

# Of the shorter side; the usual for ImageNet, where that is resized to 256 pixels and a part of 224 taken.
SHARE = 224 / 256


class Item(NamedTuple):
    """One image to decode."""

    path: str
    size: int
    crop: Crop
    share: float = SHARE


class Decoded(NamedTuple):
    """A batch: the images that could be read, which of the items they are, and what was wrong with the others."""

    images: Tensor  # (n, 3, size, size), uint8
    kept: list[int]
    bad: list[tuple[str, str]]


def decode(item: Item) -> NDArray[np.uint8]:
    """A square of (3, size, size): of the image a part whose side is `share` times its shorter side."""
    return read_pixels(item.path, (3, item.size, item.size), item.share, item.crop)


class Decoder:
    """A pool of worker processes (0: none, decode here) that lives as long as this object."""

    def __init__(self, workers: int) -> None:
        self._batches = _Batches()
        self._loader: DataLoader[Any] = DataLoader(
            _Items(),
            batch_sampler=self._batches,
            num_workers=workers,
            collate_fn=_collate,
            worker_init_fn=_leave_signals_to_the_parent,
            persistent_workers=workers > 0,
        )

    def decode(self, batches: Iterable[list[Item]]) -> Iterator[Decoded]:
        """The batches, in order."""
        self._batches.coming = batches
        return iter(self._loader)


class _Items(Dataset[tuple[NDArray[np.uint8] | None, tuple[str, str]]]):
    def __getitem__(self, item: Item) -> tuple[NDArray[np.uint8] | None, tuple[str, str]]:
        try:
            return decode(item), (item.path, "")
        except BadImageError as error:
            return None, (item.path, str(error))


class _Batches:
    """A batch sampler whose batches are others at each pass, and made only when workers are ready for them."""

    def __init__(self) -> None:
        self.coming: Iterable[list[Item]] = ()

    def __iter__(self) -> Iterator[list[Item]]:
        return iter(self.coming)


def _collate(decoded: list[tuple[NDArray[np.uint8] | None, tuple[str, str]]]) -> Decoded:
    kept = [position for position, (pixels, _) in enumerate(decoded) if pixels is not None]
    good = [pixels for pixels, _ in decoded if pixels is not None]
    images = torch.from_numpy(np.stack(good)) if good else torch.empty(0, 3, 0, 0, dtype=torch.uint8)
    return Decoded(images, kept, [outcome for pixels, outcome in decoded if pixels is None])


def _leave_signals_to_the_parent(worker: int) -> None:  # noqa: ARG001
    """Ctrl-C, and torchrun's SIGTERM, reach a whole group of processes; the parent alone decides what they mean."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # from the parent itself
