"""Every equation of the paper, once, as pure functions of tensors.

Symbols are the paper's. Shapes, with O kernels of I planes of k x k taps and J projections:

    C       (O, I, k, k)      full-precision kernels
    W       (J, k, k)         projection matrices, repeated over every kernel and plane
    C_hat   (O, J, I, k, k)   quantised kernels; C_hat[o, j] is C_hat_j of kernel o
    D       (O*J, I, k, k)    C_hat with its first two axes joined: the weight of the convolution
    delta   (O, J, I, k, k)   dL_S/dC_hat, the gradient of the task's loss at the quantised kernels

`forward_w="mean"` is the paper's remark that the forward pass uses the mean of W and the backward pass W
itself: |W| stands in place of W, its mean over the taps in the forward pass, and W's own gradient gains a factor
sgn(W). A public program of MCN takes the mean of |M| over the taps in the same way (`MCF_Function.forward`).
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from onebit.errors import NotFiniteError

Scale = Literal["layer", "kernel"]
ForwardW = Literal["elementwise", "mean"]
Levels = int | tuple[float, ...]


class Projection(NamedTuple):
    """How a layer projects: the set Omega and what of W the forward pass uses."""

    levels: Levels = 2
    scale: Scale = "layer"
    forward_w: ForwardW = "elementwise"

    @property
    def is_binary(self) -> bool:
        """Whether Omega = {-a, +a}, the case of the paper's experiments."""
        return self.levels == 2


class Gradients(NamedTuple):
    """Gradients of one loss: C's of shape (O, I, k, k), W's of shape (J, k, k)."""

    C: Tensor
    W: Tensor


def check_projection(projection: Projection) -> None:
    """Raise a ValueError that names the option, its value and what would do."""
    levels, scale, forward_w = projection
    if scale not in {"layer", "kernel"}:
        raise ValueError(f"scale={scale!r}: use 'layer' (the paper) or 'kernel'")
    if forward_w not in {"elementwise", "mean"}:
        raise ValueError(f"forward_w={forward_w!r}: use 'elementwise' or 'mean'")
    if isinstance(levels, int):
        if isinstance(levels, bool) or levels < 2:
            raise ValueError(f"levels={levels!r}: Omega needs at least 2 elements")
        return
    if not isinstance(levels, tuple) or not all(isinstance(value, int | float) for value in levels):
        raise ValueError(f"levels={levels!r}: use an int (how many) or a tuple of numbers (which)")
    check_omega(torch.tensor(levels, dtype=torch.float64), name="levels")


def check_omega(omega: Tensor, name: str = "omega") -> None:
    """Eq. 1 asks that a_1 < a_2 < ... < a_U; U = 1 would project everything onto one value."""
    if omega.ndim != 1 or len(omega) < 2:
        raise ValueError(f"{name}={omega.tolist()}: Omega needs at least 2 elements in one dimension")
    if not omega.isfinite().all() or not (omega.diff() > 0).all():
        raise ValueError(f"{name}={omega.tolist()}: Omega must be finite and sorted, each element above the last")


def check_finite(name: str, x: Tensor) -> None:
    """A NaN has no nearest element, and one infinite weight makes every a infinite."""
    if math.isfinite(x.detach().sum()):  # one pass, and no false alarm can come from it
        return
    if not x.isfinite().all():
        count = int((~x.isfinite()).sum())
        raise NotFiniteError(
            f"{name} holds {count} non-finite of {x.numel()} values and can't be projected: "
            f"a smaller learning rate, or the last good checkpoint, would do"
        )


def sgn(x: Tensor) -> Tensor:
    """The sign with sgn(0) = sgn(-0.0) = +1: 1 where x >= 0 and -1 elsewhere (`torch.sign` has 0 for 0).

    NaN counts as 0 here; files and engines count it as not >= 0.
    """
    # -1, 0, 1 become -1/2, 1/2, 3/2. In place on one tensor: a fifth of the time of a comparison and a `where`,
    # and this is what sign activations cost.
    return torch.sign(x.detach()).add_(0.5).sign_()


