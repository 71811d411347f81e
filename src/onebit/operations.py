"""What a model file can hold: every operation with its attributes, its tensors and the value that it makes.

One table, `OPERATIONS`. Files are checked against it, docs/format.md is checked against it, and a test sees to it
that every engine knows every entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from onebit.attributes import NUMBER, NUMBER_OR_NULL, Attribute, flag, one_of, whole, wholes
from onebit.graph import Array, GraphError, Kind, Node, Value
from onebit.packing import has_stray_bits, packed_size

Infer = Callable[[Node, list[Value]], Value]


MAX_WINDOW = 1 << 10  # of a kernel's side, a stride, a dilation, a padding

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


def check_node(node: Node, inputs: list[Value]) -> Value:
    """The value that a node makes; raises GraphError if anything about the node is wrong."""
    operation = OPERATIONS[node.op]
    if not operation.least_inputs <= len(inputs) <= operation.most_inputs:
        raise GraphError(f"has {len(inputs)} inputs")
    for value in inputs:
        if value.kind not in operation.takes:
            raise GraphError(f"takes {' or '.join(operation.takes)}, not {value.kind}")
    if strange := sorted(set(node.attributes) ^ set(operation.attributes)):
        raise GraphError(f"attribute {strange[0]!r} is unknown or missing")
    for name, attribute in operation.attributes.items():
        if not attribute.is_right(node.attributes[name]):
            raise GraphError(f"{name} must be {attribute.words}")
    _check_tensors(node, operation)
    return operation.infer(node, inputs)


def _check_tensors(node: Node, operation: Operation) -> None:
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
        limits = name == "thresholds"  # +-inf: a bit that never changes
        is_float = tensor.dtype.kind == "f"
        if is_float and (np.isnan(tensor).any() or (not limits and not np.isfinite(tensor).all())):
            raise GraphError(f"{name} holds numbers that are not finite")


def _image(value: Value) -> tuple[int, int, int]:
    if len(value.shape) != 3:
        raise GraphError(f"takes images, not a value of shape {list(value.shape)}")
    return value.shape


def _wants(name: str, tensor: Array, *shapes: tuple[int, ...]) -> None:
    if tensor.shape not in shapes:
        raise GraphError(f"{name} has shape {list(tensor.shape)} and must have {list(shapes[-1])}")


def _wants_bits(name: str, tensor: Array, count: int) -> None:
    _wants(name, tensor, (packed_size(count),))
    if has_stray_bits(tensor, count):
        raise GraphError(f"{name} has bits set behind its last one")


def _windows(node: Node, value: Value, kernel: tuple[int, int]) -> tuple[int, int]:
    """Height and width of what a convolution makes."""
    _, height, width = _image(value)
    at, padding = node.attributes, node.attributes["padding"]
    sides = []
    for axis, size in enumerate((height, width)):
        reach = at["dilation"][axis] * (kernel[axis] - 1) + 1
        room = size + padding[2 * axis] + padding[2 * axis + 1] - reach
        if room < 0:
            raise GraphError(f"its window of {reach} is larger than its padded input")
        sides.append(room // at["stride"][axis] + 1)
    return sides[0], sides[1]


def _grouped(node: Node, in_channels: int, out_channels: int) -> int:
    """Planes of a kernel."""
    groups = node.attributes["groups"]
    if in_channels % groups or out_channels % groups:
        raise GraphError(f"groups = {groups} does not divide {in_channels} and {out_channels} channels")
    return int(in_channels // groups)


def _check_weight(node: Node, outputs: int) -> None:
    weight, scale, bias = (node.tensors.get(role) for role in ("weight", "weight_scale", "bias"))
    if weight is None or (weight.dtype == np.int8) != (scale is not None):
        raise GraphError("weight_scale must be there if, and only if, the weight is int8")
    if scale is not None:
        _wants("weight_scale", scale, (outputs,))
    if bias is not None:
        _wants("bias", bias, (outputs,))


def _conv2d(node: Node, inputs: list[Value]) -> Value:
    channels, weight = _image(inputs[0])[0], node.tensors["weight"]
    if weight.ndim != 4 or 0 in weight.shape or max(weight.shape[2:]) > MAX_WINDOW:
        raise GraphError(f"weight has shape {list(weight.shape)}")
    planes = _grouped(node, channels, len(weight))
    _wants("weight", weight, (len(weight), planes, *weight.shape[2:]))
    _check_weight(node, len(weight))
    return Value("float", (len(weight), *_windows(node, inputs[0], (weight.shape[2], weight.shape[3]))))


def bconv_shape(node: Node, value: Value) -> tuple[int, int, int, int]:
    """Kernels that are stored (each serves J outputs), planes, height and width of a `bconv2d` of this value."""
    at = node.attributes
    outputs, projections = at["out_channels"], at["projections"]
    planes = _grouped(node, _image(value)[0], outputs)
    if (outputs // at["groups"]) % projections:
        raise GraphError(f"projections = {projections} does not divide the {outputs} channels of its groups")
    return outputs // projections, planes, at["kernel_size"][0], at["kernel_size"][1]


def _bconv2d(node: Node, inputs: list[Value]) -> Value:
    value, at = inputs[0], node.attributes
    shape = bconv_shape(node, value)
    taps = (at["projections"], *shape[2:])
    _wants_bits("kernels", node.tensors["kernels"], math.prod(shape))
    if "masks" in node.tensors:
        _wants_bits("masks", node.tensors["masks"], math.prod(taps))
    if "modulation" in node.tensors:
        _wants("modulation", node.tensors["modulation"], taps)
        if value.kind != "float":
            raise GraphError(f"modulation is for floats, not for {value.kind}")
    made = (at["out_channels"], *_windows(node, value, (shape[2], shape[3])))
    if value.kind == "float":
        return Value("float", made)
    most = math.prod(shape[1:]) * (1 if value.kind == "bits" else max(-value.low, value.high))
    return Value("sums", made, -most, most)


def _linear(node: Node, inputs: list[Value]) -> Value:
    weight, shape = node.tensors["weight"], inputs[0].shape
    if len(shape) != 1 or weight.ndim != 2:
        raise GraphError(f"takes features, not a value of shape {list(shape)}")
    _wants("weight", weight, (len(weight), shape[0]))
    _check_weight(node, len(weight))
    return Value("float", (len(weight),))


def _same(node: Node, inputs: list[Value]) -> Value:  # noqa: ARG001
    return inputs[0]


def _per_channel(*roles: str) -> Infer:
    def infer(node: Node, inputs: list[Value]) -> Value:
        for role in roles:
            if role in node.tensors:
                _wants(role, node.tensors[role], (1,), (inputs[0].channels,))
        return Value("float", inputs[0].shape)

    return infer


def _sign(node: Node, inputs: list[Value]) -> Value:  # noqa: ARG001
    return Value("bits", inputs[0].shape)


def _threshold(node: Node, inputs: list[Value]) -> Value:
    thresholds, channels = node.tensors["thresholds"], inputs[0].channels
    _wants("thresholds", thresholds, (channels,))
    if (thresholds.dtype == np.int32) != (inputs[0].kind == "sums"):
        raise GraphError("thresholds of sums are int32, those of floats float32")
    _wants_bits("at_most", node.tensors["at_most"], channels)
    return Value("bits", inputs[0].shape)


def _quantize(node: Node, inputs: list[Value]) -> Value:
    if node.attributes["per_unit"] <= 0 or node.attributes["high"] - node.attributes["low"] > 255:
        raise GraphError("per_unit must be more than 0, and high at most 255 more than low")
    return Value("levels", inputs[0].shape, node.attributes["low"], node.attributes["high"])


def _broadcast(node: Node, inputs: list[Value]) -> Value:  # noqa: ARG001
    if len({len(value.shape) for value in inputs}) > 1:
        raise GraphError(f"its inputs have shapes {[list(value.shape) for value in inputs]}")
    sides = list(zip(*(value.shape for value in inputs), strict=True))
    if any(len(set(side) - {1}) > 1 for side in sides):
        raise GraphError(f"its inputs have shapes {[list(value.shape) for value in inputs]}")
    return Value("float", tuple(max(side) for side in sides))


def _concatenate(node: Node, inputs: list[Value]) -> Value:  # noqa: ARG001
    first = inputs[0]
    if any((value.kind, value.shape[1:]) != (first.kind, first.shape[1:]) for value in inputs):
        raise GraphError("its inputs differ in more than their channels")
    return Value(first.kind, (sum(value.channels for value in inputs), *first.shape[1:]))


def _slice(node: Node, inputs: list[Value]) -> Value:
    start, stop = node.attributes["start"], node.attributes["stop"]
    if not start < stop <= inputs[0].channels:
        raise GraphError(f"takes channels {start} to {stop} of {inputs[0].channels}")
    return inputs[0]._replace(shape=(stop - start, *inputs[0].shape[1:]))


def _reshape(node: Node, inputs: list[Value]) -> Value:
    shape = tuple(node.attributes["shape"])
    if math.prod(shape) != inputs[0].size:
        raise GraphError(f"makes {list(shape)} of {list(inputs[0].shape)}")
    return Value("float", shape)


def _pad(node: Node, inputs: list[Value]) -> Value:
    channels, height, width = _image(inputs[0])
    top, bottom, left, right = node.attributes["padding"]
    mode = node.attributes["mode"]
    if mode == "zeros" and inputs[0].kind == "bits":
        raise GraphError("a bit can't be 0: only a convolution pads bits with zeros")
    room = {"reflect": 1, "circular": 0}.get(mode)
    if room is not None and (max(top, bottom) > height - room or max(left, right) > width - room):
        raise GraphError(f"mode {mode} pads with more than there is")
    return inputs[0]._replace(shape=(channels, height + top + bottom, width + left + right))


def pooled_sides(attributes: dict[str, Any], sizes: tuple[int, int]) -> tuple[int, int]:
    """Height and width of what a pool makes of an image of these."""
    at = attributes
    sides = []
    for size, kernel, stride, padding, dilation in zip(
        sizes, at["kernel_size"], at["stride"], at["padding"], at.get("dilation", (1, 1)), strict=True
    ):
        if 2 * padding > kernel:
            raise GraphError(f"padding {padding} is more than half of its window of {kernel}")
        room = size + 2 * padding - dilation * (kernel - 1) - 1
        if room < 0:
            raise GraphError("its window is larger than its padded input")
        side = (-(-room // stride) if at["ceil_mode"] else room // stride) + 1
        if (side - 1) * stride >= size + padding:  # a window must begin within the image or before it
            side -= 1
        sides.append(side)
    return sides[0], sides[1]


def _pool(node: Node, inputs: list[Value]) -> Value:
    channels, height, width = _image(inputs[0])
    return inputs[0]._replace(shape=(channels, *pooled_sides(node.attributes, (height, width))))


def _adaptive(node: Node, inputs: list[Value]) -> Value:
    return Value("float", (_image(inputs[0])[0], *node.attributes["output_size"]))


def _clamp(node: Node, inputs: list[Value]) -> Value:
    low, high = node.attributes["low"], node.attributes["high"]
    if low is not None and high is not None and low > high:
        raise GraphError("low is more than high")
    return inputs[0]


def _elementwise(does: str) -> Operation:
    return Operation(does, ("float",), _same)


_NUMBERS: tuple[Kind, ...] = ("float", "sums")

OPERATIONS: dict[str, Operation] = {
    "bconv2d": Operation(
        "convolution with 1-bit kernels; bits and levels give sums, floats give floats; padding adds nothing",
        ("bits", "levels", "float"),
        _bconv2d,
        {
            **_CONVOLUTION,
            "out_channels": whole(1, 1 << 16),
            "kernel_size": wholes(2, 1, MAX_WINDOW),
            "projections": whole(1, 1 << 16, 1),
            "method": Attribute("a word", lambda v: isinstance(v, str) and len(v) <= 32, ""),
        },
        {"kernels": ("uint8",), "masks?": ("uint8",), "modulation?": ("float32",)},
    ),
    "conv2d": Operation("convolution; padding is 0", ("float",), _conv2d, _CONVOLUTION, _WEIGHT),
    "linear": Operation("weight @ x + bias", ("float",), _linear, {}, _WEIGHT),
    "affine": Operation(
        "scale * x + shift, for each channel",
        ("float", "sums", "bits"),
        _per_channel("scale", "shift"),
        {},
        {"scale": ("float32",), "shift?": ("float32",)},
    ),
    "sign": Operation("+1 where x >= 0, else -1", ("float",), _sign),
    "threshold": Operation(
        "+1 where x >= threshold, or x <= threshold in channels of at_most; else -1",
        _NUMBERS,
        _threshold,
        {},
        {"thresholds": ("float32", "int32"), "at_most": ("uint8",)},
    ),
    "quantize": Operation(
        "the whole number nearest to per_unit * x, halves to the even one, from low to high",
        ("float",),
        _quantize,
        {"per_unit": NUMBER, "low": whole(-128, 0), "high": whole(1, 255)},
    ),
    "add": Operation("sum of two; sides of 1 are repeated", ("float",), _broadcast, {}, {}, 2, 2),
    "multiply": Operation("product of two; sides of 1 are repeated", ("float",), _broadcast, {}, {}, 2, 2),
    "concatenate": Operation(
        "channels of all inputs, one after another", ("float", "bits"), _concatenate, most_inputs=1 << 10
    ),
    "slice": Operation(
        "channels from start to stop",
        ("float", "bits", "sums"),
        _slice,
        {"start": whole(0, 1 << 16), "stop": whole(1, 1 << 16)},
    ),
    "reshape": Operation(
        "the same numbers in another shape, in order of channels, rows, columns",
        ("float",),
        _reshape,
        {
            "shape": Attribute(
                "1 or 3 whole numbers", lambda v: any(wholes(n, 1, 1 << 20).is_right(v) for n in (1, 3))
            )
        },
    ),
    "pad": Operation(
        "rows and columns around the image",
        ("float", "bits"),
        _pad,
        {
            "padding": wholes(4, 0, MAX_WINDOW),
            "mode": one_of("zeros", "reflect", "replicate", "circular"),
        },
    ),
    "max_pool2d": Operation(
        "the largest of each window", _NUMBERS, _pool, {**_POOL, "dilation": wholes(2, 1, MAX_WINDOW, [1, 1])}
    ),
    "avg_pool2d": Operation(
        "the mean of each window; padding counts as 0 if count_include_pad",
        ("float",),
        _pool,
        {**_POOL, "count_include_pad": flag(default=True)},
    ),
    "adaptive_avg_pool2d": Operation(
        "means of output_size parts of the image", ("float",), _adaptive, {"output_size": wholes(2, 1, 1 << 16)}
    ),
    "prelu": Operation(
        "x where x >= 0, else slope * x", ("float",), _per_channel("slope"), {}, {"slope": ("float32",)}
    ),
    "clamp": Operation(
        "x, at least low and at most high", ("float",), _clamp, {"low": NUMBER_OR_NULL, "high": NUMBER_OR_NULL}
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
