"""What the nets have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from onebit.binarization import STRUCTURE, binarization_report, binarize
from onebit.methods import activation_bits_of

NetType = TypeVar("NetType", bound=nn.Module)


def conv3x3(in_width: int, width: int, stride: int = 1) -> nn.Conv2d:
    """3x3, padded so that stride 1 keeps the size; a norm follows, so there is no bias."""
    return nn.Conv2d(in_width, width, 3, stride, padding=1, bias=False)


def tensor_width(width: int, num_projections: int) -> int:
    """The paper's i-wide net with J projections has tensors i*J wide."""
    for name, value in (("width", width), ("num_projections", num_projections)):
        if value < 1:
            raise ValueError(f"{name}={value}: use at least 1")
    return width * num_projections


def has_relus(method: str, activation_bits: int | None) -> bool:
    """Whether ReLUs stand before the net's convs: not before a sign, nor before the fixed filters of an LBCNN."""
    takes_signs = method != "float" and activation_bits_of(method, activation_bits) == 1
    return not takes_signs and method != "lbcnn"


def norm(width: int, method: str) -> nn.BatchNorm2d:
    """Batch norm; McDonnell's nets have it without the affine part, but for that of the images."""
    return nn.BatchNorm2d(width, affine=method != "mcdonnell")


def norm_of_images(in_channels: int, method: str) -> nn.Module:
    """What McDonnell's nets begin with: the only norm that learns."""
    return nn.BatchNorm2d(in_channels) if method == "mcdonnell" else nn.Identity()


class PaddingShortcut(nn.Module):
    """McDonnell's shortcut to twice the channels of half the image: means over 3x3 pixels, then channels of zeros.

    Pixels outside the image are not counted: a mean at the edge is one over fewer pixels. Nothing of it learns.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(3, 2, padding=1, count_include_pad=False)

    def forward(self, x: Tensor) -> Tensor:
        """(N, channels, H, W) to (N, 2 * channels, H / 2, W / 2)."""
        pooled = self.pool(x)
        return torch.cat([pooled, torch.zeros_like(pooled)], dim=1)


def binarized(
    net: NetType,
    method: str,
    num_projections: int,
    activation_bits: int | None,
    options: dict[str, Any],
    *,
    has_structure: bool = True,
) -> NetType:
    """The net with layers of the method. A float net is only as wide as its 1-bit twin with J projections.

    has_structure: whether the net was built with what the method asks beyond its layers.
    """
    if method == "float":
        num_projections = 1
    net = binarize(net, method, num_projections=num_projections, activation_bits=activation_bits, **options)
    if has_structure:
        report = binarization_report(net)
        notes = tuple(note for note in report.notes if note != STRUCTURE.get(method))
        net.__dict__["_onebit_report"] = replace(report, notes=notes)
    return net


def initialize(net: nn.Module) -> None:
    """He's normal initialisation of the convs, small normal for linear layers, zero for biases."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
