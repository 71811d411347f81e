"""What a trained net takes, counted: 1-bit weights as bits, all else in 32 bits."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn
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


def bits_of(model: nn.Module) -> tuple[int, int]:
    """W and A: the bits of weights and activations of its 1-bit layers; 32 and 32 if there are none."""
    layers = [module for module in model.modules() if isinstance(module, QuantizedConv2d)]
    if not layers:
        return 32, 32
    return max(layer.weight_bits for layer in layers), max(layer.input_bits for layer in layers)
