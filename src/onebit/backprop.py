"""Discrete back propagation: the projection loss L_P joins the gradients just before the optimizer's step.

Why at the step and not inside backward(): L_P depends on delta of the whole batch (Eq. 8), and it is not
linear in it. At the step delta is complete: two micro-batches have been summed, two processes averaged.

What the rival methods do at the step goes the same way, so that one loop serves them all: losses of their own
before it, clips and re-centrings after it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import OptState

from onebit.convolution import QuantizedConv2d
from onebit.joining import Due, has_own_loss, join, join_own_losses, waiting_layers
from onebit.layers import ProjectionConv2d

if TYPE_CHECKING:
    from torch.amp import GradScaler
    from torch.distributed import ProcessGroup
    from torch.optim import Optimizer


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
        onebit.constrain_weights(model)  # for the methods that clip or centre their weights
        optimizer.zero_grad()

    MCN's loss L_M joins the same way, and is in what is returned.

    eta             the current learning rate of C
    scaler          the `GradScaler` in use, after scaler.unscale_(optimizer). Without float16 its use can't be seen
                    from here: do pass it
    process_group   'auto': delta is averaged over the group of the DistributedDataParallel that holds a
                    layer, so pass the wrapped model; a group: over that one; 'local': each process for itself
    """
    if not (math.isfinite(eta) and eta >= 0):
        raise ValueError(f"eta={eta!r}: use the current learning rate of C, a finite number >= 0")
    if scaler is not None and scaler.is_enabled() and not _has_unscaled(scaler):
        raise RuntimeError("scaler has unscaled no gradients: call scaler.unscale_(optimizer) before")
    served = {id(module) for attached in _ATTACHED.values() for module in attached.model.modules()}
    if any(has_own_loss(module) and id(module) in served for module in model.modules()):
        raise RuntimeError(
            "discrete_backprop is attached to an optimizer of this model and adds L_P at its step: use either that "
            "or add_projection_gradients"
        )
    due = [Due(name, layer, eta, group) for name, layer, group in waiting_layers(model, process_group)]
    loss_p = join(
        due,
        delta_scale=_delta_scale((d.layer for d in due), scaler),
        grad_scale=1.0,
        may_overflow=scaler is not None and scaler.is_enabled(),  # scaler.step() then skips the step
    )
    return loss_p + join_own_losses(_quantized_layers(model), grad_scale=1.0).to(loss_p.device)


def constrain_weights(model: nn.Module) -> None:
    """Clip and re-centre weights as their methods say, after optimizer.step() in a loop of one's own.

    `discrete_backprop` does it by itself. Layers of methods that do nothing then are left alone.
    """
    for layer in _quantized_layers(model).values():
        if _moved(layer):
            layer.constrain()


def discrete_backprop(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    scaler: GradScaler | None = None,
    process_group: ProcessGroup | Literal["auto", "local"] = "auto",
) -> DiscreteBackprop:
    """Make every optimizer.step() first add the gradients of L_P, with eta the learning rate of C's group.

    For the other methods: add the losses that they have of their own before the step (MCN), and clip and re-centre
    weights after it (BinaryConnect, BNN, BWN, XNOR-Net, MCN).

        onebit.discrete_backprop(model, optimizer)
        for images, labels in data:          # an ordinary loop
            loss = loss_function(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    A closure given to step() then returns L_S + L_P. With a `GradScaler`, pass it; with
    `DistributedDataParallel`, pass the wrapped model. Layers whose C is in another optimizer are left to that
    one, and layers whose C is frozen get no L_P. A model without 1-bit layers is left alone, so that one loop
    serves every method. A copy of the optimizer has no hooks (as torch has it): attach to it anew.
    """
    if not isinstance(model, nn.Module) or not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            f"discrete_backprop(model, optimizer) takes an nn.Module and a torch optimizer, not "
            f"{type(model).__name__} and {type(optimizer).__name__}"
        )
    if optimizer in _ATTACHED:
        raise RuntimeError(
            "discrete_backprop is attached to this optimizer already: L_P would be added twice. "
            "To attach anew, call .remove() on what the first call returned"
        )
    owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
    layers = {name: layer for name, layer in _quantized_layers(model).items() if layer.KERNEL}
    kernels = {name: (layer, getattr(layer, layer.KERNEL or "")) for name, layer in layers.items()}
    trainable = {name: (layer, kernel) for name, (layer, kernel) in kernels.items() if kernel.requires_grad}
    mine = {name: layer for name, (layer, kernel) in trainable.items() if id(kernel) in owned}
    if trainable and not mine:
        raise ValueError(
            "optimizer holds none of the model's kernels: make it after binarize(), from "
            "onebit.parameter_groups(model, ...) or model.parameters()"
        )
    for name, layer in mine.items():
        matrix = getattr(layer, layer.MATRIX) if layer.MATRIX else None
        if matrix is not None and matrix.requires_grad and id(matrix) not in owned:
            raise ValueError(
                f"optimizer holds {layer.KERNEL} of {name or 'the layer'} but not its {layer.MATRIX}, which moves "
                f"at the same step: make it after binarize(), from onebit.parameter_groups(model, ...) or "
                f"model.parameters()"
            )
    attached = DiscreteBackprop(model, optimizer, scaler, process_group)
    _ATTACHED[optimizer] = attached
    return attached


