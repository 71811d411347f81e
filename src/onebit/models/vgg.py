"""VGG16 with batch norm."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from onebit.models.common import binarized, conv3x3, has_relus, initialize, norm, norm_of_images, tensor_width

# Convs a stage and the width of each, in units of the first; a 2x2 max pool ends a stage.
STAGES = ((2, 1), (2, 2), (3, 4), (3, 8), (3, 8))


class Unit(nn.Module):
    """conv, BN, ReLU, and a 2x2 max pool at the end of a stage.

    Without ReLU, for what follows, BN stands behind the pool: see `onebit.models.resnet.ResNet`.
    """

    def __init__(self, in_width: int, width: int, relu: bool, pool: bool, method: str) -> None:
        super().__init__()
        self.conv, self.norm = conv3x3(in_width, width), norm(width, method)
        self.relu = nn.ReLU() if relu else None
        self.pool = nn.MaxPool2d(2, 2) if pool else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(N, in_width, H, W) to (N, width, H, W), or half as high and wide."""
        x = self.conv(x)
        y: Tensor = self.norm(self.pool(x)) if self.relu is None else self.pool(self.relu(self.norm(x)))
        return y


class VGG(nn.Module):
    """Thirteen 3x3 convs with BN and ReLU in five stages, then three linear layers.

    With 1-bit inputs, and for an LBCNN, there is no ReLU but the last, which feeds the classifier.
    """

    def __init__(
        self, width: int, num_classes: int, in_channels: int, hidden: int, dropout: float, relu: bool, method: str
    ) -> None:
        super().__init__()
        plan = [(factor * width, conv == convs) for convs, factor in STAGES for conv in range(1, convs + 1)]
        in_widths = [in_channels, *(unit_width for unit_width, _ in plan)]
        self.norm_of_images = norm_of_images(in_channels, method)
        self.features = nn.Sequential(
            *(
                Unit(in_width, unit_width, relu or number == len(plan), pool, method)
                for number, (in_width, (unit_width, pool)) in enumerate(zip(in_widths, plan, strict=False), start=1)
            )
        )
        in_width = in_widths[-1]
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
        logits: Tensor = self.classifier(self.pool(self.features(self.norm_of_images(x))))
        return logits


def vgg16(
    width: int = 64,
    num_projections: int = 1,
    method: str = "pcnn",
    activation_bits: int | None = None,
    num_classes: int = 1000,
    *,
    in_channels: int = 3,
    hidden: int = 4096,
    dropout: float = 0.5,
    **options: Any,
) -> VGG:
    """VGG16 with batch norm.

    hidden, dropout   of the classifier's two inner layers, which stay in float
    options           of the 1-bit layers, as for `onebit.binarize`
    """
    wide = tensor_width(width, num_projections)
    relu = has_relus(method, activation_bits)
    net = VGG(wide, num_classes, in_channels, hidden, dropout, relu, method)
    # There is no place for shortcuts in a VGG: with 'bireal' it has the layers and their gradients only.
    has_structure = method != "bireal"
    return binarized(net, method, num_projections, activation_bits, options, has_structure=has_structure)
