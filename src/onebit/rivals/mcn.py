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

LEAST_M, MOST_M = 0.1, 10.0


class ModulatedConv2d(QuantizedConv2d):
    """MCN: signs of the kernels, modulated by K learned positive matrices M_j that all kernels share.

        forward    y = conv2d(x, Q),  row o*K + j of Q is C_hat[o] o M_j,  C_hat = b * sgn(C)
        backward   dL_S/dC = sum_j dL_S/dQ_j o M_j;  dL_S/dM_j = sum over kernels and planes of dL_S/dQ_j o C_hat
                   L_M = theta/2 * sum over kernels and j of ||C - C_hat o M_j||^2, C_hat a constant:
                   dL_M/dC = theta * sum_j (C - C_hat o M_j)
                   dL_M/dM_j = -theta * sum over kernels and planes of (C - C_hat o M_j) o C_hat
        step       M <- clip(|M|, 1/10, 10)

    Wang, Zhang, Li, Ji, Han, Cao, Liu: Modulated Convolutional Networks. CVPR 2018.

    num_projections = K; theta = 1e-4. C is (O, in / groups, k, k) with O = out_channels / K, M is (K, k, k), laid
    out as PCNN's C and W are. L_M joins the gradients at the optimizer's step, as PCNN's L_P does.

    b, the size of a bit, is a number of the layer that does not learn: mean |C| as C begins. M begins at 1, for
    K > 1 at random numbers from 1/2 to 3/2. So M stays near 1 and carries no size of the kernels: what reaches C
    is multiplied by M, and were M as small as the kernels are, C would hardly learn. As the paper has it, dL_S/dC
    is without b. Of theta the authors show several values that do about as well as each other. In public code
    for the method theta is 1e-4, b is 0.02 for every layer, and M begins as standard normal numbers and is taken
    as |M|. Deviation: b follows each layer's kernels, so that nets without a norm and those that begin from
    trained weights keep their sizes; M begins nearer to 1 and is bounded on both sides; the paper's second loss,
    which draws the features of a class together, is the net's affair and left out.
    """

    ACTIVATION_BITS: ClassVar[tuple[int, ...]] = (32,)
    KERNEL, MATRIX = "C", "M"
    REVISION: ClassVar[int] = 2  # first M had the size of a bit in itself
    b: Tensor

    @like_conv
    def __init__(self, *conv: Any, num_projections: int = 1, theta: float = 1e-4, **more: Any) -> None:
        if not isinstance(theta, int | float) or not (math.isfinite(theta) and theta >= 0):
            raise ValueError(f"theta={theta!r}: use a finite number >= 0 (0 turns L_M off)")
        self.num_projections, self.theta = num_projections, theta
        super().__init__(*conv, **more)

    def _make_parameters(self, device: Any, dtype: Any) -> None:
        check_multiplicity("num_projections", self.num_projections, self.out_channels, self.groups)
        shape = (self.out_channels // self.num_projections, self.in_channels // self.groups, *self.kernel_size)
        self.C = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.M = nn.Parameter(torch.empty(self.num_projections, *self.kernel_size, device=device, dtype=dtype))
        self.register_buffer("b", torch.empty((), device=device, dtype=dtype))
        reset_like_conv(self.C, self.bias)
        self._measure_b()
        self._reset_m()

    @torch.no_grad()
    def _measure_b(self) -> None:
        """The size of a bit, from C as it is now; kernels that are all 0 have none, and learn from any."""
        size = self.C.abs().mean()
        self.b.copy_(torch.where(size > 0, size, torch.ones_like(size)))

    @torch.no_grad()
    def _reset_m(self) -> None:
        if self.M.is_meta:  # to look at only: no random numbers are taken
            return
        spread = torch.rand(self.M.shape) + 0.5 if self.num_projections > 1 else torch.ones(self.M.shape)
        self.M.copy_(spread)

    def quantized_weight(self) -> Tensor:
        """Q (out_channels, in_channels / groups, k, k); differentiable."""
        C_hat = through(self.C, self.b * sgn(self.C))
        return concatenate(C_hat.unsqueeze(1) * self.M.unsqueeze(1))

    @torch.no_grad()
    def kernels(self) -> list[Kernels]:
        """Signs of C with K modulations b * M_j."""
        return [Kernels(sgn(self.C), self.C.new_ones(()), modulation=self.b * self.M.detach())]

    @torch.no_grad()
    def own_loss(self) -> OwnLoss | None:
        """L_M and its gradients."""
        if self.theta == 0:
            return None
        C_hat = (self.b * sgn(self.C)).unsqueeze(1)
        r = self.C.unsqueeze(1) - C_hat * self.M.unsqueeze(1)
        gradients = {"C": self.theta * sum_over_j(r), "M": -self.theta * (r * C_hat).sum(dim=(0, 2))}
        return OwnLoss(self.theta / 2 * r.square().sum(), gradients)

    @torch.no_grad()
    def constrain(self) -> None:
        """M <- clip(|M|, 1/10, 10): the signs are C's, and so is what would be a size near 0 or without bound."""
        self.M.abs_().clamp_(LEAST_M, MOST_M)

    def carry_over(self, weight: nn.Parameter) -> None:
        """C as for every method; b follows its size."""
        super().carry_over(weight)
        self._measure_b()

    def stored(self) -> Stored:
        """The bits of C, and b * M in 32 bits."""
        return Stored(self.C.numel(), self.M.numel())

    def _options(self) -> dict[str, tuple[object, object]]:
        mine: dict[str, Any] = {"num_projections": (self.num_projections, 1), "theta": (self.theta, 1e-4)}
        return super()._options() | mine
