"""ABC-Net."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from onebit.convolution import Bases, Kernels, LatentConv2d, Stored, like_conv
from onebit.estimators import through, where_within
from onebit.projection import sgn


class AbcConv2d(LatentConv2d):
    """ABC-Net: M 1-bit weight bases and N 1-bit activation bases, each with its scale.

        forward    y = conv2d(x_q, W_q)
                   W_q = sum_m alpha_m * B_m,  B_m = sgn(W - mean(W) + u_m * std(W)),  u_m evenly over [-1, 1]
                   (M = 1: u = 0),  alpha = argmin ||W - sum_m alpha_m * B_m||^2
                   x_q = sum_n beta_n * A_n,  A_n = sgn(h_n - 1/2),  h_n = clip(x + v_n, 0, 1)
        backward   dL/dW = dL/dW_q * sum_m alpha_m
                   dL/dx = sum_n beta_n * dL/dx_q o 1{0 <= x + v_n <= 1},  dL/dv_n the sum of its n-th term
                   dL/dbeta_n = sum of dL/dx_q o A_n

    Lin, Zhao, Pan: Towards Accurate Binary Convolutional Neural Network. NeurIPS 2017, arXiv:1711.11294.

    weight_bases = M, activation_bases = N; mean, std and alpha are the layer's. A convolution is linear, so the
    sum of the M * N binary convolutions is one convolution of the sums, and is computed as that. Where bases
    coincide, alpha is the solution of least norm. The paper gives no first values for v and beta: v_n = 1/2 - u_n,
    so that the thresholds lie evenly over [-1, 1] (N = 1: at 0), and beta_n = 1/N. activation_bits = 32 leaves the
    activations as they are.
    """

    ACTIVATION_BITS: ClassVar[tuple[int, ...]] = (1, 32)
    OF_INPUT: ClassVar[tuple[str, ...]] = ("v", "beta")

    @like_conv
    def __init__(self, *conv: Any, weight_bases: int = 1, activation_bases: int | None = None, **more: Any) -> None:
        super().__init__(*conv, **more)
        for name, count in (("weight_bases", weight_bases), ("activation_bases", activation_bases)):
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
                raise ValueError(f"{name}={count!r}: use a whole number of at least 1")
        if self.activation_bits == 32 and activation_bases is not None:
            raise ValueError(f"activation_bases={activation_bases}: there are none with activation_bits=32")
        self.weight_bases = weight_bases
        self.activation_bases = (activation_bases or 1) if self.activation_bits == 1 else 0
        N, like = self.activation_bases, self.weight.detach()
        self.v = nn.Parameter(0.5 - evenly(N, like)) if N else None
        self.beta = nn.Parameter(like.new_full((N,), 1 / N)) if N else None

    def quantized_weight(self) -> Tensor:
        """W_q, with the gradient times the sum of alpha."""
        W = self.weight.detach()
        with torch.autocast(W.device.type, enabled=False):
            bases, alpha = self._bases_and_alpha()
            value = (alpha @ bases).view_as(W).to(W.dtype)
        return through(self.weight, value, alpha.sum().to(W.dtype))

    def _bases_and_alpha(self) -> tuple[Tensor, Tensor]:
        """B, each a row, and alpha. Least squares want more than 16 bits, whatever autocast thinks of products."""
        W = self.weight.detach()
        with torch.autocast(W.device.type, enabled=False):
            wide = W.to(torch.promote_types(W.dtype, torch.float32))
            bases = weight_bases(wide, self.weight_bases)
            return bases, least_squares(bases, wide.flatten())

    @torch.no_grad()
    def kernels(self) -> list[Kernels]:
        """M of them."""
        bases, alpha = self._bases_and_alpha()
        return [Kernels(B.view_as(self.weight), scale) for B, scale in zip(bases, alpha, strict=True)]

    def input_code(self) -> Bases | None:
        """N bases: A_n is +1 where x + v_n >= 1/2."""
        if self.v is None or self.beta is None:
            return None
        return Bases(0.5 - self.v.detach(), self.beta.detach())

    def quantized_input(self, x: Tensor) -> Tensor:
        """x_q, or x if activation_bits = 32."""
        if self.v is None:
            return x
        return _Bases.apply(x, self.v, self.beta)  # type: ignore[no-any-return,no-untyped-call]

    def carry_over(self, weight: nn.Parameter) -> None:
        """The weight itself; v and beta learn if it does."""
        super().carry_over(weight)
        for parameter in (self.v, self.beta):
            if parameter is not None:
                parameter.requires_grad_(weight.requires_grad)

    @property
    def weight_bits(self) -> int:
        """M."""
        return self.weight_bases

    @property
    def input_bits(self) -> int:
        """N, or 32."""
        return self.activation_bases or 32

    def stored(self) -> Stored:
        """M bits a weight, M numbers alpha, N thresholds and N numbers beta."""
        return Stored(self.weight_bases * self.weight.numel(), self.weight_bases + 2 * self.activation_bases)

    def _options(self) -> dict[str, tuple[object, object]]:
        mine = {"weight_bases": (self.weight_bases, 1), "activation_bases": (self.activation_bases or 1, 1)}
        return super()._options() | mine


def evenly(count: int, like: Tensor) -> Tensor:
    """u: as many numbers evenly over [-1, 1]; a single one is 0."""
    u = torch.linspace(-1, 1, count, dtype=like.dtype, device=like.device)
    return u if count > 1 else torch.zeros_like(u)


def weight_bases(W: Tensor, count: int) -> Tensor:
    """B_m, each a row of as many numbers as W has."""
    flat = W.flatten()
    return sgn((flat - flat.mean()) + evenly(count, W).unsqueeze(1) * flat.std(correction=0))


def least_squares(bases: Tensor, target: Tensor) -> Tensor:
    """Alpha that makes alpha @ bases nearest to target."""
    if len(bases) == 1:  # bases are +-1
        return (bases @ target) / target.numel()
    gram, moments = bases @ bases.T / target.numel(), bases @ target / target.numel()
    alpha: Tensor = torch.linalg.pinv(gram, hermitian=True) @ moments
    return alpha


class _Bases(torch.autograd.Function):
    """x_q of x, v and beta; one pass for each base, in place, where autograd would keep every step of it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, v: Tensor, beta: Tensor) -> Tensor:
        total = None
        for v_n, beta_n in zip(v, beta, strict=True):
            base = x.add(v_n).sub_(0.5)  # the clip changes no sign
            term = base.sign_().add_(0.5).sign_().mul_(beta_n)
            total = term if total is None else total.add_(term)
        if total is None:
            raise ValueError("no activation bases")
        return total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, v, beta = ctx.saved_tensors
        (grad,) = grads
        grad_x, grad_v, grad_beta = torch.zeros_like(x), [], []
        for v_n, beta_n in zip(v, beta, strict=True):
            shifted = x.add(v_n)
            passed = where_within(grad, shifted, 0.0, 1.0)
            grad_v.append(passed.sum() * beta_n)
            grad_x.add_(passed.mul_(beta_n))
            base = shifted.sub_(0.5).sign_().add_(0.5).sign_()
            grad_beta.append(base.mul_(grad).sum())
        return grad_x, torch.stack(grad_v).to(v), torch.stack(grad_beta).to(beta)
