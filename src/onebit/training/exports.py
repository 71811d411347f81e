"""The net of a run as a .onebit file, with all that the run knows about its images and classes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from onebit.data.decoding import SHARE
from onebit.data.splits import DataSet
from onebit.exporting.exporter import export
from onebit.modelfile import Preprocessing
from onebit.summary import Summary
from onebit.training.evaluation import Feed
from onebit.training.nets import NetSpec

CALIBRATION_IMAGES = 256


def export_trained(
    spec: NetSpec,
    net: nn.Module,
    file: Path,
    *,
    activation_bits: int | None = None,
    int8_layers: bool = False,
    calibration: Iterable[Tensor] | None = None,
    float_bits: int = 32,
) -> Summary:
    """Write the file; see `onebit.export` for the options."""
    described = spec.summary()
    if activation_bits:
        described = described.replace("A32", f"A{activation_bits}")
    if int8_layers:
        described += ", other layers in 8 bits"
    return export(
        net,
        file,
        torch.zeros(1, *spec.image_shape),
        activation_bits=activation_bits,
        int8_layers=int8_layers,
        calibration=calibration,
        float_bits=float_bits,
        preprocessing=Preprocessing(spec.mean, spec.deviation, crop_of(spec)),
        class_names=spec.class_names,
        description=f"{described}, {spec.data}",
    )


def crop_of(spec: NetSpec) -> float:
    """The part of a picture that training took for testing: see `onebit.data.decoding`."""
    return SHARE if spec.data in {"imagefolder", "imagenet"} else 1.0


def calibration_images(spec: NetSpec, data: DataSet, most: int = CALIBRATION_IMAGES) -> list[Tensor]:
    """Some training images, always the same ones, as the net takes them, in batches."""
    feed = Feed(spec.mean, spec.deviation, torch.device("cpu"))
    count = min(most, len(data.train.labels))
    rows = np.random.default_rng(0).permutation(len(data.train.labels))[:count]
    parts = [np.sort(part) for part in np.array_split(rows, -(-count // 64))]
    return [feed(batch)[0] for batch in data.train.batches(parts)]
