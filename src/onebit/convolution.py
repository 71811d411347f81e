"""What all 1-bit convolutions share: the geometry and call of `nn.Conv2d`, and sgn of the input."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onebit.projection import sgn

Size = int | tuple[int, ...]


class _Sign(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return sgn(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(inputs[0].abs() <= 1)  # a byte a value, where x itself would be four

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (mask,) = ctx.saved_tensors
        masked: Tensor = grads[0] * mask
        return masked


def binarize_activation(x: Tensor) -> Tensor:
    """sgn(x), sgn(0) = +1, with pseudo-gradient 1{|x| <= 1} (Algorithm 1, line 7)."""
    return _Sign.apply(x)  # type: ignore[no-any-return,no-untyped-call]


class QuantizedConv2d(nn.Module):
    """`nn.Conv2d` with a weight that is computed: subclasses say how in `quantized_weight`."""

    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = False,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation_bits: int = 32,
    ) -> None:
        super().__init__()
        for name, count in (("in_channels", in_channels), ("out_channels", out_channels), ("groups", groups)):
            if count < 1:
                raise ValueError(f"{name}={count}: use at least 1")
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"groups={groups}: must divide in_channels={in_channels} and {out_channels=}")
        if activation_bits not in {1, 32}:
            raise ValueError(f"activation_bits={activation_bits}: train with 1 or 32 (8 is a choice at export)")
        if padding_mode not in {"zeros", "reflect", "replicate", "circular"}:
            raise ValueError(f"padding_mode={padding_mode!r}: use 'zeros', 'reflect', 'replicate' or 'circular'")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = _pair("kernel_size", kernel_size, least=1)
        self.stride = _pair("stride", stride, least=1)
        self.dilation = _pair("dilation", dilation, least=1)
        if isinstance(padding, str):
            if padding not in {"same", "valid"}:
                raise ValueError(f"padding={padding!r}: use a number, a pair, 'same' or 'valid'")
            if padding == "same" and self.stride != (1, 1):
                raise ValueError(f"padding='same' with stride={stride}: use stride 1, or a number as padding")
            self.padding: tuple[int, int] | str = padding
        else:
            self.padding = _pair("padding", padding, least=0)
        self.padding_mode = padding_mode
        self.activation_bits = activation_bits
        made = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", made)

    def quantized_weight(self) -> Tensor:
        """The weight of the convolution, (out_channels, in_channels / groups, k, k), differentiable."""
        raise NotImplementedError

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 as nn.Conv2d names it
        """conv2d(input or its sign, quantized weight); zero padding stays 0, it has no sign."""
        x = binarize_activation(input) if self.activation_bits == 1 else input
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            x, padding = F.pad(x, self._padding_per_side(), mode=self.padding_mode), 0
        return F.conv2d(x, self.quantized_weight(), self.bias, self.stride, padding, self.dilation, self.groups)

    def _padding_per_side(self) -> list[int]:
        """F.pad's order: left, right, top, bottom."""
        if isinstance(self.padding, str):
            reach = zip(self.dilation, self.kernel_size, strict=True)
            totals = [d * (k - 1) if self.padding == "same" else 0 for d, k in reach]
            sides = [(total // 2, total - total // 2) for total in totals]
        else:
            sides = [(p, p) for p in self.padding]
        return [*sides[1], *sides[0]]

    def _options(self) -> dict[str, tuple[object, object]]:
        """Each argument's name with its value and its default, for `repr`."""
        return {
            "stride": (self.stride, (1, 1)),
            "padding": (self.padding, (0, 0)),
            "dilation": (self.dilation, (1, 1)),
            "groups": (self.groups, 1),
            "bias": (self.bias is not None, False),
            "padding_mode": (self.padding_mode, "zeros"),
            "activation_bits": (self.activation_bits, 32),
        }

    def extra_repr(self) -> str:
        """The arguments that differ from their defaults."""
        given = [f"{name}={value!r}" for name, (value, default) in self._options().items() if value != default]
        return ", ".join([f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}", *given])


def _pair(name: str, size: Size, least: int) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or min(pair) < least:
        raise ValueError(f"{name}={size!r}: use a number or a pair of numbers of at least {least}")
    return pair[0], pair[1]