def nearest(x: Tensor, omega: Tensor) -> Tensor:
    """The element of `omega` nearest to x; halfway between two, the upper one.

    x is (O, ...); omega is (U,), or (O, U) with a set of its own for every kernel.
    """
    midpoints = (omega[..., 1:] + omega[..., :-1]) / 2
    flat = x.contiguous() if omega.ndim == 1 else x.flatten(1)
    index = torch.searchsorted(midpoints, flat, right=True)
    chosen = omega[index] if omega.ndim == 1 else omega.gather(1, index)
    return chosen.view_as(x)


def project(x: Tensor, omega: Tensor) -> Tensor:
    """The projection P_Omega(x), Eq. 2 and 3: x of any shape onto a sorted omega of shape (U,)."""
    check_omega(omega)
    check_finite("x", x)
    return nearest(x, omega.to(x))


def magnitude(C: Tensor, scale: Scale = "layer") -> Tensor:
    """The a of Omega, Eq. 23: mean |C| over the layer, shape (), or over each kernel, shape (O, 1, 1, 1).

    Deviation: Eq. 23 divides the summed l1 norms by the number of kernels alone, which makes a larger than
    any weight by the size of a kernel; the paper's prose says 'mean of absolute values', which is meant.
    """
    return C.abs().mean() if scale == "layer" else C.abs().mean(dim=(1, 2, 3), keepdim=True)


def omega_of(C: Tensor, projection: Projection) -> Tensor:
    """Omega, Eq. 1: the given values, or U evenly spaced values in [-a, a]; (U,), or (O, U) per kernel."""
    if isinstance(projection.levels, tuple):
        return torch.tensor(projection.levels, dtype=C.dtype, device=C.device)
    unit = torch.linspace(-1, 1, projection.levels, dtype=C.dtype, device=C.device)
    a = magnitude(C, projection.scale)
    return unit * (a if a.ndim == 0 else a.flatten(1))


def quantize(C: Tensor, W: Tensor, projection: Projection = Projection()) -> Tensor:  # noqa: B008 immutable
    """C_hat_j = P_Omega(W_j o C), Eq. 9, for all j: (O, J, I, k, k).

    For Omega = {-a, +a} that is a * sgn(W_j) o sgn(C), but for ties at 0, where Eq. 2 leaves the choice.
    """
    w = W if projection.forward_w == "elementwise" else W.abs().mean(dim=(1, 2), keepdim=True)
    if projection.is_binary:
        a = magnitude(C, projection.scale)
        a = a if a.ndim == 0 else a.unsqueeze(1)
        # sgn(W_j) o sgn(C) is +1 where both have the same sign; comparing signs takes fewer passes than products.
        return torch.where((C >= 0).unsqueeze(1) == (w >= 0).unsqueeze(1), a, -a)
    return nearest(C.unsqueeze(1) * w.unsqueeze(1), omega_of(C, projection))


def concatenate(C_hat: Tensor) -> Tensor:
    """D, Eq. 11 and 14: kernel o's J quantised kernels side by side, so that row o*J + j is C_hat_j[o]."""
    return C_hat.flatten(0, 1)


def separate(D: Tensor, num_projections: int) -> Tensor:
    """The inverse of `concatenate`: (O*J, I, k, k) to (O, J, I, k, k)."""
    return D.view(-1, num_projections, *D.shape[1:])


def backward_w(W: Tensor, projection: Projection) -> Tensor:
    """What stands for W_j in the backward equations: W itself, or |W| under forward_w = 'mean'."""
    return W if projection.forward_w == "elementwise" else W.abs()


def through_abs(grad_w: Tensor, W: Tensor, projection: Projection) -> Tensor:
    """W's gradient from that of `backward_w`: the factor sgn(W) of the absolute value."""
    return grad_w if projection.forward_w == "elementwise" else grad_w * sgn(W)