class DiscreteBackprop:
    """What `discrete_backprop` returns: `projection_loss` of the last step (L_P, or MCN's L_M), and `remove()`."""

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
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def remove(self) -> None:
        """Let optimizer.step() be as it was."""
        for handle in self._handles:
            handle.remove()
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
        lr = {id(p): float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}
        waiting = waiting_layers(self.model, self.process_group)
        due = [Due(name, layer, lr[id(layer.C)], group) for name, layer, group in waiting if id(layer.C) in lr]
        if due and self.scaler is None and _inside_grad_scaler_step():
            raise RuntimeError(f"optimizer.step() was called by a GradScaler. {_HOW_SCALED}")
        # A fused optimizer unscales inside its kernel: until then .grad is scaled, and L_P's part must be too.
        # It also gets called when there was an overflow, and then changes nothing.
        grad_scale = 1.0 if (found := getattr(optimizer, "grad_scale", None)) is None else float(found)
        self.projection_loss = join(
            due,
            delta_scale=_delta_scale((d.layer for d in due), self.scaler),
            grad_scale=grad_scale,
            may_overflow=getattr(optimizer, "found_inf", None) is not None,
        )
        own = join_own_losses(self._layers_in(optimizer), grad_scale=grad_scale)
        self.projection_loss = self.projection_loss + own.to(self.projection_loss.device)
        return self.projection_loss

    def _after_step(self, optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and bool(found_inf):  # a fused optimizer is called by the scaler even then
            return
        for layer in self._layers_in(optimizer).values():
            layer.constrain()

    def _layers_in(self, optimizer: Optimizer) -> dict[str, QuantizedConv2d]:
        """Layers whose kernels or matrices this optimizer moves: the others are another's, or frozen."""
        owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
        layers = _quantized_layers(self.model).items()
        return {name: layer for name, layer in layers if any(id(p) in owned for p in _moved(layer))}


def _quantized_layers(model: nn.Module) -> dict[str, QuantizedConv2d]:
    return {name: module for name, module in model.named_modules() if isinstance(module, QuantizedConv2d)}


def _moved(layer: QuantizedConv2d) -> list[nn.Parameter]:
    """The layer's kernels and matrices, as far as they learn."""
    found = [layer._parameters.get(name or "") for name in (layer.KERNEL, layer.MATRIX)]  # noqa: SLF001
    return [parameter for parameter in found if parameter is not None and parameter.requires_grad]


_ATTACHED: WeakKeyDictionary[Optimizer, DiscreteBackprop] = WeakKeyDictionary()

_HOW_SCALED = (
    "delta is scaled as .grad was, and only the scaler knows by how much: pass scaler=... "
    "(a GradScaler(enabled=False) if nothing is scaled)"
)


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


def _has_unscaled(scaler: GradScaler) -> bool:
    states = scaler._per_optimizer_states.values()  # noqa: SLF001 there is no public way to ask
    return any(state["stage"] is OptState.UNSCALED for state in states)
