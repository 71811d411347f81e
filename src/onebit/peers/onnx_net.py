"""A packed net as an ONNX model: its bits are floats there, for ONNX has no 1-bit convolution.

Every value keeps the name that it has in the .onebit file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onebit.graph import INPUT, Array, Node
from onebit.modelfile import Model
from onebit.peers.runner import CannotRunError
from onebit.peers.twin import directed, weight_of

OPSET, IR_VERSION = 17, 8  # old enough for every program that reads it


def onnx_model(model: Model, batch: int) -> onnx.ModelProto:
    """The ONNX model of a packed net, for batches of one size."""
    writer = _Writer(model, batch)
    for node in model.graph.nodes:
        CONVERSIONS[node.op](writer, node)
    output = model.graph.nodes[-1].name
    graph = helper.make_graph(
        writer.nodes,
        "net",
        [_info(INPUT, (batch, *model.graph.input_shape))],
        [_info(output, (batch, *model.values[output].shape))],
        writer.constants,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(made)
    return made


def _info(name: str, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


class _Writer:
    """Collects nodes and constants."""

    def __init__(self, model: Model, batch: int) -> None:
        self.model, self.batch = model, batch
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def put(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add an operation that makes `output`."""
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def constant(self, node: Node, role: str, array: Array) -> str:
        """Add a tensor of a node."""
        name = f"{node.name}/{role}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def by_channel(self, node: Node, role: str, array: Array) -> str:
        """Add a tensor of a number for each channel of what the node reads."""
        sides = len(self.model.values[node.inputs[0]].shape) - 1
        return self.constant(node, role, array.astype(np.float32).reshape(-1, *[1] * sides))

    def bias(self, node: Node) -> list[str]:
        """The input for the bias, if the node has one."""
        return [self.constant(node, "bias", node.tensors["bias"])] if "bias" in node.tensors else []


def _conv(writer: _Writer, node: Node) -> None:
    at = node.attributes
    top, bottom, left, right = at["padding"]
    weight = weight_of(writer.model, node)
    inputs = [node.inputs[0], writer.constant(node, "weight", weight), *writer.bias(node)]
    writer.put(
        "Conv",
        inputs,
        node.name,
        kernel_shape=weight.shape[2:],
        strides=at["stride"],
        pads=[top, left, bottom, right],
        dilations=at["dilation"],
        group=at["groups"],
    )


def _linear(writer: _Writer, node: Node) -> None:
    inputs = [node.inputs[0], writer.constant(node, "weight", weight_of(writer.model, node)), *writer.bias(node)]
    writer.put("Gemm", inputs, node.name, transB=1)


def _affine(writer: _Writer, node: Node) -> None:
    has_shift = "shift" in node.tensors
    scale = writer.by_channel(node, "scale", node.tensors["scale"])
    scaled = writer.put("Mul", [node.inputs[0], scale], f"{node.name}/scaled" if has_shift else node.name)
    if has_shift:
        writer.put("Add", [scaled, writer.by_channel(node, "shift", node.tensors["shift"])], node.name)


def _sign(writer: _Writer, node: Node) -> None:
    _bits(writer, node, node.inputs[0], writer.constant(node, "zero", np.array(0, np.float32)))


def _threshold(writer: _Writer, node: Node) -> None:
    direction, thresholds = directed(node, writer.model.values[node.inputs[0]].channels)
    x = node.inputs[0]
    if (direction < 0).any():
        x = writer.put("Mul", [x, writer.by_channel(node, "direction", direction)], f"{node.name}/directed")
    _bits(writer, node, x, writer.by_channel(node, "thresholds", thresholds))


def _bits(writer: _Writer, node: Node, x: str, least: str) -> None:
    condition = writer.put("GreaterOrEqual", [x, least], f"{node.name}/condition")
    one, minus_one = (
        writer.constant(node, role, np.array(n, np.float32)) for role, n in (("one", 1), ("minus_one", -1))
    )
    writer.put("Where", [condition, one, minus_one], node.name)


def _prelu(writer: _Writer, node: Node) -> None:
    writer.put("PRelu", [node.inputs[0], writer.by_channel(node, "slope", node.tensors["slope"])], node.name)


def _pool(writer: _Writer, node: Node) -> None:
    at, is_max = node.attributes, node.op == "max_pool2d"
    before, behind = at["padding"], _padding_behind(writer, node)
    own = {"dilations": at["dilation"]} if is_max else {"count_include_pad": int(at["count_include_pad"])}
    if own.get("count_include_pad") and any(more > usual for more, usual in zip(behind, before, strict=True)):
        raise CannotRunError(f"{node.name}: programs differ in what a mean counts beyond its padding (ceil_mode)")
    writer.put(
        "MaxPool" if is_max else "AveragePool",
        [*node.inputs],
        node.name,
        kernel_shape=at["kernel_size"],
        strides=at["stride"],
        pads=[*before, *behind],
        **own,
    )


