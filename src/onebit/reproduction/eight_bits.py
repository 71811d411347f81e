"""What 8 bits cost: a trained net in files of several kinds, each against PyTorch, on all test images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

from onebit.data.splits import DataSet, Split
from onebit.loading import load
from onebit.machine import cores
from onebit.reproduction.sheets import Sheet
from onebit.runnable import Floats
from onebit.training.evaluation import Feed
from onebit.training.exports import calibration_images, export_trained
from onebit.training.nets import Weights, build_trained

BATCH = 100
KINDS: dict[str, dict[str, Any]] = {
    "as trained": {},
    "inputs of 1-bit layers in 8 bits": {"activation_bits": 8},
    "other layers in 8 bits": {"int8_layers": True},
    "both": {"activation_bits": 8, "int8_layers": True},
}


class Compared(NamedTuple):
    """A file against the net in PyTorch that it was made of."""

    images: int
    same_class: float  # percent
    torch_top1: float
    file_top1: float
    difference: float  # the largest, of the largest output of its batch


def compare_outputs(
    expected: Callable[[torch.Tensor], Floats],
    found: Callable[[Floats], Floats],
    batches: Iterable[Any],
    feed: Feed,
) -> Compared:
    """Both on the same images."""
    same = right = right_file = count = 0
    worst = 0.0
    for batch in batches:
        images, labels = feed(batch)
        wanted, got, known = expected(images), found(images.numpy()), labels.numpy()
        worst = max(worst, float(np.abs(got - wanted).max() / np.abs(wanted).max()))
        same += int((got.argmax(1) == wanted.argmax(1)).sum())
        right += int((wanted.argmax(1) == known).sum())
        right_file += int((got.argmax(1) == known).sum())
        count += len(known)
    return Compared(count, 100 * same / count, 100 * right / count, 100 * right_file / count, worst)


def batches_of(split: Split, most: int) -> Iterable[Any]:
    """The first images, in batches."""
    count = min(most, len(split.labels))
    return split.batches([np.arange(start, min(start + BATCH, count)) for start in range(0, count, BATCH)])


class Row(NamedTuple):
    """A kind of file."""

    net: str
    kind: str
    bytes: int
    compared: Compared


def rows_of(weights: Weights, data: DataSet, advance: Callable[[], None], most: int = 10_000) -> list[Row]:
    """Every kind of file that there is of a net."""
    spec, net = weights.spec, build_trained(weights).eval()
    feed = Feed(spec.mean, spec.deviation, torch.device("cpu"))

    def in_torch(images: torch.Tensor) -> Floats:
        with torch.inference_mode():
            made: Floats = net(images).numpy()
        return made

    found = []
    calibration = calibration_images(spec, data)
    with TemporaryDirectory() as folder:
        for kind, options in KINDS.items():
            if options.get("activation_bits") and spec.net.activation_bits == 1:
                continue  # bits are no floats that could be rounded
            path = Path(folder) / "net.onebit"
            summary = export_trained(spec, net, path, calibration=calibration if options else None, **options)
            packed = load(path, threads=cores())
            compared = compare_outputs(in_torch, packed, batches_of(data.test, most), feed)
            found.append(Row(spec.summary(), kind, summary.file_bytes, compared))
            advance()
    return found


HEADS = ("net", "file", "bytes", "top-1 %, PyTorch", "top-1 %, file", "same class %")
REMARKS = ["file: run by the engine; same class: as PyTorch sees with the net as it was trained"]


def sheet(rows: Sequence[Row]) -> Sheet:
    """For people."""
    cells = [
        (row.net, row.kind, f"{row.bytes:,}", f"{row.compared.torch_top1:.2f}", f"{row.compared.file_top1:.2f}",
         f"{row.compared.same_class:.2f}")
        for row in rows
    ]  # fmt: skip
    return Sheet(HEADS, cells, 2)


def dicts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For a program."""
    return [{"net": r.net, "file": r.kind, "bytes": r.bytes, **r.compared._asdict()} for r in rows]
