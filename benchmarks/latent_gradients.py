"""How large the gradients of the latent kernels are as training begins, beside PCNN's.

    python -m benchmarks.latent_gradients                                    # on the digits
    python -m benchmarks.latent_gradients --data cifar10 --data-dir DATA --markdown

For each 1-bit layer of a WRN-22 with one method, |dL/dC| / |C|, C being what the optimizer moves, for one batch and
the same first weights; and by how much it is smaller than in a net of PCNN with inputs of as many bits: the median
over the layers, the least and the most. One rate for all methods lets a kernel learn slower by that.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
import torch.nn.functional as F

import onebit
from onebit.convolution import QuantizedConv2d
from onebit.data.catalog import load_data
from onebit.data.splits import DataSet
from onebit.methods import METHODS, activation_bits_of, layer_of

Ratios = tuple[float, float, float]


def relative_gradients(method: str, bits: int, data: DataSet, count: int) -> np.ndarray:
    """Of every 1-bit layer, in the order of the net."""
    torch.manual_seed(0)
    net = onebit.models.wrn22(
        16, method=method, activation_bits=bits, num_classes=data.num_classes, in_channels=data.image_shape[0],
        shortcuts="block",  # Bi-Real's own would be another net
    )  # fmt: skip
    images, labels = next(iter(data.train.batches([np.arange(count)])))
    mean, deviation = (torch.tensor(values).view(-1, 1, 1) for values in (data.mean, data.deviation))
    F.cross_entropy(net.train()((images / 255 - mean) / deviation), labels).backward()
    found = []
    for layer in net.modules():
        if isinstance(layer, QuantizedConv2d) and layer.KERNEL:
            kernel = getattr(layer, layer.KERNEL)
            found.append(float(kernel.grad.norm() / kernel.detach().norm()))
    return np.array(found)


def compared(data: DataSet, count: int) -> dict[str, Ratios]:
    """By how much each method's are smaller: median, least, most."""
    usual = {bits: relative_gradients("pcnn", bits, data, count) for bits in (1, 32)}
    found: dict[str, Ratios] = {}
    for method in METHODS:
        layer_class = layer_of(method)
        if layer_class is None or not layer_class.KERNEL or method == "pcnn":
            continue
        bits = activation_bits_of(method)
        bits = bits if bits in usual else 32
        ratios = usual[bits] / relative_gradients(method, bits, data, count)
        found[method] = (float(np.median(ratios)), float(ratios.min()), float(ratios.max()))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--data", choices=("digits", "cifar10", "cifar100"), default="digits")
    parser.add_argument("--data-dir", help="the folder that holds it ($ONEBIT_DATA)")
    parser.add_argument("--images", type=int, default=512, help="of the batch (512)")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    data = load_data(arguments.data, arguments.data_dir)
    rows: list[tuple[str, ...]] = [("method", "median", "least", "most")]
    rows += [(m, *(f"{ratio:.1f}" for ratio in found)) for m, found in compared(data, arguments.images).items()]
    for number, row in enumerate(rows):
        print(f"| {' | '.join(row)} |" if arguments.markdown else "{:<14}{:>8}{:>8}{:>8}".format(*row))
        if arguments.markdown and number == 0:
            print("|---|---:|---:|---:|")


if __name__ == "__main__":
    main()
