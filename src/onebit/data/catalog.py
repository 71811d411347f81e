"""The data sets by name, and where they are looked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import numpy as np

from onebit.data.cifar import CIFARS, load_cifar
from onebit.data.decoding import SHARE, Decoder
from onebit.data.digits import load_digit_pixels
from onebit.data.folder import LAYOUT, list_folder
from onebit.data.splits import ArraySplit, DataSet, FolderSplit
from onebit.errors import UserError
from onebit.machine import cores
from onebit.paths import user_path

DataName = Literal["digits", "cifar10", "cifar100", "imagefolder", "imagenet"]
IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def load_data(
    name: DataName,
    data_dir: str | None = None,
    *,
    image_size: int = 224,
    share: float = SHARE,
    workers: int = 0,
    on_bad_image: Literal["error", "skip"] = "error",
    may_fetch: bool = True,
) -> DataSet:
    """The data set; `data_dir`, or else $ONEBIT_DATA, is the folder that holds its files.

    image_size, workers, on_bad_image   of folders of images
    share       how large the part of an image in a folder is that is taken, of the largest square
    may_fetch   CIFAR that is not there
    """
    if name == "digits":
        return _digits()
    folder = data_dir or os.environ.get("ONEBIT_DATA")
    if not folder:
        what = f"{LAYOUT}" if name not in CIFARS else f"{CIFARS[name].archive.folder}; it is fetched if not there"
        raise UserError(f"--data {name} needs a folder: --data-dir DIR, or $ONEBIT_DATA (with {what})")
    root = user_path(folder)
    if name in CIFARS:
        return _cifar(name, root, may_fetch=may_fetch)
    if not root.is_dir():
        raise UserError(f"--data-dir {root}: no such folder; expected are {LAYOUT}")
    train, test, names = list_folder(root)
    decoder, skipped = Decoder(min(workers, cores())), set[str]()  # more would only wait for a core
    return DataSet(
        FolderSplit(train, image_size, decoder, on_bad_image, skipped, share),
        FolderSplit(test, image_size, decoder, on_bad_image, skipped, share),
        names,
        (3, image_size, image_size),
        IMAGENET_MEAN,
        IMAGENET_DEVIATION,
        skipped,
    )


def _cifar(name: str, root: Path, *, may_fetch: bool) -> DataSet:
    train, test, names = load_cifar(name, root, may_fetch=may_fetch)
    cifar = CIFARS[name]
    first, second = (ArraySplit(*part, pad=4, padding="reflect", flip=True) for part in (train, test))
    return DataSet(first, second, names, (3, 32, 32), cifar.mean, cifar.deviation)


def _digits() -> DataSet:
    parts = load_digit_pixels()
    train, test = (ArraySplit(*part, pad=1, padding="edge", flip=False) for part in parts)
    pixels = train.images.astype(np.float64) / 255
    names = [str(digit) for digit in range(10)]
    return DataSet(train, test, names, (1, 8, 8), (float(pixels.mean()),), (float(pixels.std()),))
