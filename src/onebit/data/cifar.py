"""CIFAR-10 and CIFAR-100, in the two layouts that they are published in."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebit.data.download import Archive, fetch
from onebit.data.pickles import read_pickle
from onebit.errors import UserError

IMAGE_BYTES = 3 * 32 * 32


class Cifar(NamedTuple):
    """Where the images and labels of one of the two are, in each layout, and what they are like."""

    archive: Archive
    train: tuple[str, ...]  # python layout
    test: tuple[str, ...]
    labels: str
    meta: str
    names: str
    binary_folder: str
    binary_train: tuple[str, ...]
    binary_test: tuple[str, ...]
    binary_names: str
    label_bytes: int  # before each image of the binary layout; the last of them is the label
    num_classes: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]


CIFARS = {
    "cifar10": Cifar(
        archive=Archive(
            url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            folder="cifar-10-batches-py",
        ),
        train=tuple(f"data_batch_{n}" for n in range(1, 6)),
        test=("test_batch",),
        labels="labels",
        meta="batches.meta",
        names="label_names",
        binary_folder="cifar-10-batches-bin",
        binary_train=tuple(f"data_batch_{n}.bin" for n in range(1, 6)),
        binary_test=("test_batch.bin",),
        binary_names="batches.meta.txt",
        label_bytes=1,
        num_classes=10,
        mean=(0.4914, 0.4822, 0.4465),
        deviation=(0.2470, 0.2435, 0.2616),
    ),
    "cifar100": Cifar(
        archive=Archive(
            url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            sha256="85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            folder="cifar-100-python",
        ),
        train=("train",),
        test=("test",),
        labels="fine_labels",
        meta="meta",
        names="fine_label_names",
        binary_folder="cifar-100-binary",
        binary_train=("train.bin",),
        binary_test=("test.bin",),
        binary_names="fine_label_names.txt",
        label_bytes=2,
        num_classes=100,
        mean=(0.5071, 0.4865, 0.4409),
        deviation=(0.2673, 0.2564, 0.2762),
    ),
}


class Part(NamedTuple):
    """Images (N, 3, 32, 32) as bytes, and their labels (N,)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def load_cifar(name: str, data_dir: Path, *, may_fetch: bool = True) -> tuple[Part, Part, list[str]]:
    """Training images, test images and the names of the classes; `data_dir` or a folder in it has the files."""
    cifar = CIFARS[name]
    found = find_cifar(name, data_dir)
    if found is None and not may_fetch:
        raise UserError(f"{data_dir}: {name} is not there; --data-dir says where it is")
    found = found or fetch(cifar.archive, data_dir)
    if (found / cifar.train[0]).is_file():
        train, test = (_join(found, files, _read_python, cifar) for files in (cifar.train, cifar.test))
        names = _python_names(found / cifar.meta, cifar)
    else:
        train, test = (
            _join(found, files, _read_binary, cifar) for files in (cifar.binary_train, cifar.binary_test)
        )
        names = _binary_names(found / cifar.binary_names)
    if len(names) != cifar.num_classes:
        names = [str(label) for label in range(cifar.num_classes)]
    return train, test, names


def find_cifar(name: str, data_dir: Path) -> Path | None:
    """The folder that has its files, if there is one."""
    cifar = CIFARS[name]
    for folder in (data_dir, data_dir / cifar.archive.folder, data_dir / cifar.binary_folder):
        if (folder / cifar.train[0]).is_file() or (folder / cifar.binary_train[0]).is_file():
            return folder
    return None


def _join(folder: Path, files: tuple[str, ...], read: Any, cifar: Cifar) -> Part:
    parts = []
    for name in files:
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path}: not there, though {files[0]} is: fetch {cifar.archive.url} anew")
        images, labels = read(path, cifar)
        parts.append(Part(images, labels.astype(np.int64)))
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    if not len(labels):
        raise UserError(f"{folder}: no images in {', '.join(files)}")
    return Part(images, labels)


def _read_python(path: Path, cifar: Cifar) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    content = read_pickle(path)
    data, labels = content.get("data"), content.get(cifar.labels)
    if data is None or labels is None:
        raise UserError(f"{path}: not a batch of CIFAR (it has no 'data' or no {cifar.labels!r})")
    if not isinstance(data, np.ndarray):
        raise UserError(f"{path}: 'data' is no array")
    if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        raise UserError(f"{path}: {cifar.labels!r} is not a list of numbers")
    if data.dtype != np.uint8 or data.shape != (len(labels), IMAGE_BYTES):
        raise UserError(f"{path}: 'data' is {data.dtype} {data.shape}, not uint8 ({len(labels)}, {IMAGE_BYTES})")
    _check_labels(path, labels, cifar)
    return data.reshape(-1, 3, 32, 32), np.array(labels, np.int64)


def _read_binary(path: Path, cifar: Cifar) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    record = cifar.label_bytes + IMAGE_BYTES
    data = np.fromfile(path, np.uint8)
    if data.size % record:
        raise UserError(f"{path}: {data.size} bytes are not a whole number of images of {record} bytes")
    data = data.reshape(-1, record)
    labels = data[:, cifar.label_bytes - 1]
    _check_labels(path, labels.tolist(), cifar)
    return data[:, cifar.label_bytes :].reshape(-1, 3, 32, 32), labels


def _check_labels(path: Path, labels: list[int], cifar: Cifar) -> None:
    if labels and not 0 <= min(labels) <= max(labels) < cifar.num_classes:
        raise UserError(f"{path}: labels from {min(labels)} to {max(labels)}, not 0 to {cifar.num_classes - 1}")


def _python_names(path: Path, cifar: Cifar) -> list[str]:
    names = read_pickle(path).get(cifar.names) if path.is_file() else None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []


def _binary_names(path: Path) -> list[str]:
    return path.read_text(errors="replace").split() if path.is_file() else []
