"""How many bits of the kernels change: a net whose bits stand still no longer learns."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from onebit.convolution import QuantizedConv2d


def sign_bits(net: nn.Module) -> dict[str, Tensor]:
    """The signs of every 1-bit layer's kernels (and of its matrices W), eight to a byte."""
    return {name: _packed(parameter) for name, (_, parameter) in _learned(net).items()}


def _learned(net: nn.Module) -> dict[str, tuple[str, Tensor]]:
    """By name: what a parameter is, and the parameter."""
    found = {}
    for name, layer in net.named_modules():
        if isinstance(layer, QuantizedConv2d):
            for own, kind in ((layer.KERNEL, "kernels"), (layer.MATRIX, "projections")):
                if own is not None:
                    found[f"{name}.{own}"] = (kind, getattr(layer, own))
    return found


def _packed(parameter: Tensor) -> Tensor:
    return torch.from_numpy(np.packbits((parameter.detach() >= 0).cpu().numpy()))


def flipped(before: dict[str, Tensor], net: nn.Module) -> dict[str, float]:
    """The share of kernels' and of projection matrices' bits that are others than before."""
    counts = {"kernels": [0, 0], "projections": [0, 0]}
    for name, (kind, parameter) in _learned(net).items():
        counts[kind][0] += int(np.unpackbits((_packed(parameter) ^ before[name]).numpy()).sum())
        counts[kind][1] += parameter.numel()
    return {f"flipped_{kind}": changed / of for kind, (changed, of) in counts.items() if of}
