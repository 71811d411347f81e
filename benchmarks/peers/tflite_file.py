"""A packed net as a TFLite model with Larq Compute Engine's 1-bit operations, as its converter would write it.

TFLite knows the padding SAME alone, which puts the odd row of padding below the image and the odd column to its
right; PyTorch has them above and to the left. So this is the net for images turned by 180 degrees, with its kernels
turned as well: the same function, the same work, and every border exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onebit.graph import INPUT, Array, Node
from onebit.modelfile import Model
from onebit.weights import directed, weight_of

from .tflite_writer import TfliteWriter

_SAME, _VALID = 0, 1
_WORD = 32  # bits


def tflite_model(model: Model, batch: int, schema: Any) -> bytes:
    """The TFLite model of a packed net: images (batch, height, width, channels), turned by 180 degrees."""
    net = _Net(model, batch, schema)
    for node in model.graph.nodes:
        if node.name not in net.numbers:  # else a convolution did its work
            if node.op not in _CONVERSIONS:
                raise ValueError(f"{node.name}: {node.op} is not compared")
            net.numbers[node.name] = _CONVERSIONS[node.op](net, node)
    return net.writer.model([net.numbers[INPUT]], [net.numbers[model.graph.nodes[-1].name]])


class _Net:
    """The writer, and which of its tensors stands for which value."""

    def __init__(self, model: Model, batch: int, schema: Any) -> None:
        self.model, self.batch, self.writer = model, batch, TfliteWriter(schema)
        self.numbers = {INPUT: self.writer.tensor(INPUT, self.shape(INPUT))}

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a value, with its channels last."""
        channels, *sides = self.model.values[name].shape
        return (self.batch, *sides, channels)

    def inputs(self, node: Node) -> list[int]:
        """What the node reads."""
        return [self.numbers[name] for name in node.inputs]

    def output(self, node: Node) -> int:
        """What the node makes."""
        return self.writer.tensor(node.name, self.shape(node.name))

    def constant(self, node: Node, role: str, array: Array) -> int:
        """Floats of a node."""
        return self.writer.constant(f"{node.name}/{role}", np.asarray(array, np.float32))

    def scaled(self, node: Node, x: int, scale: Array | None, shift: Array | None) -> int:
        """Scale * x + shift."""
        for op, role, factor in (("MUL", "scale", scale), ("ADD", "shift", shift)):
            if factor is not None:
                y = self.writer.tensor(f"{node.name}/{role}d", self.shape(node.inputs[0]))
                x = self.writer.put(op, [x, self.constant(node, role, factor)], y, f"{op.title()}Options")
        return x

    def only_reader(self, node: Node) -> Node | None:
        """The node that reads what this one makes, if there is just one."""
        readers = [other for other in self.model.graph.nodes if node.name in other.inputs]
        return readers[0] if len(readers) == 1 else None

    def windows(self, node: Node, kernel: tuple[int, ...], padding: list[int]) -> tuple[int, int]:
        """The input of a convolution or pool, cut where need be, and TFLite's padding for it."""
        sizes, counts = self.shape(node.inputs[0])[1:3], self.shape(node.name)[1:3]
        stride = node.attributes["stride"]
        total = [s * (n - 1) + k - size for s, n, k, size in zip(stride, counts, kernel, sizes, strict=True)]
        first = [each - before for each, before in zip(total, padding, strict=True)]  # before the turned image
        x = self.numbers[node.inputs[0]]
        if all(each == 0 for each in first) and not any(padding):
            return x, _VALID
        if all(each == max(all_, 0) // 2 for each, all_ in zip(first, total, strict=True)):
            return x, _SAME
        if any(each > 0 for each in (*first, *padding)):
            raise ValueError(f"{node.name}: TFLite has no such padding")
        begin, end = [0, -first[0], -first[1], 0], [self.batch, *sizes, self.shape(node.inputs[0])[3]]
        kept = tuple(last - start for last, start in zip(end, begin, strict=True))
        limits = [
            self.writer.constant(f"{node.name}/{role}", np.array(numbers, np.int32))
            for role, numbers in (("begin", begin), ("end", end), ("step", [1] * 4))
        ]
        cut = self.writer.tensor(f"{node.name}/cut", kept)
        return self.writer.put("STRIDED_SLICE", [x, *limits], cut, "StridedSliceOptions"), _VALID


def _turned(weight: Array) -> Array:
    """Kernels (outputs, planes, height, width) as TFLite has them, planes last, turned by 180 degrees."""
    return np.ascontiguousarray(weight[:, :, ::-1, ::-1].transpose(0, 2, 3, 1))


def _conv(net: _Net, node: Node) -> int:
    at = node.attributes
    weight = weight_of(net.model, node)
    if at["groups"] != 1 or at["dilation"] != [1, 1]:
        raise ValueError(f"{node.name}: groups and dilations are not compared")
    x, padding = net.windows(node, weight.shape[2:], at["padding"][::2])
    if net.model.values[node.inputs[0]].kind == "bits":
        return _binary_conv(net, node, x, padding, _turned(weight))
    bias = net.constant(node, "bias", node.tensors.get("bias", np.zeros(len(weight))))
    inputs = [x, net.constant(node, "weight", _turned(weight)), bias]
    height, width = at["stride"]
    return net.writer.put(
        "CONV_2D", inputs, net.output(node), "Conv2DOptions", padding=padding, strideH=height, strideW=width
    )


def _binary_conv(net: _Net, node: Node, x: int, padding: int, weight: Array) -> int:
    """1-bit convolution, and the scale and shift (or the comparison with a threshold) behind it in one."""
    outputs, planes = len(weight), weight.shape[3]
    scale, shift = np.ones(outputs, np.float32), np.zeros(outputs, np.float32)
    reader = net.only_reader(node)
    if reader and reader.op == "affine":
        scale, shift = scale * reader.tensors["scale"], shift + reader.tensors.get("shift", 0)
    elif reader and reader.op == "threshold":
        scale, thresholds = directed(reader, outputs)
        shift = -thresholds
    filled = np.pad(weight < 0, ((0, 0), (0, 0), (0, 0), (0, -planes % _WORD)))  # a 1 is -1 here
    words = np.packbits(filled, axis=3, bitorder="little").view(np.int32)
    kernels = net.writer.constant(f"{node.name}/kernels", words)
    height, width = node.attributes["stride"]
    options = {
        "channels_in": planes,
        "dilation_height_factor": 1,
        "dilation_width_factor": 1,
        "fused_activation_function": 0,
        "pad_values": 0,
        "padding": padding,
        "stride_height": height,
        "stride_width": width,
    }
    inputs = [x, kernels, net.constant(node, "scale", scale), net.constant(node, "shift", shift), -1]
    made = net.writer.put_custom("LceBconv2d", inputs, net.output(node), options)
    if reader and reader.op == "affine":
        net.numbers[reader.name] = made
    elif reader and reader.op == "threshold":
        net.numbers[reader.name] = _bits(net, reader, made)
    return made


def _bits(net: _Net, node: Node, x: int) -> int:
    """The signs of floats."""
    *sides, channels = net.shape(node.name)
    words = net.writer.tensor(node.name, (*sides, -(-channels // _WORD)), bits=True)
    return net.writer.put_custom("LceQuantize", [x], words)


def _threshold(net: _Net, node: Node) -> int:
    direction, thresholds = directed(node, net.shape(node.name)[-1])
    scale = direction if (direction < 0).any() else None
    return _bits(net, node, net.scaled(node, net.numbers[node.inputs[0]], scale, -thresholds))


def _pool(net: _Net, node: Node) -> int:
    at = node.attributes
    x, padding = net.windows(node, tuple(at["kernel_size"]), at["padding"])
    if node.op == "avg_pool2d" and padding == _SAME and any(at["padding"]):
        raise ValueError(f"{node.name}: TFLite has no such padding")
    (height, width), (rows, columns) = at["kernel_size"], at["stride"]
    fields = {"padding": padding, "strideH": rows, "strideW": columns, "filterHeight": height, "filterWidth": width}
    op = "MAX_POOL_2D" if node.op == "max_pool2d" else "AVERAGE_POOL_2D"
    return net.writer.put(op, [x], net.output(node), "Pool2DOptions", **fields)


def _mean(net: _Net, node: Node) -> int:
    if node.attributes["output_size"] != [1, 1]:
        raise ValueError(f"{node.name}: means of parts of an image are not compared")
    axes = net.writer.constant(f"{node.name}/axes", np.array([1, 2], np.int32))
    return net.writer.put("MEAN", [*net.inputs(node), axes], net.output(node), "ReducerOptions", keepDims=True)


def _reshape(net: _Net, node: Node) -> int:
    if max(net.model.values[node.inputs[0]].shape[1:]) > 1:
        raise ValueError(f"{node.name}: the order of numbers would be another")
    shape = net.writer.constant(f"{node.name}/shape", np.array(net.shape(node.name), np.int32))
    return net.writer.put("RESHAPE", [*net.inputs(node), shape], net.output(node))


def _linear(net: _Net, node: Node) -> int:
    weight = weight_of(net.model, node)
    bias = net.constant(node, "bias", node.tensors.get("bias", np.zeros(len(weight))))
    inputs = [*net.inputs(node), net.constant(node, "weight", weight), bias]
    return net.writer.put("FULLY_CONNECTED", inputs, net.output(node), "FullyConnectedOptions")


_CONVERSIONS: dict[str, Callable[[_Net, Node], int]] = {
    "bconv2d": _conv,
    "conv2d": _conv,
    "linear": _linear,
    "sign": lambda net, node: _bits(net, node, net.numbers[node.inputs[0]]),
    "threshold": _threshold,
    "max_pool2d": _pool,
    "avg_pool2d": _pool,
    "adaptive_avg_pool2d": _mean,
    "reshape": _reshape,
    "affine": lambda net, node: net.scaled(
        node, net.numbers[node.inputs[0]], node.tensors["scale"], node.tensors.get("shift")
    ),
    "prelu": lambda net, node: net.writer.put(
        "PRELU",
        [*net.inputs(node), net.constant(node, "slope", node.tensors["slope"].reshape(1, 1, -1))],
        net.output(node),
    ),
    "add": lambda net, node: net.writer.put("ADD", net.inputs(node), net.output(node), "AddOptions"),
    "relu": lambda net, node: net.writer.put("RELU", net.inputs(node), net.output(node)),
}
