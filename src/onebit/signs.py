"""Finds 1-bit inputs that can never be negative: sgn of them is +1 everywhere, and the layer behind is dead."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import fx, nn

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from torch.fx.node import Argument

RELUS = (nn.ReLU, nn.ReLU6)
_NEVER_NEGATIVE = (*RELUS, nn.Sigmoid, nn.Hardsigmoid, nn.Softplus, nn.Softmax)
_NEVER_NEGATIVE_CALLS: set[Any] = {
    F.relu, F.relu_, F.relu6, torch.relu, torch.relu_, torch.sigmoid, F.sigmoid, F.hardsigmoid, F.softplus,
    F.softmax, torch.softmax, torch.abs, torch.square,
    "relu", "relu_", "sigmoid", "sigmoid_", "softmax", "abs", "square",
}  # fmt: skip
_ARITHMETIC: set[Any] = {
    torch.add, torch.mul, operator.add, operator.iadd, operator.mul, operator.imul, "add", "add_", "mul", "mul_",
}  # fmt: skip
# What comes out has no sign that did not go in.
_KEEPS_SIGN = (
    nn.Identity, nn.Flatten, nn.Unflatten, nn.Dropout, nn.Dropout2d, nn.MaxPool2d, nn.AvgPool2d,
    nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.LPPool2d, nn.Upsample, nn.PixelShuffle, nn.PixelUnshuffle,
    nn.ChannelShuffle, nn.ZeroPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d, nn.CircularPad2d,
)  # fmt: skip
_KEEPS_SIGN_CALLS: set[Any] = {
    torch.flatten, torch.reshape, torch.permute, torch.transpose, torch.squeeze, torch.unsqueeze, torch.chunk,
    torch.split, torch.clone, torch.mean, torch.sum, torch.amax, torch.stack, operator.getitem, F.dropout,
    F.dropout2d, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.adaptive_max_pool2d, F.interpolate,
    F.pixel_shuffle, F.pad, torch.max_pool2d,
    "flatten", "reshape", "view", "permute", "transpose", "squeeze", "unsqueeze", "chunk", "split", "clone",
    "contiguous", "mean", "sum", "amax", "to", "float", "half", "detach", "expand", "repeat",
    *_ARITHMETIC,
}  # fmt: skip
_JOINS_CHANNELS = {torch.cat, torch.concat, torch.concatenate}


class DeadInput(NamedTuple):
    """A 1-bit conv whose input is never negative, and the calls that make it so."""

    conv: str
    culprits: tuple[fx.Node, ...]


class UntraceableError(ValueError):
    """The forward pass can't be followed without running it."""


class SignFlow:
    """Follows signs through a model's forward pass.

    `one_bit` holds the ids of the convs that take sgn of their input; ReLUs in `removed` count as not there.
    """

    def __init__(self, model: nn.Module, one_bit: AbstractSet[int]) -> None:
        self.model = model
        self.one_bit = one_bit
        try:
            self.graph = _Tracer().trace(model)
        except Exception as error:
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            raise UntraceableError(
                f"can't follow the forward pass of {type(model).__name__} to look for a ReLU before a 1-bit input, "
                f"which would make that layer dead ({reason}). Make sure that there is none and pass "
                f"relu_before_sign='keep'"
            ) from error

    def dead_inputs(self, removed: AbstractSet[int]) -> list[DeadInput]:
        """Every 1-bit conv with an input that is never negative."""
        sources = self._sources(removed)
        return [
            DeadInput(str(node.target), tuple(sources[node.args[0]]))
            for node in self.graph.nodes
            if self._is_one_bit(node) and isinstance(node.args[0], fx.Node) and sources[node.args[0]]
        ]

    def module_of(self, node: fx.Node) -> nn.Module | None:
        """The module that a node calls, if it calls one."""
        return self.model.get_submodule(str(node.target)) if node.op == "call_module" else None

    def feeds_only_signs(self, module: nn.Module) -> bool:
        """Whether all that a module returns, wherever it is called, ends in 1-bit inputs."""
        waiting = [node for node in self.graph.nodes if self.module_of(node) is module]
        seen = set(waiting)
        while waiting:
            node = waiting.pop()
            if not node.users:
                return False
            for user in node.users:
                if self._is_one_bit(user) or user in seen:
                    continue
                if not (self._is(user, _KEEPS_SIGN, _KEEPS_SIGN_CALLS) or self._is(user, RELUS, _JOINS_CHANNELS)):
                    return False
                seen.add(user)
                waiting.append(user)
        return True

    def _is_one_bit(self, node: fx.Node) -> bool:
        return id(self.module_of(node)) in self.one_bit

    def _is(self, node: fx.Node, modules: tuple[type, ...], calls: AbstractSet[Any]) -> bool:
        if node.op == "call_module":
            return isinstance(self.module_of(node), modules)
        return node.op in {"call_function", "call_method"} and node.target in calls

    def _sources(self, removed: AbstractSet[int]) -> dict[fx.Node, list[fx.Node]]:
        """For each node the calls because of which it (or a part of its channels) is never negative."""
        sources: dict[fx.Node, list[fx.Node]] = {}

        def of(argument: Argument) -> list[fx.Node]:
            return sources[argument] if isinstance(argument, fx.Node) else []

        for node in self.graph.nodes:
            inputs = node.all_input_nodes
            found = [of(each) for each in inputs]
            is_removed = id(self.module_of(node)) in removed
            if self._is(node, _NEVER_NEGATIVE, _NEVER_NEGATIVE_CALLS) and not is_removed:
                sources[node] = [node]
            elif self._is(node, (), _JOINS_CHANNELS):  # one operand is enough to make its channels dead
                sources[node] = [source for each in found for source in each]
            elif is_removed or self._is(node, _KEEPS_SIGN, _KEEPS_SIGN_CALLS):
                sources[node] = [s for each in found for s in each] if all(found) and not _shifts(node) else []
            else:
                sources[node] = []
        return sources


def _shifts(node: fx.Node) -> bool:
    """Whether a negative number is added or multiplied with (elsewhere a negative number is an axis or a size)."""
    return node.target in _ARITHMETIC and any(isinstance(a, int | float) and a < 0 for a in node.args)


class _Tracer(fx.Tracer):
    """Sees modules as calls; leaves the user's hooks alone, which expect tensors."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return super().is_leaf_module(m, module_qualified_name) or not list(m.children())

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:  # noqa: ARG002
        return super().call_module(m, m.forward, args, kwargs)
