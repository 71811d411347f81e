"""Resnet18: the standard one in float, and the Bi-Real form for 1-bit convolutions."""

from __future__ import annotations

from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from onebit.models.common import (
    PaddingShortcut,
    binarized,
    conv3x3,
    has_relus,
    initialize,
    norm,
    norm_of_images,
    tensor_width,
)
from onebit.models.wrn import Block as PreactivatedBlock

# What the authors' nets of 18 layers are made of; of PCNN and of float nets it is the form that they have anyway.
#   standard        conv, BN, ReLU, conv, BN, add, ReLU
#   preactivation   BN, ReLU or what the method makes of its inputs, conv, twice, add; BN and ReLU behind the last
#   bireal          conv, BN, add
AUTHORS_FORM = {
    "bwn": "standard", "binaryconnect": "standard", "mcn": "standard",
    "xnor": "preactivation", "bnn": "preactivation", "abc": "preactivation", "dorefa": "preactivation",
    "mcdonnell": "preactivation", "lbcnn": "preactivation",
    "bireal": "bireal",
}  # fmt: skip


class BasicBlock(nn.Module):
    """The standard block: conv, BN, ReLU, conv, BN, add, ReLU."""

    def __init__(self, in_width: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = conv3x3(in_width, width, stride), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = conv3x3(width, width), nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_width != width:
            self.shortcut = nn.Sequential(nn.Conv2d(in_width, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """(N, in_width, H, W) to (N, width, H / stride, W / stride)."""
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class BiRealUnit(nn.Module):
    """One 3x3 conv with a shortcut of its own: conv, BN, PReLU, add. Two of them make a block.

    A down-sampling shortcut averages 2x2 pixels, so that its full-precision 1x1 conv sees all of them.
    McDonnell's shortcut learns nothing. XNOR-Net's order is BN, (sign,) conv, PReLU, add.
    """

    def __init__(
        self, in_width: int, width: int, stride: int, prelu: Literal["before_add", "after_add", "none"], method: str
    ) -> None:
        super().__init__()
        self.norm_first = method == "xnor"
        self.conv = conv3x3(in_width, width, stride)
        self.norm = norm(in_width if self.norm_first else width, method)
        self.prelu: nn.Module = nn.Identity() if prelu == "none" else nn.PReLU(width)
        self.prelu_after_add = prelu == "after_add"
        self.shortcut: nn.Module = nn.Identity()
        if in_width != width and method == "mcdonnell":
            self.shortcut = PaddingShortcut()
        elif stride != 1 or in_width != width:
            self.shortcut = nn.Sequential(
                nn.AvgPool2d(stride, stride, ceil_mode=True),
                nn.Conv2d(in_width, width, 1, bias=False),
                norm(width, method),
            )

    def forward(self, x: Tensor) -> Tensor:
        """(N, in_width, H, W) to (N, width, H / stride, W / stride)."""
        y = self.conv(self.norm(x)) if self.norm_first else self.norm(self.conv(x))
        if self.prelu_after_add:
            after: Tensor = self.prelu(y + self.shortcut(x))
            return after
        before: Tensor = self.prelu(y) + self.shortcut(x)
        return before


def bireal_name(name: str) -> str:
    """The standard net's name of a parameter or buffer as the Bi-Real form has it: a block is two units there."""
    first, *rest = name.split(".")
    if first != "blocks":
        return name
    block, part, rest = int(rest[0]), rest[1], rest[2:]
    if part == "shortcut":  # behind an average pool
        return ".".join(["blocks", str(2 * block), part, str(int(rest[0]) + 1), *rest[1:]])
    return ".".join(["blocks", str(2 * block + int(part[-1]) - 1), part[:-1], *rest])


def form_of(method: str, form: Literal["bireal", "own"] | None = None) -> str:
    """What the blocks are: 'standard', 'preactivation' or 'bireal'."""
    if form not in {"bireal", "own", None}:
        raise ValueError(f"form={form!r}: use 'bireal' or 'own'")
    if method == "float":
        return "standard"
    return AUTHORS_FORM.get(method, "bireal") if form == "own" else "bireal"


class ResNet(nn.Module):
    """7x7 stem, max pool, the given blocks, average pool, linear classifier.

    The standard net has BN and ReLU before the pool. Behind a ReLU every sign would be +1, so the others have
    none; and behind BN and a pool nearly every one: of nine values around 0 the largest is seldom negative.
    Deviation: so the Bi-Real form has BN after the pool, not before. With a positive gamma it is the same
    function, but what the first signs see is centred. So has the form with BN before every conv; behind its last
    block stand BN and ReLU.
    """

    def __init__(
        self, blocks: list[nn.Module], width: int, num_classes: int, in_channels: int, method: str, form: str
    ) -> None:
        super().__init__()
        self.norm_of_images = norm_of_images(in_channels, method)
        self.stem = nn.Conv2d(in_channels, width, 7, 2, padding=3, bias=False)
        self.norm = norm(width, method)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        self.is_standard = form == "standard"
        self.blocks = nn.Sequential(*blocks)
        self.last: nn.Module = nn.Identity()
        if form == "preactivation":
            self.last = nn.Sequential(norm(8 * width, method), nn.ReLU())
        self.classifier = nn.Linear(8 * width, num_classes)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, in_channels, H, W) to logits (N, num_classes)."""
        x = self.stem(self.norm_of_images(x))
        x = self.pool(F.relu(self.norm(x))) if self.is_standard else self.norm(self.pool(x))
        logits: Tensor = self.classifier(self.last(self.blocks(x)).mean(dim=(2, 3)))
        return logits


def resnet18(
    width: int = 64,
    num_projections: int = 1,
    method: str = "pcnn",
    activation_bits: int | None = None,
    num_classes: int = 1000,
    *,
    in_channels: int = 3,
    prelu: Literal["before_add", "after_add", "none"] = "before_add",
    form: Literal["bireal", "own"] = "bireal",
    **options: Any,
) -> ResNet:
    """Resnet18: method='float' is the standard net with ReLU, others have the Bi-Real form.

    prelu     'before_add' | 'after_add' | 'none': where PReLU stands in the Bi-Real form
    form      'bireal' | 'own': for every method the form of PCNN's net, a shortcut and a PReLU round each conv, or
              what the method's authors have (`onebit.models.resnet.AUTHORS_FORM`; PCNN's is the Bi-Real form)
    options   of the 1-bit layers, as for `onebit.binarize`
    """
    if prelu not in {"before_add", "after_add", "none"}:
        raise ValueError(f"prelu={prelu!r}: use 'before_add', 'after_add' or 'none'")
    built = form_of(method, form)
    if form == "own" and method == "bireal":
        prelu = "none"
    wide = tensor_width(width, num_projections)
    relu = has_relus(method, activation_bits)
    blocks: list[nn.Module] = []
    in_width = wide
    for stage, stage_width in enumerate((wide, 2 * wide, 4 * wide, 8 * wide)):
        for block in range(2):
            stride = 2 if stage > 0 and block == 0 else 1
            if built == "standard":
                blocks.append(BasicBlock(in_width, stage_width, stride))
            elif built == "preactivation":
                blocks.append(PreactivatedBlock(in_width, stage_width, stride, 0.0, relu, method, False))
            else:
                blocks.append(BiRealUnit(in_width, stage_width, stride, prelu, method))
                blocks.append(BiRealUnit(stage_width, stage_width, 1, prelu, method))
            in_width = stage_width
    net = ResNet(blocks, wide, num_classes, in_channels, method, built)
    return binarized(net, method, num_projections, activation_bits, options)
