"""XNOR-Net."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from onebit.convolution import AuthorsTraining, like_conv
from onebit.rivals.bwn import BwnConv2d


class XnorConv2d(BwnConv2d):
    """XNOR-Net: BWN with sign activations; the block's order is BN, sign, conv.

        forward    y = conv2d(sgn(x), W_b) o K,  W_b = alpha * sgn(W),  alpha = mean |W| over a filter
                   K = 1, or with scale_map = True: the mean of |x| over the channels and the window of each output
        backward   dL/dW = dL/dW_b o (alpha * 1{|W| < 1} + 1/n);  dL/dx = dL/dsgn(x) o 1{|x| <= 1}
        step       W <- clip(W - mean of W over the input channels, -1, 1)

    Rastegari, Ordonez, Redmon, Farhadi: XNOR-Net: ImageNet Classification Using Binary Convolutional Neural
    Networks. ECCV 2016, arXiv:1603.05279.

    scale_map is False by default: the authors found that K hardly matters. Where it is used it is a constant for
    the gradient, about which the paper says nothing; zero padding counts in its mean, as 0; the channels are those
    of the output's group. The rest is as for BWN. `binarize` keeps the order that a net has; the package's nets
    have BN, sign, conv. activation_bits = 32 leaves the signs of x out, for the first stage of a training in two.
    """

    ACTIVATION_BITS: ClassVar[tuple[int, ...]] = (1, 32)
    AUTHORS: ClassVar[AuthorsTraining] = AuthorsTraining(
        clips_latents=True, optimizer="adam", lr=1e-3, latent_rate="n(1-1/in)"
    )

    @like_conv
    def __init__(self, *conv: Any, scale_map: bool = False, **more: Any) -> None:
        super().__init__(*conv, **more)
        if not isinstance(scale_map, bool):
            raise ValueError(f"scale_map={scale_map!r}: use True or False")
        if scale_map and self.activation_bits == 32:
            raise ValueError("scale_map=True: it scales 1-bit activations, use it with activation_bits=1")
        self.scale_map = scale_map

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 as nn.Conv2d names it
        """The convolution of the signs, times K if asked for."""
        if not self.scale_map:
            return super().forward(input)
        y = self.convolve(self.quantized_input(input), self.quantized_weight()) * self.input_scale(input)
        return y if self.bias is None else y + self.bias.view(-1, 1, 1)

    @torch.no_grad()
    def input_scale(self, x: Tensor) -> Tensor:
        """K: (N, out_channels, H', W'), equal within a group."""
        group_in, group_out = self.in_channels // self.groups, self.out_channels // self.groups
        window = torch.full(
            (self.groups, group_in, *self.kernel_size), 1 / self.weight[0].numel(), dtype=x.dtype, device=x.device
        )
        return self.convolve(x.abs(), window).repeat_interleave(group_out, dim=-3)

    def _options(self) -> dict[str, tuple[object, object]]:
        return super()._options() | {"scale_map": (self.scale_map, False)}
