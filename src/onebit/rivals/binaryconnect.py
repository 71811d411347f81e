"""BinaryConnect."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from onebit.convolution import AuthorsTraining, LatentConv2d
from onebit.estimators import through
from onebit.projection import sgn


class BinaryConnectConv2d(LatentConv2d):
    """BinaryConnect: weights +-1 without a scale, float activations.

        forward    y = conv2d(x, sgn(W))
        backward   dL/dW = dL/dsgn(W)
        step       W <- clip(W, -1, 1)

    Courbariaux, Bengio, David: BinaryConnect: Training Deep Neural Networks with binary weights during
    propagations. NeurIPS 2015, arXiv:1511.00363.

    This is its deterministic form. Deviation: the paper scales each layer's learning rate by Glorot's
    initialisation factor (with SGD by its square); here that is a choice, `kernel_rate="authors"`
    (`onebit.parameter_groups`).
    """

    ACTIVATION_BITS: ClassVar[tuple[int, ...]] = (32,)
    AUTHORS: ClassVar[AuthorsTraining] = AuthorsTraining(
        clips_latents=True, decays_latents=False, optimizer="adam", lr=3e-3, latent_rate="glorot"
    )

    def quantized_weight(self) -> Tensor:
        """sgn(W), with the gradient passed straight through."""
        return through(self.weight, sgn(self.weight))

    @torch.no_grad()
    def constrain(self) -> None:
        """W <- clip(W, -1, 1): beyond, a weight would go on growing without changing its sign."""
        self.weight.clamp_(-1, 1)
