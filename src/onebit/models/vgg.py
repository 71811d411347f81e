"""VGG16 with batch norm."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from onebit.binarization import binarize
from onebit.models.common import conv3x3, initialize, tensor_width

# Convs a stage and the width of each, in units of the first; a 2x2 max pool ends a stage.
STAGES = ((2, 1), (2, 2), (3, 4), (3, 8), (3, 8))


class VGG(nn.Module):
    """Thirteen 3x3 convs with BN and ReLU in five stages, then three linear layers.

    With 1-bit inputs a conv is followed by BN alone, but for the last, whose ReLU feeds the classifier.
    """

    def __init__(
        self, width: int, num_classes: int, in_channels: int, hidden: int, dropout: float, relu: bool
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        in_width = in_channels
        for convs, factor in STAGES:
            for _ in range(convs):
                layers += [conv3x3(in_width, factor * width), nn.BatchNorm2d(factor * width)]
                layers.append(nn.ReLU() if relu else nn.Identity())
                in_width = factor * width
            layers.append(nn.MaxPool2d(2, 2))
        layers[-2] = nn.ReLU()
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(in_width * 49, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, num_classes),
        )
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, in_channels, H, W) to logits (N, num_classes)."""
        logits: Tensor = self.classifier(self.pool(self.features(x)))
        return logits


def vgg16(
    width: int = 64,
    num_projections: int = 1,
    method: str = "pcnn",
    activation_bits: int = 32,
    num_classes: int = 1000,
    *,
    in_channels: int = 3,
    hidden: int = 4096,
    dropout: float = 0.5,
    **options: Any,
) -> VGG:
    """VGG16 with batch norm.

    hidden, dropout   of the classifier's two inner layers, which stay in float
    options           of the 1-bit layers: lam, forward_w, w_init, scale, levels
    """
    one_bit_input = method != "float" and activation_bits == 1
    wide = tensor_width(width, num_projections)
    net = VGG(wide, num_classes, in_channels, hidden, dropout, relu=not one_bit_input)
    return binarize(net, method, num_projections=num_projections, activation_bits=activation_bits, **options)
