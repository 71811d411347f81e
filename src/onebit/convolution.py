"""What all 1-bit convolutions share: the geometry and call of `nn.Conv2d`, and what others ask of a layer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onebit.estimators import binarize_activation
from onebit.projection import sgn

Size = int | tuple[int, ...]


class Stored(NamedTuple):
    """What a layer keeps once it is trained: bits, and numbers of 32 bits."""

    bits: int
    floats: int


class OwnLoss(NamedTuple):
    """A loss of a layer's parameters alone, and its gradients by the parameters' names."""

    loss: Tensor
    gradients: dict[str, Tensor]


class Kernels(NamedTuple):
    """A weight taken apart: row o*J + j is scale * masks[j] o modulation[j] o signs[o]. Nothing of it learns."""

    signs: Tensor  # (out_channels / J, in_channels / groups, k, k), of +-1
    scale: Tensor  # (), or (out_channels,)
    masks: Tensor | None = None  # (J, k, k), of +-1
    modulation: Tensor | None = None  # (J, k, k)


class Bases(NamedTuple):
    """A quantised input: the sum over n of scales[n] * sgn(x - thresholds[n])."""

    thresholds: Tensor  # (N,)
    scales: Tensor  # (N,)


@dataclass(frozen=True)
class AuthorsTraining:
    """How a method's authors train the latent kernels, which the optimizer moves and whose signs are the bits.

    From their programs, and from the paper where there is none. What is not known is as for every other weight.
    """

    clips_latents: bool = False  # to [-1, 1] after each step
    decays_latents: bool = True  # whether there is weight decay on them
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float | None = None  # the first learning rate; None: not known
    # By what the rate of the latent kernels is multiplied: see `authors_rate`.
    latent_rate: Literal["as others", "glorot", "n(1-1/in)"] = "as others"


class QuantizedConv2d(nn.Module):
    """`nn.Conv2d` with a weight that is computed: subclasses say how in `quantized_weight`.

    The other methods are what the rest of the package needs to know of a layer; a subclass changes those that
    are not as for most.
    """

    ACTIVATION_BITS: ClassVar[tuple[int, ...]] = (32, 1)  # what there is to choose from, the default first
    KERNEL: ClassVar[str | None] = "weight"  # the parameter whose signs are the bits of the kernels
    MATRIX: ClassVar[str | None] = None  # the parameter that multiplies every kernel, if there is one
    OF_INPUT: ClassVar[tuple[str, ...]] = ()  # parameters that a layer with float activations has not
    num_projections: int = 1  # kernels made of each learned one, if a subclass has the option
    CARRIES_OVER: ClassVar[bool] = True  # whether a float conv's weight can become this layer's
    AUTHORS: ClassVar[AuthorsTraining] = AuthorsTraining()
    REVISION: ClassVar[int] = (
        1  # one more when trained weights of the method, or its nets, come to mean another net
    )

    bias: nn.Parameter | None

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
        activation_bits: int | None = None,
    ) -> None:
        super().__init__()
        activation_bits = self.ACTIVATION_BITS[0] if activation_bits is None else activation_bits
        for name, count in (("in_channels", in_channels), ("out_channels", out_channels), ("groups", groups)):
            if count < 1:
                raise ValueError(f"{name}={count}: use at least 1")
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"groups={groups}: must divide in_channels={in_channels} and {out_channels=}")
        if activation_bits not in self.ACTIVATION_BITS:
            known = in_words(self.ACTIVATION_BITS)
            raise ValueError(f"activation_bits={activation_bits}: {type(self).__name__} takes {known}")
        if padding_mode not in {"zeros", "reflect", "replicate", "circular"}:
            raise ValueError(f"padding_mode={padding_mode!r}: use 'zeros', 'reflect', 'replicate' or 'circular'")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = _pair("kernel_size", kernel_size, least=1)
        self.stride = _pair("stride", stride, least=1)
        self.dilation = _pair("dilation", dilation, least=1)
        if isinstance(padding, str):
            if padding not in {"same", "valid"}:
                raise ValueError(f"padding={padding!r}: use a number, a pair, 'same' or 'valid'")
            if padding == "same" and self.stride != (1, 1):
                raise ValueError(f"padding='same' with stride={stride}: use stride 1, or a number as padding")
            self.padding: tuple[int, int] | str = padding
        else:
            self.padding = _pair("padding", padding, least=0)
        self.padding_mode = padding_mode
        self.activation_bits = activation_bits
        made = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", made)
        self._make_parameters(device, dtype)

    def _make_parameters(self, device: Any, dtype: Any) -> None:
        """Make what learns. Called last: geometry is known, and options that a subclass has set before."""

    def quantized_weight(self) -> Tensor:
        """The weight of the convolution, (out_channels, in_channels / groups, k, k), differentiable."""
        raise NotImplementedError

    def quantized_input(self, x: Tensor) -> Tensor:
        """What the convolution takes of its input: sgn(x) if activation_bits = 1; differentiable."""
        return binarize_activation(x) if self.activation_bits == 1 else x

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 as nn.Conv2d names it
        """conv2d(quantized input, quantized weight); zero padding stays 0, it has no sign."""
        return self.convolve(self.quantized_input(input), self.quantized_weight(), self.bias)

    def kernels(self) -> list[Kernels]:
        """The quantised weight as a sum of 1-bit kernels; none if it is no such sum."""
        raise NotImplementedError

    def learned_kernels(self) -> Tensor | None:
        """What becomes the bits of rows o*J, (out_channels / J, in_channels / groups, k, k); None: nothing does."""
        return None if self.KERNEL is None else getattr(self, self.KERNEL).detach()

    def input_code(self) -> Bases | int | None:
        """The quantised input as bits, or as whole numbers of 0 to n that stand for 0 to 1; None: floats."""
        if self.activation_bits == 32:
            return None
        return Bases(torch.zeros(1), torch.ones(1))

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The convolution itself, with this layer's geometry."""
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            x, padding = F.pad(x, self.padding_per_side(), mode=self.padding_mode), 0
        return F.conv2d(x, weight, bias, self.stride, padding, self.dilation, self.groups)

    @property
    def weight_bits(self) -> int:
        """Bits that a weight of the convolution takes."""
        return 1

    @property
    def input_bits(self) -> int:
        """Bits that a number of its quantised input takes."""
        return self.activation_bits

    def carry_over(self, weight: nn.Parameter) -> None:
        """Begin with the weight (out_channels, in_channels / groups, k, k) of a float conv.

        J = 1: with the weight itself, so that ties and memory layout stay; J > 1: kernel o is weight[o*J].
        """
        if self.num_projections == 1:
            self.register_parameter(self.KERNEL or "", weight)
        else:
            kernel: nn.Parameter = getattr(self, self.KERNEL or "")
            with torch.no_grad():
                kernel.copy_(weight[:: self.num_projections])
            kernel.requires_grad_(weight.requires_grad)
        if self.MATRIX:
            getattr(self, self.MATRIX).requires_grad_(weight.requires_grad)

    def stored(self) -> Stored:
        """What is to be kept of the trained layer, bias aside."""
        raise NotImplementedError

    def constrain(self) -> None:
        """Put the weights back where the method wants them; called after each step of the optimizer."""

    def authors_rate(self) -> float:
        """By what the method's authors multiply the learning rate of this layer's latent kernels.

        'glorot'       1 / Glorot's coefficient: sqrt((in + out) * k * k / 1.5), in and out of a group. The authors
                       of BinaryConnect use it with Adam; with SGD its square, for weights that begin evenly over
                       [-1, 1]. Kernels that begin as a float conv's are smaller by that coefficient already.
        'n(1-1/in)'    with n = in * k * k: the factor on the gradient in the program of XNOR-Net
        """
        taps = self.kernel_size[0] * self.kernel_size[1]
        ins, outs = self.in_channels // self.groups, self.out_channels // self.groups
        match self.AUTHORS.latent_rate:
            case "glorot":
                return float(((ins + outs) * taps / 1.5) ** 0.5)
            case "n(1-1/in)":
                return float(max(ins - 1, 1) * taps)  # one input channel is not centred: nothing is taken away
        return 1.0

    def own_loss(self) -> OwnLoss | None:
        """A loss whose gradients join those of the task at the optimizer's step."""
        return None

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Of an image of that size."""
        left, right, top, bottom = self.padding_per_side()
        reach = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        rooms = (height + top + bottom - reach[0], width + left + right - reach[1])
        return rooms[0] // self.stride[0] + 1, rooms[1] // self.stride[1] + 1

    def padding_per_side(self) -> list[int]:
        """F.pad's order: left, right, top, bottom."""
        if isinstance(self.padding, str):
            reach = zip(self.dilation, self.kernel_size, strict=True)
            totals = [d * (k - 1) if self.padding == "same" else 0 for d, k in reach]
            sides = [(total // 2, total - total // 2) for total in totals]
        else:
            sides = [(p, p) for p in self.padding]
        return [*sides[1], *sides[0]]

    def _options(self) -> dict[str, tuple[object, object]]:
        """Each argument's name with its value and its default, for `repr`."""
        return {
            "stride": (self.stride, (1, 1)),
            "padding": (self.padding, (0, 0)),
            "dilation": (self.dilation, (1, 1)),
            "groups": (self.groups, 1),
            "bias": (self.bias is not None, False),
            "padding_mode": (self.padding_mode, "zeros"),
            "activation_bits": (self.activation_bits, 32),
        }

    def extra_repr(self) -> str:
        """The arguments that differ from their defaults."""
        given = [f"{name}={value!r}" for name, (value, default) in self._options().items() if value != default]
        return ", ".join([f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}", *given])


class LatentConv2d(QuantizedConv2d):
    """Keeps a full-precision `weight` of the shape of `nn.Conv2d`'s: the W of the formulas, which learns."""

    weight: nn.Parameter

    def _make_parameters(self, device: Any, dtype: Any) -> None:
        shape = (self.out_channels, self.in_channels // self.groups, *self.kernel_size)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        reset_like_conv(self.weight, self.bias)

    def scale_of_signs(self) -> Tensor:
        """What multiplies sgn(weight): shape () or (out_channels, 1, 1, 1); a constant for the gradient."""
        return self.weight.new_ones(())

    @torch.no_grad()
    def kernels(self) -> list[Kernels]:
        """One: the signs of the weight."""
        scale = self.scale_of_signs()
        return [Kernels(sgn(self.weight), scale.flatten() if scale.ndim else scale)]

    def stored(self) -> Stored:
        """A bit a weight; methods with a scale add it."""
        return Stored(self.weight.numel(), 0)


def reset_like_conv(weight: Tensor, bias: Tensor | None) -> None:
    """Weight and bias as `nn.Conv2d` begins."""
    nn.init.kaiming_uniform_(weight, a=5**0.5)
    if bias is not None:
        bound = weight[0].numel() ** -0.5
        nn.init.uniform_(bias, -bound, bound)


def check_multiplicity(name: str, count: int, out_channels: int, groups: int) -> None:
    """J kernels made of each learned one: J must divide the channels of a group."""
    if not isinstance(count, int):
        raise ValueError(f"{name}={count!r}: use a whole number")
    if count < 1 or (out_channels // groups) % count:
        raise ValueError(
            f"{name}={count}: must divide out_channels / groups = "
            f"{out_channels} / {groups} = {out_channels // groups}"
        )


def like_conv(init: Callable[..., None]) -> Callable[..., None]:
    """Let help() show the arguments of a conv for `(self, *conv, option=..., **more)`."""
    own = [p for p in inspect.signature(init).parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    shared = inspect.signature(QuantizedConv2d.__init__)
    init.__signature__ = shared.replace(parameters=[*shared.parameters.values(), *own])  # type: ignore[attr-defined]
    return init


def in_words(numbers: Iterable[int]) -> str:
    """'1 or 32'; '2 to 8 or 32'."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " or ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else " or ".join(map(str, run)) for run in runs)


def _pair(name: str, size: Size, least: int) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or min(pair) < least:
        raise ValueError(f"{name}={size!r}: use a number or a pair of numbers of at least {least}")
    return pair[0], pair[1]
