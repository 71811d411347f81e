"""Binary-Weight-Networks."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from onebit.convolution import AuthorsTraining, LatentConv2d, Stored
from onebit.estimators import through
from onebit.projection import magnitude, sgn


class BwnConv2d(LatentConv2d):
    """BWN: weights +-alpha with a scale for each filter, float activations.

        forward    y = conv2d(x, W_b),  W_b = alpha * sgn(W),  alpha = mean |W| over a filter
        backward   dL/dW = dL/dW_b o (alpha * 1{|W| < 1} + 1/n)
        step       W <- clip(W - mean of W over the input channels, -1, 1)

    Rastegari, Ordonez, Redmon, Farhadi: XNOR-Net: ImageNet Classification Using Binary Convolutional Neural
    Networks. ECCV 2016, arXiv:1603.05279.

    The paper's 1/n stands for the derivative of alpha and keeps its diagonal only; the step, and that the mask is
    strict, are from the authors' program, not from the paper. That program multiplies the gradient by
    n * (1 - 1/in) besides, which rescales the learning rate: here that is a choice, `kernel_rate="authors"`
    (`onebit.parameter_groups`). With one input channel the mean is the weight itself: it is not taken away.
    """

    ACTIVATION_BITS: ClassVar[tuple[int, ...]] = (32,)
    # Their program decays all weights in the first 29 of 55 epochs.
    AUTHORS: ClassVar[AuthorsTraining] = AuthorsTraining(clips_latents=True, lr=1e-2, latent_rate="n(1-1/in)")

    def quantized_weight(self) -> Tensor:
        """Alpha * sgn(W), with the paper's gradient."""
        W, alpha = self.weight.detach(), self.scale_of_signs()
        slope = alpha * (W.abs() < 1) + 1 / W[0].numel()
        return through(self.weight, alpha * sgn(W), slope)

    def scale_of_signs(self) -> Tensor:
        """Alpha."""
        return magnitude(self.weight.detach(), "kernel")

    @torch.no_grad()
    def constrain(self) -> None:
        """Centre over the input channels, then clip."""
        if self.weight.shape[1] > 1:
            self.weight.sub_(self.weight.mean(dim=1, keepdim=True))
        self.weight.clamp_(-1, 1)

    def stored(self) -> Stored:
        """A scale for each filter."""
        return Stored(self.weight.numel(), self.out_channels)
