"""Bi-Real Net."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from onebit.convolution import AuthorsTraining, LatentConv2d, Stored, like_conv
from onebit.estimators import Sign, through
from onebit.projection import magnitude, sgn


class BiRealConv2d(LatentConv2d):
    """Bi-Real Net: a smoother gradient for the sign activations, and a shortcut round every conv.

        forward    y = conv2d(sgn(x), W_b),  W_b = alpha * sgn(W),  alpha = mean |W| over a filter, a constant
        backward   dL/dW = dL/dW_b o alpha * 1{|W| < 1}, or with magnitude_aware = False: dL/dW_b o 1{|W| <= 1}
                   dL/dx = dL/dsgn(x) o max(0, 2 - 2|x|)

    Liu, Wu, Luo, Yang, Liu, Cheng: Bi-Real Net: Enhancing the Performance of 1-bit CNNs With Improved
    Representational Capability and Advanced Training Algorithm. ECCV 2018, arXiv:1808.00278.

    The factor alpha in dL/dW is the paper's 'magnitude-aware' gradient, and magnitude_aware = True the default. The
    authors' programs leave it out: magnitude_aware = False. alpha is small, so that kernels then learn ten to
    twenty times as fast. The shortcuts are the net's affair: the package's resnet18 has them for every method, its
    WRN for this one, and `binarize` adds none. activation_bits = 32 leaves the signs of x out, for the first stage
    of a training in two.
    """

    ACTIVATION_BITS: ClassVar[tuple[int, ...]] = (1, 32)
    AUTHORS: ClassVar[AuthorsTraining] = AuthorsTraining(decays_latents=False, optimizer="adam", lr=1e-3)

    @like_conv
    def __init__(self, *conv: Any, magnitude_aware: bool = True, **more: Any) -> None:
        super().__init__(*conv, **more)
        if not isinstance(magnitude_aware, bool):
            raise ValueError(f"magnitude_aware={magnitude_aware!r}: use True or False")
        self.magnitude_aware = magnitude_aware

    def quantized_weight(self) -> Tensor:
        """Alpha * sgn(W), with the gradient of the paper or of the authors' programs."""
        W, alpha = self.weight.detach(), self.scale_of_signs()
        slope = alpha * (W.abs() < 1) if self.magnitude_aware else (W.abs() <= 1).to(W)
        return through(self.weight, alpha * sgn(W), slope)

    def scale_of_signs(self) -> Tensor:
        """Alpha."""
        return magnitude(self.weight.detach(), "kernel")

    def quantized_input(self, x: Tensor) -> Tensor:
        """sgn(x) with the derivative of a piecewise polynomial, or x if activation_bits = 32."""
        if self.activation_bits == 32:
            return x
        return _ApproxSign.apply(x)  # type: ignore[no-any-return,no-untyped-call]

    def stored(self) -> Stored:
        """A scale for each filter."""
        return Stored(self.weight.numel(), self.out_channels)

    def _options(self) -> dict[str, tuple[object, object]]:
        return super()._options() | {"magnitude_aware": (self.magnitude_aware, True)}


class _ApproxSign(Sign):
    """sgn(x), with the derivative of 2x + x^2 for -1 <= x < 0 and 2x - x^2 for 0 <= x < 1: 2 - 2|x| there."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        slope: Tensor = x.abs().mul_(-2).add_(2).relu_()  # in place: one tensor, not four
        return slope * grads[0]  # not in place: who wants second derivatives needs the slope
