"""Steps with a pseudo-gradient: what 1-bit layers use where the derivative is 0 or does not exist."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from onebit.projection import sgn


def through(latent: Tensor, value: Tensor, slope: Tensor | float = 1.0) -> Tensor:
    """`value`, with the pseudo-gradient dL/dlatent = dL/dvalue o slope; value and slope are constants.

    What is added to value is exactly 0 unless a latent weight is NaN or infinite: sgn would hide it behind a +-1
    that looks healthy, so it must come out as NaN.
    """
    value = value.detach()
    passed = latent - latent.detach()
    if isinstance(slope, Tensor):
        return value + passed * slope.detach()
    return value + (passed if slope == 1 else passed * slope)


class Sign(torch.autograd.Function):
    """sgn(x) with pseudo-gradient 1{|x| <= 1}; a subclass may have another backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """sgn(x)."""
        return sgn(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG004
        """The gradient depends on x."""
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """The gradient where |x| <= 1."""
        (x,) = ctx.saved_tensors
        return where_within(grads[0], x, -1.0, 1.0)


def binarize_activation(x: Tensor) -> Tensor:
    """sgn(x), sgn(0) = +1, with pseudo-gradient 1{|x| <= 1} (Algorithm 1, line 7)."""
    return Sign.apply(x)  # type: ignore[no-any-return,no-untyped-call]


def where_within(grad: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    """Grad where low <= x <= high, 0 elsewhere; one pass, where a mask and a product take three.

    The derivative of hardtanh is 0 at both ends of its range, so its range is made one step wider.
    """
    below, above = _neighbour(low, -math.inf, x.dtype), _neighbour(high, math.inf, x.dtype)
    return torch.ops.aten.hardtanh_backward(grad, x, below, above)  # type: ignore[no-any-return]


def _neighbour(number: float, towards: float, dtype: torch.dtype) -> float:
    """The next float64, or the next float32 for what is compared in float32 (which float16 and bfloat16 are)."""
    if dtype == torch.float64:
        return math.nextafter(number, towards)
    step = {0.0: 1e-45, 1.0: 2.0**-23}[abs(number)]  # of float32, outwards; torch.nextafter would be a tensor
    return number + math.copysign(step, towards)
