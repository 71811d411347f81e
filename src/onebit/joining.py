"""Adds the gradients of L_P, and of losses that other layers have of their own, to those of the task."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from onebit import projection as pj
from onebit.convolution import QuantizedConv2d
from onebit.errors import NotFiniteError
from onebit.layers import ProjectionConv2d

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Due(NamedTuple):
    """A layer whose C.grad waits for L_P."""

    name: str
    layer: ProjectionConv2d
    eta: float
    group: ProcessGroup | None  # whose members' delta is averaged


@torch.no_grad()
def join(due: list[Due], *, delta_scale: float, grad_scale: float, may_overflow: bool) -> Tensor:
    """All of L_P is computed before any of it is added: an error leaves every gradient as it was."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and dynamo.config.compiled_autograd:
        raise RuntimeError("torch._dynamo.config.compiled_autograd leaves out the hooks that keep delta: unset it")
    deltas = [_delta(d) if delta_scale == 1 else _delta(d) / delta_scale for d in due]
    deltas = _averaged(due, deltas)
    of_layers = []
    for (_, layer, eta, _), delta in zip(due, deltas, strict=True):
        stacked = pj.separate(delta, layer.num_projections)
        own = eta if layer.eta is None else layer.eta
        of_layers.append(pj.projection_gradients(stacked, layer.C, layer.W, layer.lam, own, layer.projection))
    device = due[0].layer.C.device if due else None
    total = sum((loss.to(device) for loss, _ in of_layers), torch.zeros((), device=device))
    if not may_overflow and not total.isfinite():
        _raise_non_finite(due, deltas)
    for (_, layer, _, _), (_, gradients) in zip(due, of_layers, strict=True):
        for parameter, gradient in ((layer.C, gradients.C), (layer.W, gradients.W)):
            if parameter.grad is not None:
                parameter.grad.add_(gradient, alpha=grad_scale)
        layer._delta.set_joined()  # noqa: SLF001 the layer's other half
    return total


@torch.no_grad()
def join_own_losses(layers: dict[str, QuantizedConv2d], *, grad_scale: float) -> Tensor:
    """The losses of layers' parameters alone (MCN): the same in every process, so nothing is averaged."""
    own = {name: layer.own_loss() for name, layer in layers.items() if _has_gradient(layer)}
    found = {name: loss for name, loss in own.items() if loss is not None}
    to_add = [
        (name, grad, gradient)
        for name, (_, gradients) in found.items()
        for parameter_name, gradient in gradients.items()
        if (grad := getattr(layers[name], parameter_name).grad) is not None
    ]
    for name, grad, _ in to_add:
        # Whoever drops, zeroes or adds to a gradient changes the tensor or its version.
        if getattr(grad, "_joined_at", None) == grad._version:  # noqa: SLF001 torch's own counter
            raise RuntimeError(
                f"{name}: its gradients hold the layer's own loss already. Use either discrete_backprop or "
                f"add_projection_gradients, and zero_grad() after each step"
            )
    for _, grad, gradient in to_add:
        grad.add_(gradient, alpha=grad_scale)
    for _, grad, _ in to_add:  # at last: gradients may share a counter (DDP's buckets) or be shared
        grad._joined_at = grad._version  # noqa: SLF001
    total = torch.zeros(())
    for loss, _ in found.values():
        total = total.to(loss.device) + loss
    return total


def has_own_loss(layer: nn.Module) -> bool:
    """Whether something of this layer joins at the step."""
    if isinstance(layer, ProjectionConv2d):
        return True
    return isinstance(layer, QuantizedConv2d) and type(layer).own_loss is not QuantizedConv2d.own_loss


def _has_gradient(layer: QuantizedConv2d) -> bool:
    kernel = layer._parameters.get(layer.KERNEL or "")  # noqa: SLF001
    return kernel is not None and kernel.grad is not None


def _delta(due: Due) -> Tensor:
    kept = due.layer._delta  # noqa: SLF001 the layer's other half
    delta = kept.read()
    # DDP gives a layer that this process did not use a gradient, and leaves no other trace of a new step here.
    if kept.joined and (delta is not None or due.group is None):
        raise RuntimeError(
            f"{due.name}: its gradients hold L_P already. Use either discrete_backprop or "
            f"add_projection_gradients, and zero_grad() after each step, of an optimizer made after binarize()"
        )
    if delta is not None:
        return delta
    C_grad = due.layer.C.grad
    if due.group is not None or (C_grad is not None and not C_grad.any()):  # not used in this forward pass
        return torch.zeros_like(kept.leaf)
    raise RuntimeError(
        f"{due.name}: C has a gradient but the backward pass left no delta. delta is kept by loss.backward() "
        f"without inputs=, through the layer itself (not functional_call, DataParallel or sharded parameters)"
    )


def _averaged(due: list[Due], deltas: list[Tensor]) -> list[Tensor]:
    """Each delta's mean over the processes of its layer's group, as DDP does it for .grad, in one message."""
    messages = defaultdict(list)
    for i, (d, delta) in enumerate(zip(due, deltas, strict=True)):
        if d.group is not None:
            messages[d.group, delta.device, delta.dtype].append(i)
    averaged = list(deltas)
    for (group, _, _), members in messages.items():
        flat = torch.cat([deltas[i].flatten() for i in members])
        dist.all_reduce(flat, group=group)
        flat /= dist.get_world_size(group)
        parts = flat.split([deltas[i].numel() for i in members])
        for i, part in zip(members, parts, strict=True):
            averaged[i] = part.view(deltas[i].shape)
    return averaged


def waiting_layers(
    model: nn.Module, process_group: ProcessGroup | Literal["auto", "local"]
) -> Iterator[tuple[str, ProjectionConv2d, ProcessGroup | None]]:
    """Layers with a gradient and a lam, in the order of registration, which is the same in every process."""
    if process_group is None or (isinstance(process_group, str) and process_group not in {"auto", "local"}):
        raise ValueError(f"process_group={process_group!r}: use 'auto', 'local' or a ProcessGroup")
    group_of: dict[int, ProcessGroup] = {}
    if process_group == "auto":
        for module in model.modules():
            if isinstance(module, DistributedDataParallel):
                group_of |= dict.fromkeys(map(id, module.modules()), module.process_group)
    for name, layer in model.named_modules():
        if not isinstance(layer, ProjectionConv2d) or layer.lam == 0:
            continue
        if "C" not in layer._parameters:  # noqa: SLF001
            raise RuntimeError(
                f"{name or 'the layer'}: C is parametrized or pruned, L_P can't reach it: undo that, or set lam=0"
            )
        if layer.C.grad is None:
            continue
        group = group_of.get(id(layer)) if isinstance(process_group, str) else process_group
        if process_group == "auto" and group is None and _has_companions():
            raise RuntimeError(
                f"{name}: torch.distributed runs {dist.get_world_size()} processes, but the layer is not inside a "
                f"DistributedDataParallel. Pass the wrapped model, or process_group=... (the group whose gradients "
                f"you average, or 'local' if none)"
            )
        yield name or "the layer", layer, group


def _has_companions() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _raise_non_finite(due: list[Due], deltas: list[Tensor]) -> None:
    for (name, layer, _, _), delta in zip(due, deltas, strict=True):
        pj.check_finite(f"C of {name}", layer.C)
        pj.check_finite(f"W of {name}", layer.W)
        pj.check_finite(f"the gradient at the quantised kernels of {name}", delta)
    raise NotFiniteError("L_P overflowed: a smaller learning rate or lam would do")
