"""Data sets as training sees them: rows of images that come in batches, augmented or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onebit.console import counted
from onebit.data.decoding import SHARE, Decoder, Item
from onebit.data.folder import Listing
from onebit.data.keyed import Stream, draw
from onebit.data.names import check_class_names
from onebit.errors import UserError
from onebit.imagefiles import Crop

Rows = NDArray[np.int64]


class Batch(NamedTuple):
    """Images (n, channels, height, width) as bytes, labels (n,)."""

    images: Tensor
    labels: Tensor


class Pass(NamedTuple):
    """What the augmentation of a pass over the data depends on, beside each image's own row."""

    seed: int
    epoch: int


class Split(Protocol):
    """The training or test part of a data set."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """(N,), one for each row."""

    def batches(self, rows: Sequence[Rows], augmented: Pass | None = None) -> Iterator[Batch]:
        """A batch for each array of rows; augmented as the pass has it, or plain."""


@dataclass
class DataSet:
    """Both parts, and what a net must know about the images."""

    train: Split
    test: Split
    class_names: list[str]
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    skipped: set[str] = field(default_factory=set)  # files of images that could not be read

    def __post_init__(self) -> None:
        check_class_names(self.class_names, "the data", "rename it where its names are kept")

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)


@dataclass
class ArraySplit:
    """Images in memory. Augmentation: a crop after padding by `pad` pixels, and a flip, drawn for each image."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    pad: int
    padding: Literal["reflect", "edge"]
    flip: bool

    def batches(self, rows: Sequence[Rows], augmented: Pass | None = None) -> Iterator[Batch]:
        """See `Split`."""
        for chosen in rows:
            images = self.images[chosen] if augmented is None else self._cropped(chosen, augmented)
            yield Batch(torch.from_numpy(images), torch.from_numpy(self.labels[chosen]))

    def _cropped(self, rows: Rows, augmented: Pass) -> NDArray[np.uint8]:
        """Padding, crop and flip are one look-up: each says from which pixel of the image a pixel comes."""
        _, channels, height, width = self.images.shape
        top, left = (
            (draw(stream, *augmented, rows) % np.uint64(2 * self.pad + 1)).astype(np.int64) - self.pad
            for stream in (Stream.TOP, Stream.LEFT)
        )
        y = self._inside(np.arange(height) + top[:, None], height)
        x = self._inside(np.arange(width) + left[:, None], width)
        if self.flip:
            mirrored = draw(Stream.FLIP, *augmented, rows) % np.uint64(2) == 1
            x[mirrored] = x[mirrored, ::-1]
        pixel = y[:, :, None] * width + x[:, None, :]
        flat = self.images.reshape(len(self.images), channels, height * width)
        index = torch.from_numpy(pixel).reshape(len(rows), 1, height * width).expand(-1, channels, -1)
        found = torch.from_numpy(flat[rows]).gather(2, index)
        return found.reshape(len(rows), channels, height, width).numpy()

    def _inside(self, position: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        if self.padding == "edge":
            return position.clip(0, size - 1)
        position = np.abs(position)
        return np.where(position >= size, 2 * (size - 1) - position, position)


@dataclass
class FolderSplit:
    """Images in files. Augmentation: a random crop and a flip, drawn for each image."""

    listing: Listing
    size: int
    decoder: Decoder
    on_bad_image: Literal["error", "skip"]
    skipped: set[str]
    share: float = SHARE  # how large the part of an image is that is taken, of the largest square

    @property
    def labels(self) -> NDArray[np.int64]:
        """See `Split`."""
        return self.listing.labels

    def batches(self, rows: Sequence[Rows], augmented: Pass | None = None) -> Iterator[Batch]:
        """See `Split`."""
        for chosen, decoded in zip(rows, self.decoder.decode(self._items(rows, augmented)), strict=True):
            self._look_at(decoded.bad)
            if decoded.kept:
                yield Batch(decoded.images, torch.from_numpy(self.labels[chosen][decoded.kept]))
            elif augmented is not None:  # an update needs images; an evaluation goes on with the others
                path, reason = decoded.bad[0]
                raise UserError(
                    f"{path}: none of the {counted(len(chosen), 'image')} of a batch can be read ({reason})"
                )

    def _items(self, rows: Sequence[Rows], augmented: Pass | None) -> Iterator[list[Item]]:
        for chosen in rows:
            crops = [Crop()] * len(chosen) if augmented is None else _crops(chosen, augmented)
            paths = (self.listing.paths[row] for row in chosen)
            yield [Item(path, self.size, crop, self.share) for path, crop in zip(paths, crops, strict=True)]

    def _look_at(self, bad: list[tuple[str, str]]) -> None:
        if bad and self.on_bad_image == "error":
            path, reason = bad[0]
            raise UserError(
                f"{path}: not an image that can be read ({reason}); --on-bad-image skip leaves such out"
            )
        self.skipped.update(path for path, _ in bad)


def _crops(rows: Rows, augmented: Pass) -> list[Crop]:
    top, left = (draw(stream, *augmented, rows) / 2**64 for stream in (Stream.TOP, Stream.LEFT))
    flip = draw(Stream.FLIP, *augmented, rows) % np.uint64(2) == 1
    return [Crop(float(t), float(l), bool(f)) for t, l, f in zip(top, left, flip, strict=True)]  # noqa: E741
