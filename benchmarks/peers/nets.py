"""The nets of the tables, and their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import onebit
from onebit.modelfile import read_model, write_model
from onebit.peers.agreement import draw_images
from onebit.peers.twin import float_twin

from .rows import ALONE, EIGHT_BITS, ROWS, ROWS_OF_NETS, Row

LEAST_IMAGES = 8  # by which outputs are compared


class Case(NamedTuple):
    """A net, and who runs it how.

    batch     images that it gets at once
    threads   of a call, whoever runs it
    export    options of `onebit.export`; scales of 8-bit inputs are taken from the images of the case
    rows      who runs it
    """

    title: str
    make: Callable[[], nn.Module]
    input_shape: tuple[int, int, int]
    batch: int = 1
    threads: int = 1
    export: Mapping[str, Any] = MappingProxyType({})
    rows: tuple[Row, ...] = ROWS

    @property
    def contestants(self) -> tuple[Row, ...]:
        """The rows; beside several threads, one is shown, too."""
        return self.rows if self.threads == 1 else (*self.rows, ALONE)


class Files(NamedTuple):
    """What the workers of a case get: the net, its float twin, the net with 8-bit layers (if asked for), images."""

    same: Path
    twin: Path
    int8: Path
    images: Path


def layer(width: int, side: int) -> Case:
    """A layer as nets have it, of images of this side."""

    def make() -> nn.Module:
        conv = onebit.ProjectionConv2d(width, width, 3, padding=1, activation_bits=1)
        return nn.Sequential(conv, nn.BatchNorm2d(width), nn.PReLU(width))

    return Case(f"3x3 conv W1A1, {width} channels, {side} x {side}", make, (width, side, side))


def _resnet18(bits: int, **options: Any) -> Case:
    title, trained_bits = f"Resnet18 W1A{bits}, 224 x 224", 1 if bits == 1 else 32
    options.setdefault("rows", ROWS_OF_NETS)
    return Case(title, lambda: onebit.models.resnet18(activation_bits=trained_bits), (3, 224, 224), **options)


def _wrn22(width: int, num_projections: int = 1, **options: Any) -> Case:
    """width: of kernels, the paper's i; tensors are width * num_projections wide."""

    def make() -> nn.Module:
        return onebit.models.wrn22(width, num_projections=num_projections, activation_bits=1)

    projections = f" J = {num_projections}" if num_projections > 1 else ""
    return Case(f"WRN-22 i = {width}{projections} W1A1, 32 x 32", make, (3, 32, 32), rows=ROWS_OF_NETS, **options)


TABLES: dict[str, list[Case]] = {
    "conv": [layer(width, 56 * 64 // width) for width in (64, 128, 256, 512)],
    "resnet18": [_resnet18(bits=1)],
    "wrn22": [_wrn22(16), _wrn22(16, batch=64)],
    # Tensors of one width; with J = 4, kernels of a quarter of the bits.
    "wrn22-64": [_wrn22(64), _wrn22(16, num_projections=4)],
    "w1a8": [_resnet18(bits=8, export={"activation_bits": 8}, rows=EIGHT_BITS)],
    "w1a32": [_resnet18(bits=32)],
    "threads": [_resnet18(bits=1, threads=2), _resnet18(bits=1, threads=2, batch=8)],
}


def make_files(case: Case, folder: Path) -> Files:
    """Export the net of a case, untrained, with norms and slopes as after training."""
    torch.manual_seed(0)
    images = draw_images(max(LEAST_IMAGES, case.batch), case.input_shape)
    net = settle(case.make(), torch.from_numpy(images[:LEAST_IMAGES]))
    names = ("net.onebit", "twin.onebit", "int8.onebit", "images.npy")
    files = Files(*(folder / name for name in names))
    example, calibration = torch.zeros(1, *case.input_shape), [torch.from_numpy(images)]
    options = {"description": case.title, **case.export}
    if options.get("activation_bits") == 8:
        options.setdefault("calibration", calibration)
    onebit.export(net, files.same, example, **options)
    if any(row.net == "int8" for row in case.rows):
        onebit.export(net, files.int8, example, **{"calibration": calibration} | options, int8_layers=True)
    write_model(float_twin(read_model(files.same)), files.twin)
    np.save(files.images, images)
    return files


@torch.no_grad()
def settle(net: nn.Module, images: torch.Tensor) -> nn.Module:
    """Draw gammas (some negative), betas and slopes; then norms take the true statistics of the images."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.uniform_(-0.2, 1.5)
            module.bias.uniform_(-0.5, 0.5)
            module.momentum = 1.0
        elif isinstance(module, nn.PReLU):
            module.weight.uniform_(0.05, 0.5)
    net.train()(images)
    return net.eval()