def _padding_behind(writer: _Writer, node: Node) -> list[int]:
    """As much as the last windows reach beyond the image, rows and columns: ceil_mode by padding alone.

    Programs differ in whether a window of ceil_mode may begin behind the image.
    """
    at = node.attributes
    sizes, counts = (writer.model.values[name].shape[1:] for name in (node.inputs[0], node.name))
    reach = [d * (k - 1) + 1 for d, k in zip(at.get("dilation", (1, 1)), at["kernel_size"], strict=True)]
    sides = zip(sizes, counts, reach, at["stride"], at["padding"], strict=True)
    return [max(0, (count - 1) * stride + taps - size - pad) for size, count, taps, stride, pad in sides]


def _mean(writer: _Writer, node: Node) -> None:
    """Parts of one size are the windows of a pool; ONNX has no others."""
    parts, sides = node.attributes["output_size"], writer.model.values[node.inputs[0]].shape[1:]
    if parts == [1, 1]:
        writer.put("GlobalAveragePool", [*node.inputs], node.name)
        return
    if any(side % count for side, count in zip(sides, parts, strict=True)):
        raise CannotRunError(f"{node.name}: ONNX has no means of parts that overlap (adaptive_avg_pool2d)")
    size = [side // count for side, count in zip(sides, parts, strict=True)]
    writer.put("AveragePool", [*node.inputs], node.name, kernel_shape=size, strides=size)


def _reshape(writer: _Writer, node: Node) -> None:
    shape = writer.constant(node, "shape", np.array([writer.batch, *node.attributes["shape"]], np.int64))
    writer.put("Reshape", [node.inputs[0], shape], node.name)


def _clamp(writer: _Writer, node: Node) -> None:
    bounds = {role: node.attributes[role] for role in ("low", "high")}
    inputs = [
        "" if bound is None else writer.constant(node, role, np.array(bound, np.float32))
        for role, bound in bounds.items()
    ]
    writer.put("Clip", [node.inputs[0], *inputs], node.name)


def _quantize(writer: _Writer, node: Node) -> None:
    at = node.attributes
    per_unit, low, high = (
        writer.constant(node, role, np.array(at[role], np.float32)) for role in ("per_unit", "low", "high")
    )
    scaled = writer.put("Mul", [node.inputs[0], per_unit], f"{node.name}/scaled")
    writer.put("Round", [writer.put("Clip", [scaled, low, high], f"{node.name}/clipped")], node.name)


def _slice(writer: _Writer, node: Node) -> None:
    limits = [
        writer.constant(node, role, np.array([number], np.int64))
        for role, number in (("start", node.attributes["start"]), ("stop", node.attributes["stop"]), ("axis", 1))
    ]
    writer.put("Slice", [node.inputs[0], *limits], node.name)


def _pad(writer: _Writer, node: Node) -> None:
    modes = {"zeros": "constant", "reflect": "reflect", "replicate": "edge"}
    if node.attributes["mode"] not in modes:
        raise CannotRunError(f"{node.name}: ONNX {OPSET} has no circular padding")
    top, bottom, left, right = node.attributes["padding"]
    pads = writer.constant(node, "pads", np.array([0, 0, top, left, 0, 0, bottom, right], np.int64))
    writer.put("Pad", [node.inputs[0], pads], node.name, mode=modes[node.attributes["mode"]])


def _silu(writer: _Writer, node: Node) -> None:
    gate = writer.put("Sigmoid", [*node.inputs], f"{node.name}/gate")
    writer.put("Mul", [node.inputs[0], gate], node.name)


def _plain(op: str, **attributes: Any) -> Callable[[_Writer, Node], None]:
    def convert(writer: _Writer, node: Node) -> None:
        writer.put(op, [*node.inputs], node.name, **attributes)

    return convert


CONVERSIONS: dict[str, Callable[[_Writer, Node], None]] = {
    "conv2d": _conv,
    "bconv2d": _conv,
    "linear": _linear,
    "affine": _affine,
    "sign": _sign,
    "threshold": _threshold,
    "prelu": _prelu,
    "max_pool2d": _pool,
    "avg_pool2d": _pool,
    "adaptive_avg_pool2d": _mean,
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
