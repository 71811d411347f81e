"""Discrete back propagation: the projection loss L_P joins the gradients just before the optimizer's step.

Why at the step and not inside backward(): L_P depends on delta of the whole batch (Eq. 8), and it is not
linear in it. At the step delta is complete: two micro-batches have been summed, two processes averaged.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from onebit import projection as pj
from onebit.layers import ProjectionConv2d

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch.amp import GradScaler
    from torch.distributed import ProcessGroup
    from torch.optim import Optimizer


class _Due(NamedTuple):
    """A layer whose C.grad waits for L_P."""

    name: str
    layer: ProjectionConv2d
    eta: float
    group: ProcessGroup | None  # whose members' delta is averaged


def add_projection_gradients(
    model: nn.Module,
    eta: float,
    *,
    scaler: GradScaler | None = None,
    process_group: ProcessGroup | Literal["auto", "local"] = "auto",
) -> Tensor:
    """Add dL_P/dC and dL_P/dW (Eq. 15, 18, 19, 22) to .grad of every projection layer; return L_P.

    For a loop of one's own, between backward() and optimizer.step(), after any clipping (which is then of
    L_S alone):

        loss.backward()
        loss_p = onebit.add_projection_gradients(model, eta=optimizer.param_groups[0]["lr"])
        optimizer.step()
        optimizer.zero_grad()

    eta             the current learning rate of C
    scaler          the `GradScaler` in use, after scaler.unscale_(optimizer)
    process_group   'auto': delta is averaged over the group of the DistributedDataParallel that holds a
                    layer, so pass the wrapped model; a group: over that one; 'local': each process for itself
    """
    served = {id(module) for attached in _ATTACHED.values() for module in attached.model.modules()}
    if any(isinstance(module, ProjectionConv2d) and id(module) in served for module in model.modules()):
        raise RuntimeError(
            "discrete_backprop is attached to an optimizer of this model and adds L_P at its step: use either that "
            "or add_projection_gradients"
        )
    due = [_Due(name, layer, eta, group) for name, layer, group in _waiting_layers(model, process_group)]
    return _join(due, delta_scale=_delta_scale((d.layer for d in due), scaler), grad_scale=1.0, may_overflow=False)


def discrete_backprop(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    scaler: GradScaler | None = None,
    process_group: ProcessGroup | Literal["auto", "local"] = "auto",
) -> DiscreteBackprop:
    """Make every optimizer.step() first add the gradients of L_P, with eta the learning rate of C's group.

        onebit.discrete_backprop(model, optimizer)
        for images, labels in data:          # an ordinary loop
            loss = loss_function(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    A closure given to step() then returns L_S + L_P. With a `GradScaler`, pass it; with
    `DistributedDataParallel`, pass the wrapped model. Layers whose C is in another optimizer are left to that
    one. A model without projection layers is left alone, so that one loop serves every method.
    """
    if optimizer in _ATTACHED:
        raise RuntimeError(
            "discrete_backprop is attached to this optimizer already: L_P would be added twice. "
            "To attach anew, call .remove() on what the first call returned"
        )
    owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
    trainable = [
        layer for layer in model.modules() if isinstance(layer, ProjectionConv2d) and layer.C.requires_grad
    ]
    if trainable and not any(id(layer.C) in owned for layer in trainable):
        raise ValueError(
            "optimizer holds none of the model's kernels C: make it after binarize(), from "
            "onebit.parameter_groups(model, ...) or model.parameters()"
        )
    attached = DiscreteBackprop(model, optimizer, scaler, process_group)
    _ATTACHED[optimizer] = attached
    return attached


class DiscreteBackprop:
    """What `discrete_backprop` returns: `projection_loss` of the last step, and `remove()`."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        scaler: GradScaler | None,
        process_group: ProcessGroup | Literal["auto", "local"],
    ) -> None:
        self.model = model
        self.scaler = scaler
        self.process_group = process_group
        self.projection_loss = torch.zeros(())
        self._handle = optimizer.register_step_pre_hook(self._before_step)

    def remove(self) -> None:
        """Let optimizer.step() be as it was."""
        self._handle.remove()
        for optimizer in [o for o, attached in _ATTACHED.items() if attached is self]:
            del _ATTACHED[optimizer]

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[Any, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        # args[0] is the optimizer. The hook runs before a closure, whose backward() is yet to come.
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._join(optimizer)
            return None
        joined = self._joining(closure, optimizer)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": joined}
        return (args[0], joined, *args[2:]), kwargs

    def _joining(self, closure: Callable[[], Any], optimizer: Optimizer) -> Callable[[], Any]:
        def closure_with_projection_loss() -> Any:
            loss_s = closure()
            loss_p = self._join(optimizer)
            return None if loss_s is None else loss_s + loss_p

        return closure_with_projection_loss

    def _join(self, optimizer: Optimizer) -> Tensor:
        if self.scaler is None and _inside_grad_scaler_step():
            raise RuntimeError(f"optimizer.step() was called by a GradScaler. {_HOW_SCALED}")
        lr = {id(p): float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}
        waiting = _waiting_layers(self.model, self.process_group)
        due = [_Due(name, layer, lr[id(layer.C)], group) for name, layer, group in waiting if id(layer.C) in lr]
        # A fused optimizer unscales inside its kernel: until then .grad is scaled, and L_P's part must be too.
        # It also gets called when there was an overflow, and then changes nothing.
        grad_scale = getattr(optimizer, "grad_scale", None)
        self.projection_loss = _join(
            due,
            delta_scale=_delta_scale((d.layer for d in due), self.scaler),
            grad_scale=1.0 if grad_scale is None else float(grad_scale),
            may_overflow=getattr(optimizer, "found_inf", None) is not None,
        )
        return self.projection_loss


_ATTACHED: WeakKeyDictionary[Optimizer, DiscreteBackprop] = WeakKeyDictionary()

_HOW_SCALED = (
    "delta is scaled as .grad was, and only the scaler knows by how much: pass scaler=... "
    "(a GradScaler(enabled=False) if nothing is scaled)"
)


@torch.no_grad()
def _join(due: list[_Due], *, delta_scale: float, grad_scale: float, may_overflow: bool) -> Tensor:
    """All of L_P is computed before any of it is added: an error leaves every gradient as it was."""
    deltas = [_delta(d) if delta_scale == 1 else _delta(d) / delta_scale for d in due]
    deltas = _averaged(due, deltas)
    of_layers = []
    for (_, layer, eta, _), delta in zip(due, deltas, strict=True):
        stacked = pj.separate(delta, layer.num_projections)
        of_layers.append(pj.projection_gradients(stacked, layer.C, layer.W, layer.lam, eta, layer.projection))
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


def _delta(due: _Due) -> Tensor:
    kept = due.layer._delta  # noqa: SLF001 the layer's other half
    delta = kept.read()
    if kept.joined:
        raise RuntimeError(
            f"{due.name}: its gradients hold L_P already. Use either discrete_backprop or "
            f"add_projection_gradients, and zero_grad() after each step"
        )
    if delta is not None:
        return delta
    if due.group is not None:  # not used in this process's forward pass, but in another's
        return torch.zeros_like(kept.leaf)
    raise RuntimeError(
        f"{due.name}: C has a gradient but the backward pass left no delta. delta is kept by loss.backward() "
        f"without inputs=, through the layer itself (not functional_call, DataParallel or sharded parameters)"
    )


def _averaged(due: list[_Due], deltas: list[Tensor]) -> list[Tensor]:
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


def _waiting_layers(
    model: nn.Module, process_group: ProcessGroup | Literal["auto", "local"]
) -> Iterator[tuple[str, ProjectionConv2d, ProcessGroup | None]]:
    """Layers with a gradient and a lam, in the order of registration, which is the same in every process."""
    group_of: dict[int, ProcessGroup] = {}
    if process_group == "auto":
        for module in model.modules():
            if isinstance(module, DistributedDataParallel):
                group_of |= dict.fromkeys(map(id, module.modules()), module.process_group)
    for name, layer in model.named_modules():
        if not isinstance(layer, ProjectionConv2d) or layer.lam == 0 or layer.C.grad is None:
            continue
        if not isinstance(process_group, str):
            yield name, layer, process_group
            continue
        group = group_of.get(id(layer))
        if process_group == "auto" and group is None and _has_companions():
            raise RuntimeError(
                f"{name}: torch.distributed runs {dist.get_world_size()} processes, but the layer is not inside a "
                f"DistributedDataParallel. Pass the wrapped model, or process_group=... (the group whose gradients "
                f"you average, or 'local' if none)"
            )
        yield name, layer, group


def _has_companions() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _delta_scale(layers: Iterable[ProjectionConv2d], scaler: GradScaler | None) -> float:
    if scaler is not None:
        return float(scaler.get_scale())
    if any(layer._delta.in_fp16 for layer in layers):  # noqa: SLF001 the layer's other half
        raise RuntimeError(f"float16 needs a GradScaler. {_HOW_SCALED}")
    return 1.0


def _inside_grad_scaler_step() -> bool:
    frame = sys._getframe()  # noqa: SLF001 the scaler leaves no other trace on an optimizer that is not fused
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is torch.amp.GradScaler.step.__code__:
            return bool(frame.f_locals["self"].is_enabled())
    return False


def _raise_non_finite(due: list[_Due], deltas: list[Tensor]) -> None:
    for (name, layer, _, _), delta in zip(due, deltas, strict=True):
        pj.check_finite(f"{name}.C", layer.C)
        pj.check_finite(f"{name}.W", layer.W)
        pj.check_finite(f"the gradient at {name}'s quantised kernels", delta)
    raise ValueError("L_P overflowed: a smaller learning rate or lam would do")
