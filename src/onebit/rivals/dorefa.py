"""DoReFa-Net."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from onebit.convolution import AuthorsTraining, LatentConv2d, Stored
from onebit.estimators import through, where_within
from onebit.projection import magnitude, sgn


class DoReFaConv2d(LatentConv2d):
    """DoReFa-Net with 1-bit weights and activations of k bits: activation_bits = 4, 2 to 8, or 32 (floats).

        forward    y = conv2d(x_q, W_b),  W_b = sgn(W) * mean |W| over the layer
                   x_q = round((2^k - 1) * clip(x, 0, 1)) / (2^k - 1), halves to the even neighbour
        backward   dL/dW = dL/dW_b;  dL/dx = dL/dx_q o 1{0 <= x <= 1}

    Zhou, Wu, Ni, Zhou, Wen, Zou: DoReFa-Net: Training Low Bitwidth Convolutional Neural Networks with Low Bitwidth
    Gradients. 2016, arXiv:1606.06160.

    Gradients are not quantised (the paper's G = 32), as in the comparisons that quote it.
    """

    ACTIVATION_BITS: ClassVar[tuple[int, ...]] = (4, 2, 3, 5, 6, 7, 8, 32)
    # Their program decays the linear layers alone.
    AUTHORS: ClassVar[AuthorsTraining] = AuthorsTraining(decays_latents=False, optimizer="adam", lr=1e-4)

    def quantized_weight(self) -> Tensor:
        """sgn(W) * mean |W|, with the gradient passed straight through."""
        return through(self.weight, sgn(self.weight) * self.scale_of_signs())

    def scale_of_signs(self) -> Tensor:
        """Mean |W| over the layer."""
        return magnitude(self.weight.detach())

    def quantized_input(self, x: Tensor) -> Tensor:
        """x_q, or x if activation_bits = 32."""
        if self.activation_bits == 32:
            return x
        return _Round.apply(x, 2**self.activation_bits - 1)  # type: ignore[no-any-return,no-untyped-call]

    def input_code(self) -> int | None:
        """0 to 2^k - 1, or floats."""
        return None if self.activation_bits == 32 else 2**self.activation_bits - 1

    def stored(self) -> Stored:
        """One scale."""
        return Stored(self.weight.numel(), 1)


class _Round(torch.autograd.Function):
    """The nearest of the numbers 0, 1/steps, ..., 1."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, steps: int) -> Tensor:
        return x.clamp(0, 1).mul_(steps).round_().div_(steps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return where_within(grads[0], x, 0.0, 1.0), None
