"""The nets of the tables, and their files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

import onebit
from onebit.modelfile import read_model, write_model
from onebit.peers.agreement import draw_images
from onebit.peers.twin import float_twin

LEAST_IMAGES = 8  # by which outputs are compared


class Case(NamedTuple):
    """A net, and how many images it gets at once."""

    title: str
    make: Callable[[], nn.Module]
    input_shape: tuple[int, int, int]
    batch: int = 1


class Files(NamedTuple):
    """What the workers of a case get: the net, its float twin, images."""

    same: Path
    twin: Path
    images: Path


def layer(width: int, side: int) -> Case:
    """A layer as nets have it, of images of this side."""

    def make() -> nn.Module:
        conv = onebit.ProjectionConv2d(width, width, 3, padding=1, activation_bits=1)
        return nn.Sequential(conv, nn.BatchNorm2d(width), nn.PReLU(width))

    return Case(f"3x3 conv W1A1, {width} channels, {side} x {side}", make, (width, side, side))


def _resnet18(bits: int) -> Case:
    return Case(
        f"Resnet18 W1A{bits}, 224 x 224", lambda: onebit.models.resnet18(activation_bits=bits), (3, 224, 224)
    )


def _wrn22(batch: int) -> Case:
    return Case(
        "WRN-22 i = 16 W1A1, 32 x 32", lambda: onebit.models.wrn22(16, activation_bits=1), (3, 32, 32), batch
    )


TABLES: dict[str, list[Case]] = {
    "conv": [layer(width, 56 * 64 // width) for width in (64, 128, 256, 512)],
    "resnet18": [_resnet18(bits=1)],
    "wrn22": [_wrn22(batch=1), _wrn22(batch=64)],
    "w1a32": [_resnet18(bits=32)],
}


def make_files(case: Case, folder: Path) -> Files:
    """Export the net of a case, untrained, with norms and slopes as after training."""
    torch.manual_seed(0)
    images = draw_images(max(LEAST_IMAGES, case.batch), case.input_shape)
    net = settle(case.make(), torch.from_numpy(images[:LEAST_IMAGES]))
    files = Files(folder / "net.onebit", folder / "twin.onebit", folder / "images.npy")
    onebit.export(net, files.same, torch.zeros(1, *case.input_shape), description=case.title)
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
