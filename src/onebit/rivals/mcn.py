"""MCN."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from onebit.convolution import (
    Kernels,
    OwnLoss,
    QuantizedConv2d,
    Stored,
    check_multiplicity,
    like_conv,
    reset_like_conv,
)
from onebit.estimators import through
from onebit.projection import concatenate, sgn, sum_over_j


class ModulatedConv2d(QuantizedConv2d):
    """MCN: signs of the kernels, modulated by K learned positive matrices M_j that all kernels share.

        forward    y = conv2d(x, Q),  row o*K + j of Q is C_hat[o] o M_j,  C_hat = sgn(C)
        backward   dL_S/dC = sum_j dL_S/dQ_j o M_j;  dL_S/dM_j = sum over kernels and planes of dL_S/dQ_j o C_hat
                   L_M = theta/2 * sum over kernels and j of ||C - C_hat o M_j||^2, C_hat a constant:
                   dL_M/dC = theta * sum_j (C - C_hat o M_j)
                   dL_M/dM_j = -theta * sum over kernels and planes of (C - C_hat o M_j) o C_hat
        step       M <- |M|

    Wang, Zhang, Li, Ji, Han, Cao, Liu: Modulated Convolutional Networks. CVPR 2018.

    num_projections = K; theta = 1e-3. C is (O, in / groups, k, k) with O = out_channels / K, M is (K, k, k), laid
    out as PCNN's C and W are. L_M joins the gradients at the optimizer's step, as PCNN's L_P does. Deviation: the
    paper's second loss, which draws the features of a class together, is the net's affair and left out. The paper
    gives no first values for M: it begins as mean |C|, for K > 1 times random numbers from 1/2 to 3/2.
    """

    ACTIVATION_BITS: ClassVar[tuple[int, ...]] = (32,)
    KERNEL, MATRIX = "C", "M"

    @like_conv
    def __init__(self, *conv: Any, num_projections: int = 1, theta: float = 1e-3, **more: Any) -> None:
        if not isinstance(theta, int | float) or not (math.isfinite(theta) and theta >= 0):
            raise ValueError(f"theta={theta!r}: use a finite number >= 0 (0 turns L_M off)")
        self.num_projections, self.theta = num_projections, theta
        super().__init__(*conv, **more)

    def _make_parameters(self, device: Any, dtype: Any) -> None:
        check_multiplicity("num_projections", self.num_projections, self.out_channels, self.groups)
        shape = (self.out_channels // self.num_projections, self.in_channels // self.groups, *self.kernel_size)
        self.C = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.M = nn.Parameter(torch.empty(self.num_projections, *self.kernel_size, device=device, dtype=dtype))
        reset_like_conv(self.C, self.bias)
        self._reset_m()

    @torch.no_grad()
    def _reset_m(self) -> None:
        if self.M.is_meta:  # to look at only: no random numbers are taken
            return
        spread = torch.rand(self.M.shape) + 0.5 if self.num_projections > 1 else torch.ones(self.M.shape)
        self.M.copy_(spread.to(self.M) * self.C.abs().mean())

    def quantized_weight(self) -> Tensor:
        """Q (out_channels, in_channels / groups, k, k); differentiable."""
        C_hat = through(self.C, sgn(self.C))
        return concatenate(C_hat.unsqueeze(1) * self.M.unsqueeze(1))

    @torch.no_grad()
    def kernels(self) -> list[Kernels]:
        """Signs of C with K modulations."""
        return [Kernels(sgn(self.C), self.C.new_ones(()), modulation=self.M.detach())]

    @torch.no_grad()
    def own_loss(self) -> OwnLoss | None:
        """L_M and its gradients."""
        if self.theta == 0:
            return None
        C_hat = sgn(self.C).unsqueeze(1)
        r = self.C.unsqueeze(1) - C_hat * self.M.unsqueeze(1)
        gradients = {"C": self.theta * sum_over_j(r), "M": -self.theta * (r * C_hat).sum(dim=(0, 2))}
        return OwnLoss(self.theta / 2 * r.square().sum(), gradients)

    @torch.no_grad()
    def constrain(self) -> None:
        """M <- |M|: the signs are C's."""
        self.M.abs_()

    def carry_over(self, weight: nn.Parameter) -> None:
        """C as for every method; M follows its size."""
        super().carry_over(weight)
        self._reset_m()

    def stored(self) -> Stored:
        """The bits of C, and M in 32 bits."""
        return Stored(self.C.numel(), self.M.numel())

    def _options(self) -> dict[str, tuple[object, object]]:
        mine: dict[str, Any] = {"num_projections": (self.num_projections, 1), "theta": (self.theta, 1e-3)}
        return super()._options() | mine
