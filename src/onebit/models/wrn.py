"""WRN-22 and WRN-40: wide residual nets of pre-activation basic blocks, for 32 x 32 images."""

from __future__ import annotations

from typing import Any

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

SHORTCUTS = ("block", "conv")


class Block(nn.Module):
    """BN, ReLU, 3x3 conv, BN, ReLU, dropout, 3x3 conv, and a shortcut round them all.

    With 1-bit inputs the ReLUs are left out: behind one, every sign would be +1. An LBCNN has none there either.
    With `shortcut_each`, as in a
    Bi-Real net, there is a shortcut round each conv: the first conv's is that of the block, the second's takes what
    the first unit gives.
    """

    def __init__(
        self, in_width: int, width: int, stride: int, dropout: float, relu: bool, method: str, shortcut_each: bool
    ) -> None:
        super().__init__()
        self.shortcut_each = shortcut_each
        self.norm1 = norm(in_width, method)
        self.relu1 = nn.ReLU() if relu else nn.Identity()
        self.conv1 = conv3x3(in_width, width, stride)
        self.norm2 = norm(width, method)
        self.relu2 = nn.ReLU() if relu else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.conv2 = conv3x3(width, width)
        self.shortcut: nn.Module | None = None
        self.shortcut_learns = method != "mcdonnell"
        if in_width != width and self.shortcut_learns:
            self.shortcut = nn.Conv2d(in_width, width, 1, stride, bias=False)
        elif in_width != width:
            self.shortcut = PaddingShortcut()

    def forward(self, x: Tensor) -> Tensor:
        """A block that widens takes its shortcut from the activated input, as WRN does (McDonnell's: from x)."""
        activated = self.relu1(self.norm1(x))
        past = x if self.shortcut is None else self.shortcut(activated if self.shortcut_learns else x)
        y = self.conv1(activated)
        if self.shortcut_each:
            y = past = y + past
        after: Tensor = self.conv2(self.dropout(self.relu2(self.norm2(y))))
        return after + past


class WRN(nn.Module):
    """Stem, three stages of `blocks` blocks with widths i, 2i, 4i, and a linear classifier."""

    def __init__(
        self,
        blocks: int,
        width: int,
        num_classes: int,
        in_channels: int,
        dropout: float,
        relu: bool,
        method: str,
        shortcut_each: bool,
    ) -> None:
        super().__init__()
        self.norm_of_images = norm_of_images(in_channels, method)
        self.stem = conv3x3(in_channels, width)
        stages = []
        in_width = width
        for stage, stage_width in enumerate((width, 2 * width, 4 * width)):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                stages.append(Block(in_width, stage_width, stride, dropout, relu, method, shortcut_each))
                in_width = stage_width
        self.blocks = nn.Sequential(*stages)
        self.norm = norm(in_width, method)
        self.classifier = nn.Linear(in_width, num_classes)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, in_channels, H, W) to logits (N, num_classes)."""
        x = F.relu(self.norm(self.blocks(self.stem(self.norm_of_images(x)))))
        logits: Tensor = self.classifier(x.mean(dim=(2, 3)))
        return logits


def _wrn(
    blocks: int,
    width: int,
    num_projections: int,
    method: str,
    activation_bits: int | None,
    num_classes: int,
    in_channels: int,
    dropout: float | None,
    shortcuts: str | None,
    options: dict[str, Any],
) -> WRN:
    if shortcuts not in {None, *SHORTCUTS}:
        raise ValueError(f"shortcuts={shortcuts!r}: use {' or '.join(map(repr, SHORTCUTS))}")
    shortcut_each = (shortcuts or ("conv" if method == "bireal" else "block")) == "conv"
    dropout = (0.3 if width >= 64 else 0.0) if dropout is None else dropout
    wide = tensor_width(width, num_projections)
    relu = has_relus(method, activation_bits)
    net = WRN(blocks, wide, num_classes, in_channels, dropout, relu, method, shortcut_each)
    return binarized(net, method, num_projections, activation_bits, options)


def wrn22(
    width: int = 16,
    num_projections: int = 1,
    method: str = "pcnn",
    activation_bits: int | None = None,
    num_classes: int = 10,
    *,
    in_channels: int = 3,
    dropout: float | None = None,
    shortcuts: str | None = None,
    **options: Any,
) -> WRN:
    """WRN-22 (with method='pcnn' the paper's PCNN-22): 3 blocks a stage.

    dropout     between the convs of a block; None: 0.3 from width 64 on, as in the paper
    shortcuts   'block': round every block; 'conv': round every conv, as in a Bi-Real net; None: 'conv' for the
                method 'bireal', else 'block'
    options     of the 1-bit layers, as for `onebit.binarize`
    """
    return _wrn(
        3, width, num_projections, method, activation_bits, num_classes, in_channels, dropout, shortcuts, options
    )


def wrn40(
    width: int = 16,
    num_projections: int = 1,
    method: str = "pcnn",
    activation_bits: int | None = None,
    num_classes: int = 10,
    *,
    in_channels: int = 3,
    dropout: float | None = None,
    shortcuts: str | None = None,
    **options: Any,
) -> WRN:
    """WRN-40 (with method='pcnn' the paper's PCNN-40): 6 blocks a stage; arguments as for `wrn22`."""
    return _wrn(
        6, width, num_projections, method, activation_bits, num_classes, in_channels, dropout, shortcuts, options
    )
