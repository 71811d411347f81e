"""What a node makes of what it reads: a value's kind, shape and bounds; or GraphError if they don't fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from onebit.graph import Array, GraphError, Node, Value
from onebit.packing import has_stray_bits, packed_size

MAX_WINDOW = 1 << 10  # of a kernel's side, a stride, a dilation, a padding

Infer = Callable[[Node, list[Value]], Value]


class Seen:
    """What is known of the numbers in tensors. Many nodes may share one, and to look at a large one takes time.

    By ids: for as long as the tensors live.
    """

    def __init__(self) -> None:
        self.sound: set[tuple[int, str]] = set()  # with what had to hold
        self._reach: dict[int, int] = {}

    def reach(self, weight: Array) -> int:
        """How large a row of a weight of whole numbers can make a sum of inputs from -1 to 1."""
        if id(weight) not in self._reach:
            sizes = np.abs(weight.reshape(len(weight), -1), dtype=np.int16)  # that of -128 is no int8
            self._reach[id(weight)] = int(sizes.sum(axis=1, dtype=np.int64).max())
        return self._reach[id(weight)]


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


def _made_by_weight(node: Node, value: Value, shape: tuple[int, ...]) -> Value:
    """Floats of floats; of levels sums, which nothing is added to and which are not scaled.

    How large the sums can be depends on numbers in the weight: `check_node` says.
    """
    weight = node.tensors["weight"]
    if value.kind == "float":
        _check_weight(node, len(weight))
        return Value("float", shape)
    if weight.dtype != np.int8 or len(node.tensors) > 1:
        raise GraphError("of levels, the weight must be int8, without weight_scale and bias")
    return Value("sums", shape)


def _check_weight(node: Node, outputs: int) -> None:
    weight, scale, bias = (node.tensors.get(role) for role in ("weight", "weight_scale", "bias"))
    if weight is None or (weight.dtype == np.int8) != (scale is not None):
        raise GraphError("weight_scale must be there if, and only if, the weight is int8")
    if scale is not None:
        _wants("weight_scale", scale, (outputs,))
    if bias is not None:
        _wants("bias", bias, (outputs,))


def conv2d(node: Node, inputs: list[Value]) -> Value:
    """Floats or sums, of the windows that fit."""
    channels, weight = _image(inputs[0])[0], node.tensors["weight"]
    if weight.ndim != 4 or 0 in weight.shape or max(weight.shape[2:]) > MAX_WINDOW:
        raise GraphError(f"weight has shape {list(weight.shape)}")
    planes = _grouped(node, channels, len(weight))
    _wants("weight", weight, (len(weight), planes, *weight.shape[2:]))
    windows = _windows(node, inputs[0], (weight.shape[2], weight.shape[3]))
    return _made_by_weight(node, inputs[0], (len(weight), *windows))


def bconv_shape(node: Node, value: Value) -> tuple[int, int, int, int]:
    """Kernels that are stored (each serves J outputs), planes, height and width of a `bconv2d` of this value."""
    at = node.attributes
    outputs, projections = at["out_channels"], at["projections"]
    planes = _grouped(node, _image(value)[0], outputs)
    if (outputs // at["groups"]) % projections:
        raise GraphError(f"projections = {projections} does not divide the {outputs} channels of its groups")
    return outputs // projections, planes, at["kernel_size"][0], at["kernel_size"][1]


def bconv2d(node: Node, inputs: list[Value]) -> Value:
    """Sums of bits and levels, floats of floats."""
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


def linear(node: Node, inputs: list[Value]) -> Value:
    """Floats or sums, one for each row of the weight."""
    weight, shape = node.tensors["weight"], inputs[0].shape
    if len(shape) != 1 or weight.ndim != 2:
        raise GraphError(f"takes features, not a value of shape {list(shape)}")
    if not len(weight):
        raise GraphError("has a weight without rows")
    _wants("weight", weight, (len(weight), shape[0]))
    return _made_by_weight(node, inputs[0], (len(weight),))


def same(node: Node, inputs: list[Value]) -> Value:  # noqa: ARG001
    """What it reads."""
    return inputs[0]


def per_channel(*roles: str) -> Infer:
    """Floats of the same shape, with tensors of a number for each channel or one for all."""

    def infer(node: Node, inputs: list[Value]) -> Value:
        for role in roles:
            if role in node.tensors:
                _wants(role, node.tensors[role], (1,), (inputs[0].channels,))
        return Value("float", inputs[0].shape)

    return infer


def sign(node: Node, inputs: list[Value]) -> Value:  # noqa: ARG001
    """Bits."""
    return Value("bits", inputs[0].shape)


def threshold(node: Node, inputs: list[Value]) -> Value:
    """Bits."""
    thresholds, channels = node.tensors["thresholds"], inputs[0].channels
    _wants("thresholds", thresholds, (channels,))
    if (thresholds.dtype == np.int32) != (inputs[0].kind == "sums"):
        raise GraphError("thresholds of sums are int32, those of floats float32")
    _wants_bits("at_most", node.tensors["at_most"], channels)
    return Value("bits", inputs[0].shape)


def quantize(node: Node, inputs: list[Value]) -> Value:
    """Levels."""
    if node.attributes["per_unit"] <= 0 or node.attributes["high"] - node.attributes["low"] > 255:
        raise GraphError("per_unit must be more than 0, and high at most 255 more than low")
    return Value("levels", inputs[0].shape, node.attributes["low"], node.attributes["high"])


def broadcast(node: Node, inputs: list[Value]) -> Value:  # noqa: ARG001
    """Floats; sides of 1 are repeated."""
    if len({len(value.shape) for value in inputs}) > 1:
        raise GraphError(f"its inputs have shapes {[list(value.shape) for value in inputs]}")
    sides = list(zip(*(value.shape for value in inputs), strict=True))
    if any(len(set(side) - {1}) > 1 for side in sides):
        raise GraphError(f"its inputs have shapes {[list(value.shape) for value in inputs]}")
    return Value("float", tuple(max(side) for side in sides))


def concatenate(node: Node, inputs: list[Value]) -> Value:  # noqa: ARG001
    """All channels."""
    first = inputs[0]
    if any((value.kind, value.shape[1:]) != (first.kind, first.shape[1:]) for value in inputs):
        raise GraphError("its inputs differ in more than their channels")
    return Value(first.kind, (sum(value.channels for value in inputs), *first.shape[1:]))


def slice_channels(node: Node, inputs: list[Value]) -> Value:
    """Some channels."""
    start, stop = node.attributes["start"], node.attributes["stop"]
    if not start < stop <= inputs[0].channels:
        raise GraphError(f"takes channels {start} to {stop} of {inputs[0].channels}")
    return inputs[0]._replace(shape=(stop - start, *inputs[0].shape[1:]))


def reshape(node: Node, inputs: list[Value]) -> Value:
    """The same numbers."""
    shape = tuple(node.attributes["shape"])
    if math.prod(shape) != inputs[0].size:
        raise GraphError(f"makes {list(shape)} of {list(inputs[0].shape)}")
    return Value("float", shape)


def pad(node: Node, inputs: list[Value]) -> Value:
    """A larger image."""
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
        # Windows that begin within the image have a tap there: only those before it, and the last, need a look.
        places = np.append(np.arange(min(side, padding // stride + 1)), side - 1)
        starts = places * stride - padding
        first = (
            starts + -(np.minimum(starts, 0) // dilation) * dilation
        )  # of its taps, the first that is not before the image
        if ((first >= size) | (first > starts + dilation * (kernel - 1))).any():
            raise GraphError("one of its windows has no tap within the image")
        sides.append(side)
    return sides[0], sides[1]


def pool(node: Node, inputs: list[Value]) -> Value:
    """A smaller image."""
    channels, height, width = _image(inputs[0])
    return inputs[0]._replace(shape=(channels, *pooled_sides(node.attributes, (height, width))))


def adaptive(node: Node, inputs: list[Value]) -> Value:
    """An image of the given size."""
    return Value("float", (_image(inputs[0])[0], *node.attributes["output_size"]))


def clamp(node: Node, inputs: list[Value]) -> Value:
    """What it reads."""
    low, high = node.attributes["low"], node.attributes["high"]
    if low is not None and high is not None and low > high:
        raise GraphError("low is more than high")
    return inputs[0]
