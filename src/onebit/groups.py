"""Parameter groups for an optimizer: kernels, projection matrices and the rest learn differently."""

from __future__ import annotations

import math
from typing import Any, Literal

from torch import nn

from onebit.convolution import QuantizedConv2d


def parameter_groups(
    model: nn.Module,
    lr: float = 0.1,
    lr_w: float | None = None,
    weight_decay: float = 0.0,
    *,
    kernel_rate: float | Literal["authors"] = 1.0,
    decay_kernels: bool | None = None,
    decay_norm_and_bias: bool = True,
) -> list[dict[str, Any]]:
    """Groups for any torch optimizer: {"name", "params", "lr", "weight_decay"}, the empty ones left out.

        optimizer = torch.optim.SGD(onebit.parameter_groups(model, lr=0.1, weight_decay=5e-4), momentum=0.9)

    kernels       every C (rivals: weight): lr * kernel_rate; a group for each rate and decay that there is
    projections   every W (MCN: M): lr_w (a tenth of lr if not given, as in the paper), never any weight decay
    vectors       norms, biases, PReLU slopes: lr, no weight decay; a group only if decay_norm_and_bias is False
    others        lr and weight_decay

    kernel_rate     how many times as fast as the rest kernels follow their gradients. Weight decay takes as much
                    of them as at rate 1: the group has weight_decay / kernel_rate. 'authors': what the method's
                    authors multiply with, layer by layer (`layer.authors_rate()`), for SGD: Adam needs none of it
    decay_kernels   None: as the method's authors have it (`layer.AUTHORS.decays_latents`)

    Frozen parameters are left out, and a shared one comes once.
    """
    lr_w = lr / 10 if lr_w is None else lr_w
    _check(lr, lr_w, weight_decay, kernel_rate)
    layers = [module for module in model.modules() if isinstance(module, QuantizedConv2d)]
    kernels = {id(getattr(layer, layer.KERNEL)): layer for layer in layers if layer.KERNEL}
    projections = {id(getattr(layer, layer.MATRIX)) for layer in layers if layer.MATRIX}

    def of_kernels(layer: QuantizedConv2d) -> tuple[str, float, float]:
        rate = layer.authors_rate() if kernel_rate == "authors" else kernel_rate
        decays = layer.AUTHORS.decays_latents if decay_kernels is None else decay_kernels
        return "kernels", lr * rate, weight_decay / rate if decays else 0.0

    members: dict[tuple[str, float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if (layer := kernels.get(id(parameter))) is not None:
            group = of_kernels(layer)
        elif id(parameter) in projections:
            group = ("projections", lr_w, 0.0)
        elif parameter.ndim < 2 and not decay_norm_and_bias:
            group = ("vectors", lr, 0.0)
        else:
            group = ("others", lr, weight_decay)
        members.setdefault(group, []).append(parameter)
    if not members:
        raise ValueError("model has no parameter that requires a gradient: there is nothing to train")
    order = ("kernels", "projections", "others", "vectors")
    return [
        {"name": name, "params": parameters, "lr": rate, "weight_decay": decay}
        for (name, rate, decay), parameters in sorted(members.items(), key=lambda group: order.index(group[0][0]))
    ]


def _check(lr: float, lr_w: float, weight_decay: float, kernel_rate: float | str) -> None:
    for name, value in (("lr", lr), ("lr_w", lr_w), ("weight_decay", weight_decay)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name}={value!r}: use a finite number >= 0")
    if kernel_rate == "authors":
        return
    if isinstance(kernel_rate, str | bool) or not 0 < kernel_rate < math.inf:
        raise ValueError(f"kernel_rate={kernel_rate!r}: use a finite number > 0, or 'authors'")
