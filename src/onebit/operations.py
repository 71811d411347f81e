"""What a model file can hold: every operation with its attributes, its tensors and the value that it makes.

One table, `OPERATIONS`. Files are checked against it, docs/format.md is checked against it, and a test sees to it
that every engine knows every entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from onebit import shapes
from onebit.attributes import NUMBER, NUMBER_OR_NULL, REQUIRED, Attribute, flag, one_of, whole, wholes
from onebit.console import counted
from onebit.graph import Array, GraphError, Kind, Node, Value
from onebit.shapes import MAX_WINDOW, Infer, Seen

_CONVOLUTION = {
    "stride": wholes(2, 1, MAX_WINDOW, [1, 1]),
    "padding": wholes(4, 0, MAX_WINDOW, [0, 0, 0, 0]),  # top, bottom, left, right
    "dilation": wholes(2, 1, MAX_WINDOW, [1, 1]),
    "groups": whole(1, 1 << 16, 1),
}
_POOL = {
    "kernel_size": wholes(2, 1, MAX_WINDOW),
    "stride": wholes(2, 1, MAX_WINDOW),
    "padding": wholes(2, 0, MAX_WINDOW, [0, 0]),
    "ceil_mode": flag(default=False),
}
_WEIGHT = {"weight": ("float32", "float16", "int8"), "weight_scale?": ("float32",), "bias?": ("float32",)}


class Operation(NamedTuple):
    """What it does; the kinds of its inputs; attributes; tensors ('?': optional) with the dtypes they may have."""

    does: str
    takes: tuple[Kind, ...]
    infer: Infer
    attributes: Mapping[str, Attribute] = MappingProxyType({})
    tensors: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    most_inputs: int = 1
    least_inputs: int = 1


def default_attributes(op: str) -> dict[str, Any]:
    """The attributes that a node has if nothing is said about them."""
    rules = OPERATIONS[op].attributes.items()
    return {name: rule.default for name, rule in rules if rule.default is not REQUIRED}


def check_node(node: Node, inputs: list[Value], seen: Seen | None = None) -> Value:
    """The value that a node makes; raises GraphError if anything about the node is wrong.

    seen: what was found out about tensors before, if they may be shared.
    """
    seen = seen or Seen()
    operation = OPERATIONS[node.op]
    if not operation.least_inputs <= len(inputs) <= operation.most_inputs:
        raise GraphError(f"has {counted(len(inputs), 'input')}")
    for value in inputs:
        if value.kind not in operation.takes:
            raise GraphError(f"takes {' or '.join(operation.takes)}, not {value.kind}")
    if strange := sorted(set(node.attributes) ^ set(operation.attributes)):
        raise GraphError(f"attribute {strange[0]!r} is unknown or missing")
    for name, attribute in operation.attributes.items():
        if not attribute.is_right(node.attributes[name]):
            raise GraphError(f"{name} must be {attribute.words}")
    _check_tensors(node, operation, seen)
    made = operation.infer(node, inputs)
    if made.kind == "sums" and "weight" in node.tensors:
        most = seen.reach(node.tensors["weight"]) * max(-inputs[0].low, inputs[0].high)
        return made._replace(low=-most, high=most)
    return made


def _check_tensors(node: Node, operation: Operation, seen: Seen) -> None:
    known = {role.rstrip("?"): dtypes for role, dtypes in operation.tensors.items()}
    for role in node.tensors:
        if role not in known:
            raise GraphError(f"has a tensor {role!r}, which the operation does not know")
    for role, dtypes in operation.tensors.items():
        name = role.rstrip("?")
        if name not in node.tensors:
            if role == name:
                raise GraphError(f"lacks its tensor {role!r}")
            continue
        tensor = node.tensors[name]
        if tensor.dtype.name not in dtypes:
            raise GraphError(f"{name} is {tensor.dtype.name} and must be {' or '.join(dtypes)}")
        if tensor.dtype.kind == "f":
            _check_numbers(name, tensor, seen)


def _check_numbers(name: str, tensor: Array, seen: Seen) -> None:
    may_be_infinite = name == "thresholds"  # its bit never changes
    known = (id(tensor), "no NaN" if may_be_infinite else "finite")
    if known in seen.sound:
        return
    if not (~np.isnan(tensor) if may_be_infinite else np.isfinite(tensor)).all():
        raise GraphError(f"{name} holds numbers that are not finite")
    seen.sound.add(known)


def _elementwise(does: str) -> Operation:
    return Operation(does, ("float",), shapes.same)


_NUMBERS: tuple[Kind, ...] = ("float", "sums")

OPERATIONS: dict[str, Operation] = {
    "bconv2d": Operation(
        "convolution with 1-bit kernels; bits and levels give sums, floats give floats; padding adds nothing",
        ("bits", "levels", "float"),
        shapes.bconv2d,
        {
            **_CONVOLUTION,
            "out_channels": whole(1, 1 << 16),
            "kernel_size": wholes(2, 1, MAX_WINDOW),
            "projections": whole(1, 1 << 16, 1),
            "method": Attribute("a word", lambda v: isinstance(v, str) and len(v) <= 32 and v.isprintable(), ""),
        },
        {"kernels": ("uint8",), "masks?": ("uint8",), "modulation?": ("float32",)},
    ),
    "conv2d": Operation(
        "convolution; padding is 0; floats give floats, levels give sums",
        ("float", "levels"),
        shapes.conv2d,
        _CONVOLUTION,
        _WEIGHT,
    ),
    "linear": Operation(
        "weight @ x + bias; floats give floats, levels give sums", ("float", "levels"), shapes.linear, {}, _WEIGHT
    ),
    "affine": Operation(
        "scale * x + shift, for each channel",
        ("float", "sums", "bits"),
        shapes.per_channel("scale", "shift"),
        {},
        {"scale": ("float32",), "shift?": ("float32",)},
    ),
    "sign": Operation("+1 where x >= 0, else -1", ("float",), shapes.sign),
    "threshold": Operation(
        "+1 where x >= threshold, or x <= threshold in channels of at_most; else -1",
        _NUMBERS,
        shapes.threshold,
        {},
        {"thresholds": ("float32", "int32"), "at_most": ("uint8",)},
    ),
    "quantize": Operation(
        "the whole number nearest to per_unit * x, halves to the even one, from low to high",
        ("float",),
        shapes.quantize,
        {"per_unit": NUMBER, "low": whole(-128, 0), "high": whole(1, 255)},
    ),
    "add": Operation("sum of two; sides of 1 are repeated", ("float",), shapes.broadcast, {}, {}, 2, 2),
    "multiply": Operation("product of two; sides of 1 are repeated", ("float",), shapes.broadcast, {}, {}, 2, 2),
    "concatenate": Operation(
        "channels of all inputs, one after another", ("float", "bits"), shapes.concatenate, most_inputs=1 << 10
    ),
    "slice": Operation(
        "channels from start to stop",
        ("float", "bits", "sums"),
        shapes.slice_channels,
        {"start": whole(0, 1 << 16), "stop": whole(1, 1 << 16)},
    ),
    "reshape": Operation(
        "the same numbers in another shape, in order of channels, rows, columns",
        ("float",),
        shapes.reshape,
        {
            "shape": Attribute(
                "1 or 3 whole numbers", lambda v: any(wholes(n, 1, 1 << 20).is_right(v) for n in (1, 3))
            )
        },
    ),
    "pad": Operation(
        "rows and columns around the image",
        ("float", "bits", "levels"),
        shapes.pad,
        {
            "padding": wholes(4, 0, MAX_WINDOW),
            "mode": one_of("zeros", "reflect", "replicate", "circular"),
        },
    ),
    "max_pool2d": Operation(
        "the largest of each window", _NUMBERS, shapes.pool, {**_POOL, "dilation": wholes(2, 1, MAX_WINDOW, [1, 1])}
    ),
    "avg_pool2d": Operation(
        "the mean of each window; padding counts as 0 if count_include_pad",
        ("float",),
        shapes.pool,
        {**_POOL, "count_include_pad": flag(default=True)},
    ),
    "adaptive_avg_pool2d": Operation(
        "means of output_size parts of the image",
        ("float",),
        shapes.adaptive,
        {"output_size": wholes(2, 1, 1 << 16)},
    ),
    "prelu": Operation(
        "x where x >= 0, else slope * x", ("float",), shapes.per_channel("slope"), {}, {"slope": ("float32",)}
    ),
    "clamp": Operation(
        "x, at least low and at most high",
        ("float",),
        shapes.clamp,
        {"low": NUMBER_OR_NULL, "high": NUMBER_OR_NULL},
    ),
    "relu": _elementwise("max(x, 0)"),
    "sigmoid": _elementwise("1 / (1 + exp(-x))"),
    "hardsigmoid": _elementwise("min(max(x + 3, 0), 6) / 6"),
    "hardswish": _elementwise("x * min(max(x + 3, 0), 6) / 6"),
    "silu": _elementwise("x / (1 + exp(-x))"),
    "tanh": _elementwise("tanh(x)"),
    "elu": _elementwise("x where x > 0, else exp(x) - 1"),
    "abs": _elementwise("the size of x, without its sign"),
    "softmax": _elementwise("exp(x) over its sum over the channels"),
}
