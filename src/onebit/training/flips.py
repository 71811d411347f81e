"""How many bits of the kernels change: a net whose bits stand still no longer learns."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from onebit.convolution import QuantizedConv2d

LEARNED = {"C": "kernels", "W": "projections"}


def sign_bits(net: nn.Module) -> dict[str, Tensor]:
    """The signs of every 1-bit layer's C and W, eight to a byte."""
    found = {}
    for name, module in net.named_modules():
        if isinstance(module, QuantizedConv2d):
            for kind, parameter in module.named_parameters(recurse=False):
                if kind in LEARNED:
                    bits = np.packbits((parameter.detach() >= 0).cpu().numpy())
                    found[f"{name}.{kind}"] = torch.from_numpy(bits)
    return found


def flipped(before: dict[str, Tensor], net: nn.Module) -> dict[str, float]:
    """The share of kernels' and of projection matrices' bits that are others than before."""
    now = sign_bits(net)
    counts = {what: [0, 0] for what in LEARNED.values()}
    sizes = {name: parameter.numel() for name, parameter in net.named_parameters()}
    for name, bits in now.items():
        count = counts[LEARNED[name.rsplit(".", 1)[1]]]
        count[0] += int(np.unpackbits((bits ^ before[name]).numpy()).sum())
        count[1] += sizes[name]
    return {f"flipped_{what}": changed / of for what, (changed, of) in counts.items() if of}
