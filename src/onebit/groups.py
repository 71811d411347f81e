"""Parameter groups for an optimizer: kernels, projection matrices and the rest learn differently."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from onebit.convolution import QuantizedConv2d


def parameter_groups(
    model: nn.Module,
    lr: float = 0.1,
    lr_w: float | None = None,
    weight_decay: float = 0.0,
    *,
    decay_kernels: bool = True,
    decay_norm_and_bias: bool = True,
) -> list[dict[str, Any]]:
    """Groups for any torch optimizer: {"name", "params", "lr", "weight_decay"}, the empty ones left out.

        optimizer = torch.optim.SGD(onebit.parameter_groups(model, lr=0.1, weight_decay=5e-4), momentum=0.9)

    kernels       every C (rivals: weight): lr, and weight_decay unless decay_kernels is False
    projections   every W (MCN: M): lr_w (a tenth of lr if not given, as in the paper), never any weight decay
    vectors       norms, biases, PReLU slopes: lr, no weight decay; a group only if decay_norm_and_bias is False
    others        lr and weight_decay

    Frozen parameters are left out, and a shared one comes once.
    """
    lr_w = lr / 10 if lr_w is None else lr_w
    for name, value in (("lr", lr), ("lr_w", lr_w), ("weight_decay", weight_decay)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name}={value!r}: use a finite number >= 0")
    layers = [module for module in model.modules() if isinstance(module, QuantizedConv2d)]
    kernels = {id(getattr(layer, layer.KERNEL)) for layer in layers if layer.KERNEL}
    projections = {id(getattr(layer, layer.MATRIX)) for layer in layers if layer.MATRIX}

    groups: dict[str, dict[str, Any]] = {
        "kernels": {"lr": lr, "weight_decay": weight_decay if decay_kernels else 0.0},
        "projections": {"lr": lr_w, "weight_decay": 0.0},
        "others": {"lr": lr, "weight_decay": weight_decay},
        "vectors": {"lr": lr, "weight_decay": 0.0},
    }
    members: dict[str, list[nn.Parameter]] = {name: [] for name in groups}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if id(parameter) in kernels:
            members["kernels"].append(parameter)
        elif id(parameter) in projections:
            members["projections"].append(parameter)
        elif parameter.ndim < 2 and not decay_norm_and_bias:
            members["vectors"].append(parameter)
        else:
            members["others"].append(parameter)
    made = [{"name": name, "params": members[name], **options} for name, options in groups.items() if members[name]]
    if not made:
        raise ValueError("model has no parameter that requires a gradient: there is nothing to train")
    return made
