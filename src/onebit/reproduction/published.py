"""What the paper reports, number by number. Accuracies in percent."""

from __future__ import annotations

from typing import NamedTuple

LAMBDAS = (1e-3, 1e-4, 1e-5, 0.0)
# Table 2, on CIFAR-10: the columns are LAMBDAS.
LAMBDA_TOP1 = {"wrn22": (91.92, 92.79, 92.24, 91.52), "wrn40": (92.85, 93.78, 93.65, 92.84)}


class CifarRow(NamedTuple):
    """A row of Table 3. The 14.02M of five rivals are of other nets, from which the paper quotes them."""

    model: str
    parameters: str
    cifar10: float
    cifar100: float | None
    method: str
    width: int  # of our net: the paper's i, and for the rivals what has about the parameters of PCNN
    projections: int = 1


CIFAR = (
    CifarRow("WRN (i = 16)", "0.27M", 92.62, 68.83, "float", 16),
    CifarRow("WRN (i = 64)", "4.29M", 95.75, 77.34, "float", 64),
    CifarRow("BinaryConnect", "14.02M", 91.73, None, "binaryconnect", 64),
    CifarRow("BNN", "14.02M", 89.85, None, "bnn", 64),
    CifarRow("LBCNN", "14.02M", 92.99, None, "lbcnn", 64),
    CifarRow("BWN", "14.02M", 90.12, None, "bwn", 64),
    CifarRow("XNOR-Net", "14.02M", 89.83, None, "xnor", 64),
    CifarRow("McDonnell", "4.30M", 93.87, 76.13, "mcdonnell", 64),
    CifarRow("PCNN (i = 16, J = 1)", "0.27M", 89.17, 62.66, "pcnn", 16),
    CifarRow("PCNN (i = 16, J = 2)", "0.54M", 91.27, 66.86, "pcnn", 16, 2),
    CifarRow("PCNN (i = 16, J = 4)", "1.07M", 92.79, 70.09, "pcnn", 16, 4),
    CifarRow("PCNN (i = 64, J = 1)", "4.29M", 94.31, 76.93, "pcnn", 64),
    CifarRow("PCNN (i = 64, J = 4)", "17.16M", 95.39, 78.13, "pcnn", 64, 4),
)


class ImagenetRow(NamedTuple):
    """A row of Table 4."""

    model: str
    bits: str
    top1: float
    top5: float
    net: str
    method: str
    activation_bits: int | None = None  # None: the method's own
    projections: int = 1


IMAGENET = (
    ImagenetRow("Resnet18", "32/32", 69.3, 89.2, "resnet18", "float"),
    ImagenetRow("BWN", "1/32", 60.8, 83.0, "resnet18", "bwn"),
    ImagenetRow("DoReFa-Net", "1/4", 59.2, 81.5, "resnet18", "dorefa"),
    ImagenetRow("XNOR-Net", "1/1", 51.2, 73.2, "resnet18", "xnor"),
    ImagenetRow("ABC-Net", "1/1", 42.7, 67.6, "resnet18", "abc"),
    ImagenetRow("BNN", "1/1", 42.2, 67.1, "resnet18", "bnn"),
    ImagenetRow("Bi-Real Net", "1/1", 56.4, 79.5, "resnet18", "bireal"),
    ImagenetRow("PCNN, J = 1", "1/32", 63.5, 85.1, "resnet18", "pcnn", 32),
    ImagenetRow("PCNN, J = 2", "1/32", 66.1, 86.7, "resnet18", "pcnn", 32, 2),
    ImagenetRow("PCNN, J = 1", "1/1", 57.3, 80.0, "resnet18", "pcnn", 1),
    ImagenetRow("VGG16", "32/32", 73.0, 91.2, "vgg16", "float"),
    ImagenetRow("PCNN on VGG16, J = 1", "1/32", 69.0, 89.1, "vgg16", "pcnn", 32),
)

# Table 5: Mbit of Resnet18 in float and as PCNN (J = 1) or XNOR-Net, the saving, and XNOR-Net's own speed-up.
MEMORY = {"float_mbit": 374.1, "pcnn_mbit": 33.7, "saving": 11.10, "speedup": 58.0}
