"""The projection convolution as a layer: `ProjectionConv2d`, a drop-in for `nn.Conv2d`."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from onebit import projection as pj
from onebit.convolution import (
    AuthorsTraining,
    Kernels,
    QuantizedConv2d,
    Size,
    Stored,
    check_multiplicity,
    reset_like_conv,
)
from onebit.delta import Delta


class _Quantize(torch.autograd.Function):
    """D from C and W (Eq. 9, 11), with the gradients of Eq. 17 and 21; `leaf` receives delta."""

    generate_vmap_rule = True

    @staticmethod
    def forward(C: Tensor, W: Tensor, leaf: Tensor | None, how: pj.Projection) -> Tensor:  # noqa: ARG004
        return pj.concatenate(pj.quantize(C, W, how))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        C, W, _, ctx.how = inputs
        ctx.save_for_backward(C, W)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        C, W = ctx.saved_tensors
        (grad_D,) = grads
        of = pj.task_gradients(pj.separate(grad_D, W.shape[0]), C, W, ctx.how)
        return of.C, of.W, grad_D if ctx.needs_input_grad[2] else None, None


class ProjectionConv2d(QuantizedConv2d):
    """PCNN: a 2-d convolution whose kernels are `num_projections` 1-bit projections of each learned kernel.

    Stands for `nn.Conv2d(in_channels, out_channels, ...)`: same shapes in and out; but bias=False is the default,
    since a norm nearly always follows. It keeps out_channels / num_projections full-precision kernels `C` and the
    projection matrices `W`, and convolves with D, whose row o*J + j is a * sgn(W_j) o sgn(C[o]). Train it with
    `discrete_backprop` (or `add_projection_gradients`), which adds the gradients of the projection loss L_P.

        forward    y = conv2d(x, D), Eq. 12 to 14, with x replaced by sgn(x) if activation_bits = 1
        backward   Eq. 17 and 21 for C and W;  1{|x| <= 1} for sgn(x)

    Options beyond those of `nn.Conv2d`, the default first:
        num_projections   1; J must divide out_channels / groups
        activation_bits   32 | 1
        lam               1e-4, the weight of L_P
        eta               None | a number: eta of L_P; None: the current learning rate of C, as in the paper
        forward_w         'elementwise' | 'mean': what of W the forward pass uses
        w_init            None | 'ones' | 'signs' | 'normal'; None: 'ones' for J = 1, else random signs
        scale             'layer' | 'kernel': over what a = mean |C| is taken
        levels            2 | U: evenly spaced in [-a, a] | a sorted tuple of the values themselves

    Gu, Li, Zhang, Han, Cao, Liu, Doermann: Projection Convolutional Neural Networks for 1-bit CNNs via Discrete
    Back Propagation. AAAI 2019, arXiv:1811.12755.
    """

    KERNEL, MATRIX = "C", "W"
    AUTHORS: ClassVar[AuthorsTraining] = AuthorsTraining(lr=0.1)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = False,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        num_projections: int = 1,
        activation_bits: int | None = None,
        lam: float = 1e-4,
        eta: float | None = None,
        forward_w: pj.ForwardW = "elementwise",
        w_init: str | None = None,
        scale: pj.Scale = "layer",
        levels: pj.Levels = 2,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
            activation_bits=activation_bits,
        )
        check_multiplicity("num_projections", num_projections, out_channels, groups)
        pj.check_lam(lam)
        pj.check_eta(eta)
        levels = tuple(levels) if isinstance(levels, list) else levels
        self.projection = pj.Projection(levels, scale, forward_w)
        pj.check_projection(self.projection)
        self.num_projections, self.lam, self.eta, self.w_init = num_projections, lam, eta, w_init

        shape = (out_channels // num_projections, in_channels // groups, *self.kernel_size)
        self.C = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.W = nn.Parameter(torch.empty(num_projections, *self.kernel_size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """C and bias as `nn.Conv2d` does it, W as `w_init` says."""
        reset_like_conv(self.C, self.bias)
        initial = pj.initial_w(self.num_projections, self.kernel_size, self.w_init, self.projection.forward_w)
        with torch.no_grad():
            self.W.copy_(initial)

    def quantized_weight(self) -> Tensor:
        """D (out_channels, in_channels / groups, k, k), Eq. 9 and 11; differentiable."""
        # A C that is not our Parameter (functional_call, a replica of DataParallel, a parametrization) has its
        # .grad elsewhere, so that no delta of ours can belong to it.
        is_ours = self._delta.C is self.C
        if is_ours and not torch.compiler.is_compiling() and type(self.C) is nn.Parameter and self.C.is_cpu:
            # On an accelerator this would wait for the device at every layer; there the step looks (joining.py).
            pj.check_finite("C", self.C)
            pj.check_finite("W", self.W)
        keeps_delta = is_ours and self.C.requires_grad and self.lam > 0 and torch.is_grad_enabled()
        if keeps_delta:
            self._delta.in_fp16 = _compute_dtype(self.C) == torch.float16
        leaf = self._delta.leaf if keeps_delta else None
        return _Quantize.apply(self.C, self.W, leaf, self.projection)  # type: ignore[no-any-return,no-untyped-call]

    @torch.no_grad()
    def kernels(self) -> list[Kernels]:
        """The signs of C and J masks; a single mask is multiplied in, and 'mean' has none."""
        if not self.projection.is_binary:
            return []
        a = pj.magnitude(self.C, self.projection.scale)
        scale = a if a.ndim == 0 else a.flatten().repeat_interleave(self.num_projections)
        if self.projection.forward_w == "mean":
            ones = torch.ones_like(self.W)
            return [Kernels(pj.sgn(self.C), scale, ones if self.num_projections > 1 else None)]
        if self.num_projections == 1:
            return [Kernels(pj.sgn(self.C) * pj.sgn(self.W), scale)]
        return [Kernels(pj.sgn(self.C), scale, pj.sgn(self.W))]

    def learned_kernels(self) -> Tensor:
        """C, turned by the first projection matrix where the forward pass uses it."""
        C = self.C.detach()
        return C if self.projection.forward_w == "mean" else C * self.W.detach()[0]

    @property
    def weight_bits(self) -> int:
        """1 for the two levels of the paper."""
        levels = self.projection.levels
        return ((levels if isinstance(levels, int) else len(levels)) - 1).bit_length()

    def stored(self) -> Stored:
        """sgn(C) once, the J masks sgn(W), and the scale; with more levels, J kernels of that many bits."""
        scales = 1 if self.projection.scale == "layer" else len(self.C)
        if not self.projection.is_binary:
            levels = self.projection.levels
            values = len(levels) if isinstance(levels, tuple) else scales
            return Stored(self.weight_bits * self.num_projections * self.C.numel(), values)
        masks = self.W.numel() if self.projection.forward_w == "elementwise" else 0
        return Stored(self.C.numel() + masks, scales)

    # delta belongs to the Parameter that is C now: wherever C may become another one, it is made anew.

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """As `nn.Module` does it; `layer.C = ...` and load_state_dict(assign=True) come through here."""
        super().register_parameter(name, param)
        if name == "C":
            self._renew_delta()

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        old = self._delta
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._renew_delta()
        if self._delta is not old:
            self._delta.take_over(old, fn)  # .to() takes C.grad along
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state.pop("_delta", None)  # a copy's C has no .grad, so it has no delta
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._renew_delta()

    def _renew_delta(self) -> None:
        C, old = self._parameters.get("C"), self.__dict__.get("_delta")
        if C is None:  # parametrized or pruned: computed from other Parameters, to which no delta belongs
            return
        shape = (self.out_channels, *C.shape[1:])
        if old is not None:
            if old.fits(C, shape):
                return
            old.remove_hooks()
        self._delta = Delta(C, shape)

    def _options(self) -> dict[str, tuple[object, object]]:
        return super()._options() | {
            "num_projections": (self.num_projections, 1),
            "lam": (self.lam, 1e-4),
            "eta": (self.eta, None),
            "forward_w": (self.projection.forward_w, "elementwise"),
            "scale": (self.projection.scale, "layer"),
            "levels": (self.projection.levels, 2),
        }


def _compute_dtype(weight: Tensor) -> torch.dtype:
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
