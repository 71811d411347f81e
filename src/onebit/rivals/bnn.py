"""BNN."""

from __future__ import annotations

from typing import ClassVar

from onebit.convolution import AuthorsTraining
from onebit.rivals.binaryconnect import BinaryConnectConv2d


class BnnConv2d(BinaryConnectConv2d):
    """BNN: BinaryConnect with sign activations.

        forward    y = conv2d(sgn(x), sgn(W))
        backward   dL/dW = dL/dsgn(W);  dL/dx = dL/dsgn(x) o 1{|x| <= 1}
        step       W <- clip(W, -1, 1)

    Hubara, Courbariaux, Soudry, El-Yaniv, Bengio: Binarized Neural Networks. NeurIPS 2016, arXiv:1602.02830.

    This is its deterministic form, with ordinary batch norm in place of the paper's shift-based one. What is told
    of the authors' training is from their first program. A later one of theirs, for residual nets, has Adam from
    5e-3 on, no factor for the rate of W, and weights that begin as a float conv's.
    activation_bits = 32 leaves the signs of x out, for the first stage of a training in two.
    """

    ACTIVATION_BITS: ClassVar[tuple[int, ...]] = (1, 32)
    AUTHORS: ClassVar[AuthorsTraining] = AuthorsTraining(
        clips_latents=True, decays_latents=False, optimizer="adam", lr=1e-3, latent_rate="glorot"
    )
