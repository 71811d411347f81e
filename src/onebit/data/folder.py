"""Folders of images in the layout of ImageNet: train/CLASS/*.JPEG and val/CLASS/*.JPEG."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebit.data.names import check_class_names
from onebit.errors import UserError
from onebit.imagefiles import SUFFIXES

LAYOUT = "train/CLASS/*.JPEG to train and val/CLASS/*.JPEG to test"


class Listing(NamedTuple):
    """The files of one part, sorted, and their labels."""

    paths: list[str]
    labels: NDArray[np.int64]


def parts_of(root: Path) -> tuple[Path, Path | None]:
    """Where training images would be, and the folder of test images if there is one."""
    return root / "train", next((root / name for name in ("val", "test") if (root / name).is_dir()), None)


def list_folder(root: Path) -> tuple[Listing, Listing, list[str]]:
    """Training images, test images, and the classes: the names of the folders in train, sorted."""
    train, test = parts_of(root)
    if not train.is_dir() or test is None:
        missing = "train" if not train.is_dir() else "val"
        raise UserError(f"{root}: has no folder '{missing}'; expected are {LAYOUT}")
    names = sorted(entry.name for entry in train.iterdir() if entry.is_dir())
    if not names:
        raise UserError(f"{train}: has no folders of images; expected are {LAYOUT}")
    check_class_names(names, str(train), "rename that folder")
    for entry in sorted(test.iterdir()):
        if entry.is_dir() and entry.name not in names:
            raise UserError(f"{entry}: a class that {train} does not have; expected are {LAYOUT}")
    return _list(train, names), _list(test, names), names


def _unreadable(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # a class may have no test images
        raise UserError(f"{error.filename}: {error.strerror}")


def _list(part: Path, names: list[str]) -> Listing:
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        found = sorted(
            os.path.join(folder, file)  # noqa: PTH118 a million of them: strings, not Paths
            for folder, _, files in os.walk(part / name, onerror=_unreadable)
            for file in files
            if os.path.splitext(file)[1].lower() in SUFFIXES and not file.startswith(".")  # noqa: PTH122
        )
        paths += found
        labels += [label] * len(found)
    if not paths:
        raise UserError(f"{part}: no images in it; expected are {LAYOUT}")
    return Listing(paths, np.array(labels, np.int64))
