"""What becomes of the kernels while a net learns: which of their bits change, and how their numbers are spread.

A net whose bits stand still no longer learns; one whose kernels gather around -a and +a loses little when they
become bits (the paper's histograms).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from onebit.convolution import QuantizedConv2d

BINS = 64
REACH = 4.0  # histograms go from -REACH * a to REACH * a; what is beyond counts at their ends


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


def _changed(before: Tensor, parameter: Tensor) -> int:
    return int(np.unpackbits((_packed(parameter) ^ before).numpy()).sum())


def flipped(before: dict[str, Tensor], net: nn.Module) -> dict[str, float]:
    """The share of kernels' and of projection matrices' bits that are others than before."""
    counts = {"kernels": [0, 0], "projections": [0, 0]}
    for name, (kind, parameter) in _learned(net).items():
        counts[kind][0] += _changed(before[name], parameter)
        counts[kind][1] += parameter.numel()
    return {f"flipped_{kind}": changed / of for kind, (changed, of) in counts.items() if of}


@torch.no_grad()
def histograms(before: dict[str, Tensor], net: nn.Module) -> dict[str, dict[str, Any]]:
    """Of every 1-bit layer's kernels, for a run's records.

    a         mean |C|
    scale     what the bits are multiplied with, on average; None if a weight does not become one bit
    flipped   the share of bits that are others than before
    counts    how many numbers there are in each of BINS parts of -REACH * a to REACH * a
    """
    found = {}
    for name, layer in net.named_modules():
        if isinstance(layer, QuantizedConv2d) and layer.KERNEL is not None:
            C = getattr(layer, layer.KERNEL).detach().float()
            a = float(C.abs().mean())
            spread = (C / max(a, 1e-30)).clamp(-REACH, REACH)
            found[name] = {
                "a": a,
                "scale": _scale(layer),
                "flipped": _changed(before[f"{name}.{layer.KERNEL}"], C) / C.numel(),
                "counts": torch.histc(spread.cpu(), BINS, -REACH, REACH).int().tolist(),
            }
    return found


def _scale(layer: QuantizedConv2d) -> float | None:
    """What its bits are multiplied with, on average; None if a weight is not one bit."""
    kernels = layer.kernels()
    if len(kernels) != 1:
        return None
    (own,) = kernels
    return float(own.scale.float().mean() if own.modulation is None else own.modulation.float().abs().mean())
