"""Finds 1-bit inputs that can never be negative: sgn of them is +1 everywhere, and the layer behind is dead."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import fx, nn

from onebit.convolution import QuantizedConv2d

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet


RELUS = (nn.ReLU, nn.ReLU6)
_NEVER_NEGATIVE = (*RELUS, nn.Sigmoid, nn.Hardsigmoid, nn.Softplus, nn.Softmax, nn.Softmax2d)
_NEVER_NEGATIVE_CALLS: set[Any] = {
    F.relu, F.relu_, F.relu6, torch.relu, torch.relu_, torch.sigmoid, F.sigmoid, F.hardsigmoid, F.softplus,
    F.softmax, torch.softmax, torch.abs, torch.square, torch.exp, torch.sqrt, F.lp_pool2d,
    "relu", "relu_", "sigmoid", "sigmoid_", "softmax", "abs", "abs_", "square", "exp", "sqrt", "norm",
}  # fmt: skip
_ARITHMETIC: set[Any] = {
    torch.add, torch.mul, torch.div, operator.add, operator.iadd, operator.mul, operator.imul, operator.truediv,
    "add", "add_", "mul", "mul_", "div", "div_",
}  # fmt: skip
# What comes out has no sign that did not go in.
_KEEPS_SIGN = (
    nn.Identity, nn.Flatten, nn.Unflatten, nn.Dropout, nn.Dropout2d, nn.Dropout3d, nn.MaxPool2d, nn.AvgPool2d,
    nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Upsample, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle,
    nn.ZeroPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d, nn.CircularPad2d,
)  # fmt: skip
_KEEPS_SIGN_CALLS: set[Any] = {
    torch.flatten, torch.reshape, torch.permute, torch.transpose, torch.squeeze, torch.unsqueeze, torch.chunk,
    torch.split, torch.clone, torch.mean, torch.sum, torch.amax, torch.max, torch.stack, torch.roll, torch.flip,
    operator.getitem, F.dropout, F.dropout2d, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d,
    F.adaptive_max_pool2d, F.interpolate, F.pixel_shuffle, F.pad, torch.max_pool2d,
    "flatten", "reshape", "view", "permute", "transpose", "squeeze", "unsqueeze", "chunk", "split", "clone",
    "contiguous", "mean", "sum", "amax", "max", "roll", "flip", "to", "float", "half", "detach", "expand", "repeat",
    *_ARITHMETIC,
}  # fmt: skip
_JOINS_CHANNELS: set[Any] = {torch.cat, torch.concat, torch.concatenate}
_LARGER_OF: set[Any] = {torch.maximum, "maximum"}
_CLAMPS: set[Any] = {torch.clamp, torch.clip, torch.clamp_min, F.hardtanh, F.threshold,
                     "clamp", "clamp_", "clip", "clamp_min", "clamp_min_"}  # fmt: skip
_POWERS: set[Any] = {torch.pow, operator.pow, "pow", "pow_"}
# Asks about a tensor, not for its values.
_ASKS: set[Any] = {getattr, "size", "dim", "numel"}


class DeadInput(NamedTuple):
    """A 1-bit conv whose input is never negative, and the calls that make it so."""

    conv: str
    culprits: tuple[fx.Node, ...]


class UntraceableError(ValueError):
    """The forward pass can't be followed without running it."""


