"""delta = dL_S/dD of one layer, kept from the backward pass until L_P needs it."""

from __future__ import annotations

from collections.abc import Callable
from weakref import ReferenceType, WeakMethod, ref

import torch
from torch import Tensor
from torch.nn import Parameter


class Delta:
    """Accumulates dL_S/dD for exactly as long as C.grad accumulates dL_S/dC.

    `leaf` is an extra input of the layer's quantiser whose gradient is dL_S/dD. It is a leaf, so autograd
    itself accumulates `leaf.grad`, eager or compiled, just when it accumulates C.grad and never for a
    `torch.autograd.grad` that leaves C.grad alone; and it holds no memory of its own, being one zero expanded.

    What autograd can't do is drop `leaf.grad` together with C.grad, which users drop in many ways
    (optimizer.zero_grad, model.zero_grad, .grad = None, .grad.zero_()). So before anything is added in a
    backward pass, and before delta is read, `_drop_if_ended` looks whether the C.grad that delta belongs to
    is still there.

    Why not a registered buffer: DDP would broadcast rank 0's. Why not a Parameter: it would be counted,
    clipped, saved and stepped.
    """

    def __init__(self, C: Parameter, shape: tuple[int, ...]) -> None:
        self.C = C
        self.leaf = torch.zeros((), dtype=C.dtype, device=C.device).expand(shape).requires_grad_()
        self._joined: ReferenceType[Tensor] | None = None  # the C.grad that L_P was added to
        self.in_fp16 = False  # the last forward pass ran in float16, so gradients are probably scaled
        self._version = -1  # C.grad's version when we last saw it change
        self._backward_pass = -1
        # torch takes a hook only while gradients are on; it stays when they are turned off and on again.
        wanted = C.requires_grad
        C.requires_grad_()
        self._handles = [
            self.leaf.register_hook(_weakly(self._before_accumulation)),
            C.register_hook(_weakly(self._before_accumulation)),
            C.register_post_accumulate_grad_hook(_weakly(self._note_version)),
        ]
        C.requires_grad_(wanted)

    def remove_hooks(self) -> None:
        """Leave C as it was, before another Delta takes this one's place."""
        for handle in self._handles:
            handle.remove()

    def take_over(self, old: Delta, was_joined: bool, fn: Callable[[Tensor], Tensor]) -> None:
        """Go on from `old` after `fn` (a change of device, dtype or layout) was applied to C and C.grad."""
        if old.leaf.grad is not None:
            self.leaf.grad = fn(old.leaf.grad)
        self.in_fp16 = old.in_fp16
        self._joined = ref(self.C.grad) if was_joined and self.C.grad is not None else None
        self._note_version(self.C)

    def read(self) -> Tensor | None:
        """dL_S/dD summed over the backward passes of C.grad's life; None if there was none."""
        self._drop_if_ended()
        return None if self.leaf.grad is None else self.leaf.grad.detach()

    @property
    def joined(self) -> bool:
        """Whether L_P is already in C.grad: nothing happened since, or more was added to the same gradient.

        Not just 'since no backward came': DDP gives a layer that this process did not use a gradient without any,
        and may write it into the tensor that held the last one.
        """
        grad = self.C.grad
        if grad is None or self._joined is None or self._joined() is not grad:
            return False
        return self.leaf.grad is not None or grad._version == self._version  # noqa: SLF001

    def set_joined(self) -> None:
        """L_P has been added to C.grad: delta has done its work."""
        self.leaf.grad = None
        self._joined = None if self.C.grad is None else ref(self.C.grad)
        self._note_version(self.C)

    def _before_accumulation(self, _grad: Tensor) -> None:
        # Called for C and for the leaf, in either order; the first of a pass sees C.grad as it was left.
        # (register_multi_grad_hook(mode="any") would say this without a private name, but it keeps an entry
        # for every backward pass for ever.)
        this_pass = torch._C._current_graph_task_id()  # noqa: SLF001
        if this_pass != self._backward_pass:
            self._backward_pass = this_pass
            self._drop_if_ended()

    def _note_version(self, C: Tensor) -> None:
        if C.grad is not None:
            self._version = C.grad._version  # noqa: SLF001

    def _drop_if_ended(self) -> None:
        grad = self.C.grad
        # zero_grad(set_to_none=False) ends a gradient's life too: it was written to, and is all zero. Both are
        # asked, because a gradient can be zero of itself (every weight outside the mask) while delta is not.
        if grad is None or (grad._version != self._version and not grad.any()):  # noqa: SLF001
            self.leaf.grad = None
            self._joined = None


def _weakly(method: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
    """A hook that does not keep its owner alive: tensors hold their hooks where Python's collector can't see."""
    weak = WeakMethod(method)

    def hook(tensor: Tensor) -> None:
        alive = weak()
        if alive is not None:
            alive(tensor)

    return hook
