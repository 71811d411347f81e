"""The methods by name, the options that each takes, and clear words for those that it does not."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Literal

from onebit import rivals
from onebit.convolution import AuthorsTraining, QuantizedConv2d
from onebit.layers import ProjectionConv2d

# Each makes the layer that stands for a conv, with its parameters still to be carried over; float leaves the conv.
METHODS: dict[str, type[QuantizedConv2d] | None] = {
    "pcnn": ProjectionConv2d,
    "binaryconnect": rivals.BinaryConnectConv2d,
    "bnn": rivals.BnnConv2d,
    "lbcnn": rivals.LocalBinaryConv2d,
    "bwn": rivals.BwnConv2d,
    "xnor": rivals.XnorConv2d,
    "mcdonnell": rivals.McDonnellConv2d,
    "dorefa": rivals.DoReFaConv2d,
    "abc": rivals.AbcConv2d,
    "bireal": rivals.BiRealConv2d,
    "mcn": rivals.ModulatedConv2d,
    "float": None,
}


def layer_of(method: str) -> type[QuantizedConv2d] | None:
    """The layer class of a method; None for 'float'."""
    if method not in METHODS:
        near = nearest_method(str(method))
        hint = f"did you mean {near!r}? " if near else ""
        raise ValueError(f"method={method!r}: {hint}use one of {', '.join(map(repr, METHODS))}")
    return METHODS[method]


def authors_of(method: str) -> AuthorsTraining:
    """How a method's authors train its latent kernels; of 'float', how every weight of a WRN is trained."""
    layer_class = layer_of(method)
    return AuthorsTraining(lr=0.1) if layer_class is None else layer_class.AUTHORS


def has_kernels(method: str) -> bool:
    """Whether its layers have kernels that learn and become bits."""
    layer_class = layer_of(method)
    return layer_class is not None and layer_class.KERNEL is not None


def kernel_rates_of(
    method: str, asked: Iterable[float | Literal["authors"]], *, adaptive: bool = False
) -> tuple[float | Literal["authors"], ...]:
    """Those of some multipliers of the kernels' rate that make a difference to a method; 'authors' may be 1.

    adaptive   for Adam, with which the authors' are 1
    """
    if not has_kernels(method):
        return (1.0,)
    is_one = adaptive or authors_of(method).latent_rate == "as others"
    return tuple(dict.fromkeys(1.0 if rate == "authors" and is_one else rate for rate in asked))


def revision_of(method: str) -> int:
    """The form that a method has now: weights of another one are of another net."""
    layer_class = layer_of(method)
    return 1 if layer_class is None else layer_class.REVISION


def nearest_method(name: str) -> str | None:
    """The method that a wrong name may have meant."""
    return next(iter(get_close_matches(name.lower(), METHODS, n=1)), None)


def method_options(method: str) -> tuple[str, ...]:
    """The options of a method's layers beyond those of `nn.Conv2d`."""
    layer_class = layer_of(method)
    if layer_class is None:
        return ()
    named = inspect.signature(layer_class.__init__).parameters.values()
    return tuple(p.name for p in named if p.kind is inspect.Parameter.KEYWORD_ONLY)


def activation_bits_of(method: str, asked: int | None = None) -> int:
    """The bits of activations that a net of this method has: what is asked for, else the method's own."""
    layer_class = layer_of(method)
    return asked or (32 if layer_class is None else layer_class.ACTIVATION_BITS[0])


def check_known(method: str, options: dict[str, Any]) -> None:
    """Options are arguments: one that no method has is a slip of the pen."""
    known = {name for each in METHODS for name in method_options(each)}
    for name, value in options.items():
        if name not in known:
            near = get_close_matches(name, sorted({*known, "relu_before_sign"}), n=1)
            taken = ", ".join(method_options(method)) or "none"
            hint = f"did you mean {near[0]}?" if near else f"the options of {method!r} are: {taken}"
            raise ValueError(f"{name}={value!r}: there is no such argument; {hint}")


def check_taken(method: str, options: dict[str, Any]) -> None:
    """Refuse what the method does not take, and raise the errors that a layer would, for any model."""
    layer_class, taken = layer_of(method), method_options(method)
    for name, value in options.items():
        if name not in taken and (name, value) != ("activation_bits", 32):
            what = f"it takes {', '.join(taken)}" if taken else "it takes no options"
            raise ValueError(f"{name}={value!r}: method {method!r} does not take it; {what}")
    if layer_class is not None:
        count = options.get("num_projections", 1)
        width = count if isinstance(count, int) and count > 0 else 1
        try:
            layer_class(width, width, 1, device="meta", **options)
        except ValueError as error:
            raise ValueError(str(error).replace(layer_class.__name__, f"method {method!r}")) from None
