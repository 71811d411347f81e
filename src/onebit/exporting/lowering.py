"""From the operations that PyTorch traced to the nodes of a packed net, one by one.

`RULES` (in `onebit.exporting.rules`) says for each operation of PyTorch what becomes of it. Nothing is folded here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx

from onebit.errors import ExportError
from onebit.exporting.building import Builder, Wide
from onebit.exporting.refusals import refusal
from onebit.exporting.tracing import Traced
from onebit.graph import Array, GraphError, Value

MIXED = "it mixes the images of a batch, or fixes their number (as len(x) does: use x.shape[0] or -1)"


class CannotExportError(Exception):
    """Why an operation has no counterpart in the file; the caller adds where it stands."""


class Shaped(NamedTuple):
    """A value that was reshaped: it becomes a node, of this name, when somebody reads it in its new shape."""

    base: str
    shape: tuple[int, ...]
    name: str


Operand = Any  # a value's name, a Shaped, a constant Tensor, several of them, or a number


BATCH = object()  # the size of the batch, and whatever is computed from it
# These say the shape that they make; how they came to it does not matter.
RESHAPES = {"aten.view", "aten.reshape", "aten._unsafe_view"}


class Statistics(NamedTuple):
    """Mean and standard deviation of each channel of a value, as a batch norm makes them."""

    mean: Wide
    deviation: Wide


@dataclass
class Lowered:
    """The packed net so far, and the statistics of the values that batch norms make."""

    builder: Builder
    output: str
    statistics: dict[str, Statistics] = field(default_factory=dict)


class Call:
    """One traced operation: its arguments by name, and where it stands in the net."""

    def __init__(self, lowering: Lowering, node: fx.Node) -> None:
        self.lowering, self.node = lowering, node
        self.builder, self.statistics = lowering.builder, lowering.statistics
        schema: Any = node.target
        named = schema._schema.arguments  # noqa: SLF001 the schema of an operation has no public name
        given = dict(zip((argument.name for argument in named), node.args, strict=False)) | node.kwargs
        defaults = {argument.name: argument.default_value for argument in named if argument.has_default_value()}
        self.arguments = {name: lowering.operand(value) for name, value in (defaults | given).items()}

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def value(self, name: str = "input") -> str:
        """The name of the value that an argument is; a constant has none."""
        return self.as_value(self.arguments.get(name, self.arguments.get("self")))

    def as_value(self, operand: Operand) -> str:
        """The name of a value, in the shape in which it is read."""
        if isinstance(operand, Shaped):
            return self.lowering.reshaped(operand)
        if not isinstance(operand, str):
            raise CannotExportError("it reads a constant where the net's own values are expected")
        return operand

    def shape_of(self, operand: Operand) -> Value:
        """What is known of a value."""
        return self.builder.values[self.as_value(operand)]

    def constant(self, name: str, dtype: torch.dtype = torch.float64) -> Any:
        """A fixed tensor, or None."""
        found = self.arguments[name]
        if found is None:
            return None
        if not isinstance(found, Tensor):
            raise CannotExportError(f"its {name} is computed from the input; it must be fixed")
        return found.to(dtype).numpy()

    def weight_and_bias(self) -> dict[str, Array]:
        """The tensors of a convolution or a linear layer."""
        found = {role: self.constant(role, torch.float32) for role in ("weight", "bias")}
        return {role: tensor for role, tensor in found.items() if tensor is not None}

    def add(self, op: str, *inputs: str, tensors: dict[str, Any] | None = None, **attributes: Any) -> str:
        """Add a node under the name of this call."""
        return self.builder.add(op, self.name(op), *inputs, tensors=tensors, **attributes)

    def affine(self, x: str, scale: Any, shift: Any = None) -> str:
        """Add scale * x + shift."""
        return self.builder.affine(self.name("affine"), x, scale, shift)

    def name(self, op: str) -> str:
        """A module's own name for the one operation that it does; otherwise the module's and the operation's."""
        path, kind = self.module
        return path if kind.startswith("torch.nn.") and path else f"{path}.{op}".lstrip(".")

    @property
    def module(self) -> tuple[str, str]:
        """The name and the class of the module within which the call stands."""
        stack = list((self.node.meta.get("nn_module_stack") or {}).values())
        path, kind = stack[-1] if stack else ("", "")
        return str(path), kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Of what PyTorch makes here, the batch aside."""
        batch, *shape = self.node.meta["val"].shape
        if isinstance(batch, int) or any(not isinstance(side, int) for side in shape):
            raise CannotExportError(MIXED)
        return tuple(shape)


Rule = Callable[[Call], Operand]


class Lowering:
    """Goes through the traced operations in order."""

    def __init__(self, traced: Traced, input_shape: tuple[int, int, int], rules: dict[str, Rule]) -> None:
        self.traced, self.rules = traced, rules
        self.builder = Builder(input_shape)
        self.statistics: dict[str, Statistics] = {}
        self.known: dict[fx.Node, Operand] = {}
        self.reshapes: dict[tuple[str, tuple[int, ...]], str] = {}

    def run(self) -> Lowered:
        """Lower everything; raises ExportError at the first operation that can't be."""
        for node in self.traced.graph.nodes:
            if node.op == "placeholder":
                is_input = node.name == self.traced.input_name
                self.known[node] = "input" if is_input else self.traced.constants[node.name]
            elif node.op == "output":
                return Lowered(self.builder, self._output(node), self.statistics)
            else:
                self.known[node] = self._lower(node)
        raise ExportError("the net returns nothing")

    def operand(self, argument: Any) -> Operand:
        """What an argument of a traced operation is here."""
        if isinstance(argument, fx.Node):
            return self.known[argument]
        if isinstance(argument, list | tuple):
            return tuple(self.operand(each) for each in argument)
        return argument

    def reshaped(self, operand: Shaped) -> str:
        """The name of a value in its new shape; the node that makes it is added once."""
        if operand.shape == self.builder.values[operand.base].shape:
            return operand.base
        if len(operand.shape) not in {1, 3}:
            raise CannotExportError(f"a tensor of {len(operand.shape) + 1} dimensions is read; it must be 2 or 4")
        key = (operand.base, operand.shape)
        if key not in self.reshapes:
            name, shape = operand.name, list(operand.shape)
            self.reshapes[key] = self.builder.add("reshape", name, operand.base, shape=shape)
        return self.reshapes[key]

    def _lower(self, node: fx.Node) -> Operand:
        name = operation_name(node.target)
        if name == "getitem":
            several: Any = self.operand(node.args[0])
            return several[node.args[1]]
        if name == "aten.sym_size" or getattr(node.target, "__module__", "") in {"_operator", "math", "torch.fx"}:
            return BATCH
        if not hasattr(node.target, "_schema"):
            raise ExportError(f"the forward pass has a {name}, which can't be exported. {_ADVICE}")
        call = Call(self, node)
        inputs = [self.known[each] for each in node.all_input_nodes]
        try:
            if all(isinstance(each, Tensor) for each in inputs) and not _is_random(node):
                return self._computed(node)
            of_batch = BATCH in _flat(call.arguments.values()) and name not in RESHAPES and not _is_random(node)
            return (_refuse_batch if of_batch else self.rules.get(name, _refuse))(call)
        except (CannotExportError, GraphError) as error:
            raise ExportError(f"{place(call)}: {error}. {_ADVICE}") from None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ExportError(f"{place(call)}: it is used in a way that can't be exported. {_ADVICE}") from error

    def _computed(self, node: fx.Node) -> Operand:
        """Operations on constants alone are done now."""
        function: Any = node.target
        arguments = [self.operand(argument) for argument in node.args]
        arguments = [list(each) if isinstance(each, tuple) else each for each in arguments]
        found: Operand = function(*arguments, **{key: self.operand(value) for key, value in node.kwargs.items()})
        return found

    def _output(self, node: fx.Node) -> str:
        returned: Any = node.args[0]
        made = [self.known[each] for each in returned] if all(isinstance(e, fx.Node) for e in returned) else []
        if len(made) != 1 or not isinstance(made[0], str | Shaped):
            raise ExportError("the net must return one tensor: wrap it in a module that returns the logits only")
        try:
            return made[0] if isinstance(made[0], str) else self.reshaped(made[0])
        except (CannotExportError, GraphError) as error:
            raise ExportError(f"what the net returns: {error}") from None


