"""What a trained net takes, counted: 1-bit weights as bits, all else in 32 bits."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from onebit.convolution import QuantizedConv2d


class Storage(NamedTuple):
    """Learned parameters, and what is to be kept of the trained net: bits, and numbers of 32 bits."""

    parameters: int
    bits: int
    floats: int

    @property
    def bytes(self) -> int:
        """Of all of it."""
        return -(-self.bits // 8) + 4 * self.floats

    def __str__(self) -> str:
        kept = f"{self.bits:,} bits and {self.floats:,} numbers of 32 bits"
        return f"{self.parameters:,} parameters; trained, {self.bytes:,} bytes: {kept}"


def storage(model: nn.Module) -> Storage:
    """Count what a trained model takes.

    A 1-bit layer says itself what it needs (PCNN: the bits of C once, J masks of k x k bits, the scale). A batch
    norm is two numbers a channel, since it folds into a multiplication and an addition. Shared parameters count
    once.
    """
    seen: set[int] = set()
    bits = floats = 0
    for module in model.modules():
        if isinstance(module, QuantizedConv2d):
            kernel = module._parameters.get(module.KERNEL or "")  # noqa: SLF001
            if kernel is None or id(kernel) not in seen:
                kept = module.stored()
                bits, floats = bits + kept.bits, floats + kept.floats
            if module.bias is not None and id(module.bias) not in seen:
                floats += module.bias.numel()
        elif isinstance(module, _BatchNorm):
            floats += 2 * module.num_features
        else:
            own = [p for p in module.parameters(recurse=False) if id(p) not in seen]
            floats += sum(parameter.numel() for parameter in own)
        seen |= {id(parameter) for parameter in module.parameters(recurse=False)}
    return Storage(sum(parameter.numel() for parameter in model.parameters()), bits, floats)


def binary_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The 1-bit kernels of a net as what they are: int8 tensors of -1 and +1, and their scales.

    For each 1-bit layer 'NAME.weight' (out_channels, in_channels / groups, k, k) and 'NAME.scale' (() or
    (out_channels,)), which multiplies it; of a sum of several, 'NAME.weight.0', ...; MCN's 'NAME.modulation'
    multiplies the taps as well. A net from a file has a method of the same name.
    """
    found: dict[str, Tensor] = {}
    for name, layer in model.named_modules():
        terms = layer.kernels() if isinstance(layer, QuantizedConv2d) else []
        for number, term in enumerate(terms):
            suffix = f".{number}" if len(terms) > 1 else ""
            J = layer.num_projections
            weight = term.signs.repeat_interleave(J, dim=0)
            if term.masks is not None:
                weight *= term.masks.repeat(len(term.signs), 1, 1).unsqueeze(1)
            found[f"{name}.weight{suffix}"] = weight.to(torch.int8)
            found[f"{name}.scale{suffix}"] = term.scale
            if term.modulation is not None:
                found[f"{name}.modulation{suffix}"] = term.modulation
    return found


def bits_of(model: nn.Module) -> tuple[int, int]:
    """W and A: the bits of weights and activations of its 1-bit layers; 32 and 32 if there are none."""
    layers = [module for module in model.modules() if isinstance(module, QuantizedConv2d)]
    if not layers:
        return 32, 32
    return max(layer.weight_bits for layer in layers), max(layer.input_bits for layer in layers)
