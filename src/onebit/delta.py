"""delta = dL_S/dD of one layer, kept from the backward pass until L_P needs it."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from weakref import ReferenceType, WeakMethod, ref

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.nn import Parameter


class Delta:
    """Accumulates dL_S/dD for exactly as long as C.grad accumulates dL_S/dC.

    `leaf` is an extra input of the layer's quantiser whose gradient is dL_S/dD. It is a leaf, so autograd
    itself accumulates `leaf.grad`, eager or compiled, just when it accumulates C.grad and never for a
    `torch.autograd.grad` that leaves C.grad alone; and it holds no memory of its own, being one zero expanded.

    What autograd can't do is drop `leaf.grad` together with C.grad, which users drop in many ways
    (optimizer.zero_grad, model.zero_grad, .grad = None, .grad.zero_()), none of which calls us. So before
    anything is added in a backward pass, and before delta is read, `_look` sees whether the C.grad that delta
    belongs to is still there. (docs/decisions/0001-delta.md says what else was tried.)
    """

    def __init__(self, C: Parameter, shape: tuple[int, ...]) -> None:
        self.C = C
        self.leaf = torch.zeros((), dtype=C.dtype, device=C.device).expand(shape).requires_grad_()
        self.joined = False  # L_P is already in C.grad
        self.in_fp16 = False  # the last forward pass ran in float16, so gradients are probably scaled
        self._zero_of_itself: Tensor | None = None  # whether C.grad was all zero when last added to
        self._pass: ReferenceType[_BackwardPass] | None = None
        self._lock = Lock()
        # torch takes a hook only while gradients are on; it stays when they are turned off and on again.
        wanted = C.requires_grad
        C.requires_grad_()
        self._handles = [
            self.leaf.register_hook(_weakly(self._before_accumulation)),
            C.register_hook(_weakly(self._before_accumulation)),
            C.register_post_accumulate_grad_hook(_weakly(self._after_accumulation)),
        ]
        C.requires_grad_(wanted)

    def fits(self, C: Parameter, shape: tuple[int, ...]) -> bool:
        """Whether this is a delta for C as it is now."""
        leaf = self.leaf
        return self.C is C and (leaf.shape, leaf.dtype, leaf.device) == (shape, C.dtype, C.device)

    def remove_hooks(self) -> None:
        """Leave C as it was, before another Delta takes this one's place."""
        for handle in self._handles:
            handle.remove()

    def take_over(self, old: Delta, fn: Callable[[Tensor], Tensor]) -> None:
        """Go on from `old` after `fn` (a change of device or dtype) was applied to C and C.grad."""
        if old.leaf.grad is not None:
            self.leaf.grad = fn(old.leaf.grad)
        self.joined, self.in_fp16, self._zero_of_itself = old.joined, old.in_fp16, old._zero_of_itself

    def read(self) -> Tensor | None:
        """dL_S/dD summed over the backward passes of C.grad's life; None if there was none."""
        self._look()
        return None if self.leaf.grad is None else self.leaf.grad.detach()

    def set_joined(self) -> None:
        """L_P has been added to C.grad: delta has done its work."""
        self.leaf.grad = None
        self.joined = True

    def _before_accumulation(self, _grad: Tensor) -> None:
        # Called for C and for the leaf, in either order. The first call of a pass sees C.grad as the user left it;
        # later ones, and those of passes inside this one (a re-entrant checkpoint), must not look again.
        with self._lock:
            if self._pass is not None and self._pass() is not None:
                return
            this_pass = _BackwardPass()
            self._pass = ref(this_pass)
            Variable._execution_engine.queue_callback(this_pass)  # noqa: SLF001
            self._look()

    def _after_accumulation(self, C: Tensor) -> None:
        if C.grad is not None:
            self._zero_of_itself = ~C.grad.any()

    def _look(self) -> None:
        grad = self.C.grad
        if grad is None or (not self._is_zero_of_itself() and not grad.any()):
            self.leaf.grad = None
            self.joined = False

    def _is_zero_of_itself(self) -> bool:
        """A gradient that is all zero was zeroed, unless backward made it so (every weight outside the mask)."""
        return self._zero_of_itself is not None and bool(self._zero_of_itself)


class _BackwardPass:
    """Stands for a backward pass that is under way: autograd holds it as a callback until the pass is over.

    Over by an error too, in which case the callback is not called but dropped; so that being alive, not being
    called, is what counts.
    """

    def __call__(self) -> None:
        pass


def _weakly(method: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
    """A hook that does not keep its owner alive: tensors hold their hooks where Python's collector can't see."""
    weak = WeakMethod(method)

    def hook(tensor: Tensor) -> None:
        alive = weak()
        if alive is not None:
            alive(tensor)

    return hook