class SignFlow:
    """Follows signs through a model's forward pass.

    `one_bit` holds the ids of the convs that take sgn of their input. What it does not know may be negative: it
    finds the usual ways to a dead layer, not all.
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
        """Every 1-bit conv whose input is never negative, with the modules in `removed` taken as not there."""
        dead = []
        # For each node the calls because of which it (or a part of its channels) is never negative.
        causes: dict[fx.Node, list[fx.Node]] = {}
        numbers: set[fx.Node] = set()  # sizes and what is computed from them: they have no say
        for node in self.graph.nodes:
            read = node.all_input_nodes
            if self._is(node, (), _ASKS) or (read and numbers.issuperset(read)):
                numbers.add(node)
            inputs = [causes[each] for each in read if each not in numbers]
            if self._is_one_bit(node) and inputs and inputs[0]:
                dead.append(DeadInput(str(node.target), tuple(inputs[0])))
            is_removed = id(self.module_of(node)) in removed
            causes[node] = [] if node.op == "output" else self._causes(node, inputs, is_removed)
            if self._is_in_place(node) and not is_removed:
                causes[node.all_input_nodes[0]] = causes[node]
        return dead

    def module_of(self, node: fx.Node) -> nn.Module | None:
        """The module that a node calls, if it calls one."""
        return self.model.get_submodule(str(node.target)) if node.op == "call_module" else None

    def feeds_max_pool(self, module: nn.Module) -> bool:
        """Whether a max pool reads what a module returns."""
        pools = {F.max_pool2d, torch.max_pool2d}
        return any(self._is(user, (nn.MaxPool2d,), pools) for call in self._calls(module) for user in call.users)

    def feeds_only_signs(self, module: nn.Module) -> bool:
        """Whether all that a module returns, wherever it is called, ends in 1-bit inputs."""
        calls = self._calls(module)
        waiting = [user for call in calls for user in self._users(call)]
        seen = set(waiting)
        if any(not call.users for call in calls):
            return False
        while waiting:
            node = waiting.pop()
            if self._is_one_bit(node) or self._is(node, (), _ASKS):
                continue
            known = self._is(node, (*RELUS, *_KEEPS_SIGN), _KEEPS_SIGN_CALLS | _JOINS_CHANNELS)
            if not known or not node.users:
                return False
            new = [user for user in self._users(node) if user not in seen]
            seen.update(new)
            waiting += new
        return True

    def _calls(self, module: nn.Module) -> list[fx.Node]:
        return [node for node in self.graph.nodes if self.module_of(node) is module]

    def _users(self, node: fx.Node) -> list[fx.Node]:
        """Who reads what a node wrote; a node that works in place wrote its input as well."""
        users = list(node.users)
        if self._is_in_place(node):
            order = list(self.graph.nodes)
            later = set(order[order.index(node) + 1 :])
            users += [user for user in node.all_input_nodes[0].users if user in later]
        return users

    def _is_one_bit(self, node: fx.Node) -> bool:
        return id(self.module_of(node)) in self.one_bit

    def _is_in_place(self, node: fx.Node) -> bool:
        if not node.all_input_nodes:
            return False
        by_name = isinstance(node.target, str) and node.op == "call_method" and node.target.endswith("_")
        asked = node.kwargs.get("inplace") is True or getattr(self.module_of(node), "inplace", False) is True
        return by_name or asked

    def _is(self, node: fx.Node, modules: tuple[type, ...], calls: AbstractSet[Any]) -> bool:
        if node.op == "call_module":
            return isinstance(self.module_of(node), modules)
        return node.op in {"call_function", "call_method"} and node.target in calls

    def _causes(self, node: fx.Node, inputs: list[list[fx.Node]], is_removed: bool) -> list[fx.Node]:
        of_inputs = [cause for each in inputs for cause in each]
        if self._makes_non_negative(node) and not is_removed:
            return [node]
        if self._is(node, (), _JOINS_CHANNELS | _LARGER_OF):  # one operand is enough
            return of_inputs
        if is_removed or self._is(node, _KEEPS_SIGN, _KEEPS_SIGN_CALLS):
            return of_inputs if all(inputs) and not _shifts(node) else []
        return []

    def _makes_non_negative(self, node: fx.Node) -> bool:
        module, numbers = self.module_of(node), [a for a in node.args if isinstance(a, int | float)]
        if isinstance(module, nn.Hardtanh) and not isinstance(module, nn.ReLU6):
            return module.min_val >= 0
        if isinstance(module, nn.Threshold):
            return min(module.threshold, module.value) >= 0
        if self._is(node, (), _CLAMPS):
            low = node.kwargs.get("min", node.kwargs.get("min_val", numbers[0] if numbers else None))
            return isinstance(low, int | float) and low >= 0 and all(number >= 0 for number in numbers)
        if self._is(node, (), _POWERS):
            return bool(numbers) and numbers[0] % 2 == 0
        if self._is(node, (), _ARITHMETIC) and "mul" in str(node.target):  # x * x
            return len(node.args) == 2 and node.args[0] is node.args[1]
        return self._is(node, _NEVER_NEGATIVE, _NEVER_NEGATIVE_CALLS)


def _shifts(node: fx.Node) -> bool:
    """Whether a negative number is added or multiplied with (elsewhere a negative number is an axis or a size)."""
    return node.target in _ARITHMETIC and any(isinstance(a, int | float) and a < 0 for a in node.args)


class _Tracer(fx.Tracer):
    """Sees modules as calls; leaves the user's hooks alone, which expect tensors."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return super().is_leaf_module(m, module_qualified_name) or isinstance(m, nn.Conv2d | QuantizedConv2d)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:  # noqa: ARG002
        return super().call_module(m, m.forward, args, kwargs)