def task_gradients(delta: Tensor, C: Tensor, W: Tensor, projection: Projection) -> Gradients:
    """Gradients of the task's loss L_S through the projection.

    dL_S/dC   = sum_j delta_j o m_j o W_j          Eq. 17
    dL_S/dW_j = sum_{o,i} delta_j o m_j o C        Eq. 21
    with m_j  = 1{ |W_j o C| <= 1 }; a is a constant.
    """
    w, c = backward_w(W, projection).unsqueeze(1), C.unsqueeze(1)
    # A product, not a selection: an infinite delta must show as NaN even where it is masked out, so that
    # whoever looks for overflows in .grad (a GradScaler) finds it.
    passed = delta * ((w * c).abs() <= 1)
    return Gradients(
        C=sum_over_j(passed * w),
        W=through_abs((passed * c).sum(dim=(0, 2)), W, projection),
    )


def residual(delta: Tensor, C: Tensor, W: Tensor, eta: float, projection: Projection) -> tuple[Tensor, Tensor]:
    """r_j = W_j o (C + eta*delta_j) - C_hat_j, the bracket of Eq. 8, 18 and 22, and C + eta*delta_j.

    C + eta*delta_j is where C would have come from by the update of Eq. 5; r_j is how far its projection is
    from C_hat_j, the distance of Eq. 6.
    """
    looked_back = torch.add(C.unsqueeze(1), delta, alpha=eta)
    return backward_w(W, projection).unsqueeze(1) * looked_back - quantize(C, W, projection), looked_back


def projection_loss(r: Tensor, lam: float) -> Tensor:
    """L_P of one layer, Eq. 8 (the second part of Eq. 7): lam/2 * sum over kernels and j of ||r_j||^2."""
    flat = r.flatten()
    return lam / 2 * torch.dot(flat, flat)


def projection_gradients(
    delta: Tensor, C: Tensor, W: Tensor, lam: float, eta: float, projection: Projection
) -> tuple[Tensor, Gradients]:
    """L_P of one layer (Eq. 8) and its gradients; C_hat and delta are constants.

    dL_P/dC   = lam * sum_j r_j o W_j                        Eq. 18
    dL_P/dW_j = lam * sum_{o,i} r_j o (C + eta*delta_j)      Eq. 22
    """
    r, looked_back = residual(delta, C, W, eta, projection)
    grad_C = sum_over_j(r * backward_w(W, projection).unsqueeze(1))
    grad_W = through_abs((r * looked_back).sum(dim=(0, 2)), W, projection)
    return projection_loss(r, lam), Gradients(C=lam * grad_C, W=lam * grad_W)


def sum_over_j(stack: Tensor) -> Tensor:
    """(O, J, I, k, k) to (O, I, k, k); a sum over one J would be a copy."""
    return stack.sum(dim=1) if stack.shape[1] > 1 else stack.squeeze(1)


def initial_w(num_projections: int, kernel_size: tuple[int, int], init: str | None, forward_w: ForwardW) -> Tensor:
    """W of Algorithm 1, line 1, on the CPU in float32.

    'ones'    the identity projection: with J = 1 the layer computes a * sgn(C)
    'signs'   +-1 at random: J different sign patterns from the start
    'normal'  standard normal, as the paper says; entries near 0 freeze a position, since both C's gradient
              (Eq. 17) and the pull towards +-a carry the factor W
    None      'signs' where J > 1 projections must differ in sign (elementwise), 'ones' otherwise
    """
    shape = (num_projections, *kernel_size)
    if init is None:
        init = "signs" if num_projections > 1 and forward_w == "elementwise" else "ones"
    match init:
        case "ones":
            return torch.ones(shape)
        case "signs":
            return torch.randint(0, 2, shape).mul(2).sub(1).float()
        case "normal":
            return torch.randn(shape)
    raise ValueError(f"w_init={init!r}: use None, 'ones', 'signs' or 'normal'")


def check_lam(lam: float) -> None:
    """L_P is a penalty: a negative weight would push the kernels away from Omega without bound."""
    if not (math.isfinite(lam) and lam >= 0):
        raise ValueError(f"lam={lam!r}: use a finite number >= 0 (the paper: 1e-4; 0 turns L_P off)")


def check_eta(eta: float | None) -> None:
    """The paper's eta is the current learning rate of C (None); 0 leaves eta*delta out of L_P."""
    if eta is not None and not (math.isfinite(eta) and eta >= 0):
        raise ValueError(f"eta={eta!r}: use None (the learning rate of C, as in the paper) or a finite number >= 0")