def _flat(operands: Iterable[Any]) -> list[Any]:
    """All of them, those within tuples too; tensors apart, which compare by their elements."""
    flat: list[Any] = []
    for operand in operands:
        if isinstance(operand, tuple) and not isinstance(operand, Shaped):
            flat += _flat(operand)
        elif not isinstance(operand, Tensor):
            flat.append(operand)
    return flat


def _is_random(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _refuse_batch(call: Call) -> Operand:  # noqa: ARG001
    raise CannotExportError("it computes with the size of the batch")


def _refuse(call: Call) -> Operand:
    raise CannotExportError(refusal(operation_name(call.node.target), is_random=_is_random(call.node)))


_ADVICE = "docs/export.md lists what is supported; write it otherwise, or leave it to the code around the net"


def operation_name(target: Any) -> str:
    """Such as 'aten.relu' for any of the overloads and for the form that works in place."""
    packet = getattr(target, "overloadpacket", target)
    name: str = getattr(packet, "__name__", str(packet))
    namespace = getattr(target, "namespace", "")
    return f"{namespace}.{name}" if namespace else name


def place(call: Call) -> str:
    """Which layer, which operation, which line."""
    path, kind = call.module
    layer = f"layer {path!r} ({kind.rpartition('.')[2]})" if path else "the net"
    trace = (call.node.meta.get("stack_trace") or "").strip().splitlines()
    lines = [line.strip() for line in trace]
    files = [
        at
        for at, line in enumerate(lines)
        if line.startswith("File ") and "/torch/nn/" not in line and "/onebit/exporting/" not in line
    ]
    where = ""
    if files:
        file, number, *_ = lines[files[-1]].split(", ")
        code = lines[files[-1] + 1] if files[-1] + 1 < len(lines) else ""
        where = f" at {file.removeprefix('File ').strip(chr(34))}:{number.removeprefix('line ')} `{code}`"
    return f"{layer}: {operation_name(call.node.target)}{where}"


def channelwise(constant: Wide, value: Value) -> Wide:
    """A constant that is added to or multiplied with a value, as one number or one a channel."""
    shape = [1] * (len(value.shape) + 1 - constant.ndim) + list(constant.shape)
    if len(shape) != len(value.shape) + 1 or any(side != 1 for axis, side in enumerate(shape) if axis != 1):
        raise CannotExportError(
            f"a constant of shape {list(constant.shape)} is neither one number nor one a channel"
        )
    if shape[1] not in {1, value.channels}:
        raise CannotExportError(f"a constant of shape {list(constant.shape)} makes its input larger")
    return np.asarray(constant.reshape(-1), np.float64)


def as_constant(operand: Operand) -> Wide | None:
    """A number or a fixed tensor; None for a value of the net."""
    if isinstance(operand, int | float) and not isinstance(operand, bool):
        return np.asarray(operand, np.float64)
    if isinstance(operand, Tensor):
        wide: Wide = operand.to(torch.float64).numpy()
        return wide
    return None
