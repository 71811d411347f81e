"""Every operation of a packed net in ONNX's own operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onebit.errors import ExportError
from onebit.exchange.onnx_writer import Writer
from onebit.graph import Node
from onebit.runnable import Floats
from onebit.weights import directed

EXACT = 1 << 24  # up to here 32-bit floats hold every whole number
MAX_MATRIX = 1 << 20  # numbers of a matrix that makes means

Convert = Callable[[Writer, Node], None]


def _conv(writer: Writer, node: Node) -> None:
    at = node.attributes
    top, bottom, left, right = at["padding"]
    sides = at["kernel_size"] if node.op == "bconv2d" else node.tensors["weight"].shape[2:]
    writer.put(
        "Conv",
        [node.inputs[0], writer.weight(node), *writer.bias(node)],
        node.name,
        kernel_shape=sides,
        strides=at["stride"],
        pads=[top, left, bottom, right],
        dilations=at["dilation"],
        group=at["groups"],
    )


def _linear(writer: Writer, node: Node) -> None:
    writer.put("Gemm", [node.inputs[0], writer.weight(node), *writer.bias(node)], node.name, transB=1)


def _affine(writer: Writer, node: Node) -> None:
    scale = writer.by_channel(node, "scale", node.tensors["scale"])
    if "shift" not in node.tensors:
        writer.put("Mul", [node.inputs[0], scale], node.name)
        return
    scaled = writer.between("Mul", [node.inputs[0], scale], node, "scaled")
    writer.put("Add", [scaled, writer.by_channel(node, "shift", node.tensors["shift"])], node.name)


def _sign(writer: Writer, node: Node) -> None:
    writer.bits(node, node.inputs[0], None)


def _threshold(writer: Writer, node: Node) -> None:
    """Of channels that are +1 up to their threshold, x and threshold change their signs first."""
    value = writer.model.values[node.inputs[0]]
    most = max(-value.low, value.high)
    if value.kind == "sums" and most > EXACT:
        raise ExportError(
            f"{node.name}: threshold of sums up to {most:,}; ONNX would have floats, which hold whole numbers "
            f"exactly up to {EXACT:,}"
        )
    directions, thresholds = directed(node, value.channels)
    x = node.inputs[0]
    if (directions < 0).any():
        x = writer.between("Mul", [x, writer.by_channel(node, "direction", directions)], node, "directed")
    writer.bits(node, x, thresholds)


def _prelu(writer: Writer, node: Node) -> None:
    writer.put("PRelu", [node.inputs[0], writer.by_channel(node, "slope", node.tensors["slope"])], node.name)


def _max_pool(writer: Writer, node: Node) -> None:
    at = node.attributes
    before, behind = at["padding"], _padding_behind(writer, node)
    x, pads = node.inputs[0], [*before, *behind]
    if any(pad >= taps for pad, taps in zip(pads, at["kernel_size"] * 2, strict=True)):
        # With taps apart, the last windows may reach farther than pools of ONNX may pad.
        sides = writer.wholes(0, 0, *before, 0, 0, *behind)
        x = writer.between("Pad", [x, sides, writer.number(-np.inf)], node, "padded", mode="constant")
        pads = [0] * 4
    _windows(writer, node, "MaxPool", x, pads, dilations=at["dilation"])


def _avg_pool(writer: Writer, node: Node) -> None:
    at = node.attributes
    before, behind = at["padding"], _padding_behind(writer, node)
    if at["count_include_pad"] and any(more > usual for more, usual in zip(behind, before, strict=True)):
        _separate_means(writer, node, _pooling_matrix)  # programs differ in what a mean counts beyond its padding
        return
    own = {"count_include_pad": int(at["count_include_pad"])}
    _windows(writer, node, "AveragePool", node.inputs[0], [*before, *behind], **own)


def _windows(writer: Writer, node: Node, op: str, x: str, pads: list[int], **own: Any) -> None:
    at = node.attributes
    writer.put(op, [x], node.name, kernel_shape=at["kernel_size"], strides=at["stride"], pads=pads, **own)


def _padding_behind(writer: Writer, node: Node) -> list[int]:
    """As much as the last windows reach beyond the image, rows and columns: ceil_mode by padding alone.

    Programs differ in whether a window of ceil_mode may begin behind the image.
    """
    at = node.attributes
    sizes, counts = (writer.model.values[name].shape[1:] for name in (node.inputs[0], node.name))
    reach = [d * (k - 1) + 1 for d, k in zip(at.get("dilation", (1, 1)), at["kernel_size"], strict=True)]
    sides = zip(sizes, counts, reach, at["stride"], at["padding"], strict=True)
    return [max(0, (count - 1) * stride + taps - size - pad) for size, count, taps, stride, pad in sides]


def _adaptive_avg_pool(writer: Writer, node: Node) -> None:
    parts, sides = node.attributes["output_size"], writer.model.values[node.inputs[0]].shape[1:]
    if parts == [1, 1]:
        writer.put("GlobalAveragePool", [*node.inputs], node.name)
    elif any(side % count for side, count in zip(sides, parts, strict=True)):
        _separate_means(writer, node, _parts_matrix)  # parts that overlap are no windows
    else:
        size = [side // count for side, count in zip(sides, parts, strict=True)]
        writer.put("AveragePool", [*node.inputs], node.name, kernel_shape=size, strides=size)


def _separate_means(writer: Writer, node: Node, matrix: Callable[[dict[str, Any], int, int, int], Floats]) -> None:
    """Means of rectangles: of rows, then of columns, each by a matrix (what comes out, what is there)."""
    sizes, counts = (writer.model.values[name].shape[1:] for name in (node.inputs[0], node.name))
    if max(size * count for size, count in zip(sizes, counts, strict=True)) > MAX_MATRIX:
        raise ExportError(
            f"{node.name}: {node.op} with means of too many parts for ONNX, which has none that overlap"
        )
    rows, columns = (matrix(node.attributes, axis, sizes[axis], counts[axis]) for axis in (0, 1))
    names = (writer.shared(f"{node.name}/{role}", each) for role, each in (("rows", rows), ("columns", columns.T)))
    of_rows = writer.between("MatMul", [next(names), node.inputs[0]], node, "of_rows")
    writer.put("MatMul", [of_rows, next(names)], node.name)


def _pooling_matrix(at: dict[str, Any], axis: int, size: int, count: int) -> Floats:
    """The means of an `avg_pool2d` with count_include_pad along one side of the image."""
    taps, stride, padding = at["kernel_size"][axis], at["stride"][axis], at["padding"][axis]
    made = np.zeros((count, size), np.float32)
    for place in range(count):
        start = place * stride - padding
        counted = min(start + taps, size + padding) - start  # what is beyond the padding never counts
        made[place, max(start, 0) : start + taps] = 1 / counted
    return made


def _parts_matrix(at: dict[str, Any], axis: int, size: int, count: int) -> Floats:  # noqa: ARG001
    """The means of an `adaptive_avg_pool2d` along one side of the image."""
    made = np.zeros((count, size), np.float32)
    for part in range(count):
        start, stop = part * size // count, -(-(part + 1) * size // count)
        made[part, start:stop] = 1 / (stop - start)
    return made


def _reshape(writer: Writer, node: Node) -> None:
    writer.put("Reshape", [node.inputs[0], writer.wholes(0, *node.attributes["shape"])], node.name)  # 0: as it is


def _clamp(writer: Writer, node: Node) -> None:
    bounds = (node.attributes[role] for role in ("low", "high"))
    writer.put(
        "Clip", [node.inputs[0], *("" if bound is None else writer.number(bound) for bound in bounds)], node.name
    )


def _quantize(writer: Writer, node: Node) -> None:
    at = node.attributes
    scaled = writer.between("Mul", [node.inputs[0], writer.number(at["per_unit"])], node, "scaled")
    writer.levels(node, scaled, at["low"], at["high"])


def _slice(writer: Writer, node: Node) -> None:
    span = node.attributes["start"], node.attributes["stop"], 1
    writer.put("Slice", [node.inputs[0], *map(writer.wholes, span)], node.name)


def _pad(writer: Writer, node: Node) -> None:
    mode = node.attributes["mode"]
    if mode == "circular":
        _circular(writer, node)
        return
    top, bottom, left, right = node.attributes["padding"]
    pads = writer.wholes(0, 0, top, left, 0, 0, bottom, right)
    names = {"zeros": "constant", "reflect": "reflect", "replicate": "edge"}
    writer.put("Pad", [node.inputs[0], pads], node.name, mode=names[mode])


def _circular(writer: Writer, node: Node) -> None:
    """What is at one end again at the other, rows and then columns: Pad knows it only in later versions of ONNX."""
    top, bottom, left, right = node.attributes["padding"]
    x = node.inputs[0]
    sizes = writer.model.values[x].shape
    for axis, before, behind in ((2, top, bottom), (3, left, right)):
        size = sizes[axis - 1]
        spans = {"last": (size - before, size), "first": (0, behind)}
        ends = {
            role: writer.between("Slice", [x, *map(writer.wholes, (start, stop, axis))], node, role)
            for role, (start, stop) in spans.items()
            if start < stop
        }
        parts = [ends.get("last", ""), x, ends.get("first", "")]
        output = node.name if axis == 3 else writer.new_name(f"{node.name}/rows")
        x = writer.put("Concat", [part for part in parts if part], output, axis=axis)


def _silu(writer: Writer, node: Node) -> None:
    gate = writer.between("Sigmoid", [*node.inputs], node, "gate")
    writer.put("Mul", [node.inputs[0], gate], node.name)


def _plain(op: str, **attributes: Any) -> Convert:
    def convert(writer: Writer, node: Node) -> None:
        writer.put(op, [*node.inputs], node.name, **attributes)

    return convert


CONVERSIONS: dict[str, Convert] = {
    "conv2d": _conv,
    "bconv2d": _conv,
    "linear": _linear,
    "affine": _affine,
    "sign": _sign,
    "threshold": _threshold,
    "prelu": _prelu,
    "max_pool2d": _max_pool,
    "avg_pool2d": _avg_pool,
    "adaptive_avg_pool2d": _adaptive_avg_pool,
    "reshape": _reshape,
    "clamp": _clamp,
    "quantize": _quantize,
    "slice": _slice,
    "pad": _pad,
    "silu": _silu,
    "concatenate": _plain("Concat", axis=1),
    "add": _plain("Add"),
    "multiply": _plain("Mul"),
    "relu": _plain("Relu"),
    "sigmoid": _plain("Sigmoid"),
    "hardsigmoid": _plain("HardSigmoid", alpha=1 / 6, beta=0.5),
    "hardswish": _plain("HardSwish"),
    "tanh": _plain("Tanh"),
    "elu": _plain("Elu"),
    "abs": _plain("Abs"),
    "softmax": _plain("Softmax", axis=1),
}
