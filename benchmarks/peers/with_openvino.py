"""OpenVINO: fp32, int8, and its binary convolution."""

from __future__ import annotations

from functools import partial

import numpy as np
import openvino as ov
from openvino import opset8 as ops

from onebit.exchange.onnx_net import onnx_model
from onebit.graph import Array, Node
from onebit.modelfile import Model, read_model
from onebit.packing import pack_signs, unpack_signs
from onebit.peers.openvino_net import in_both_layouts, read
from onebit.peers.openvino_net import ways as fp32_ways
from onebit.weights import weight_of

from .runner import INT8_FILES, CannotRunError, Job, Ways

_BELOW_ZERO = -np.finfo(np.float32).tiny  # the next float would be denormal, and may count as 0


def fp32(job: Job) -> Ways:
    """The net in 32-bit floats."""
    return fp32_ways(read_model(job.file), job.images[: job.batch], job.threads)


def int8(job: Job) -> Ways:
    """The 8-bit models that ONNX Runtime's quantiser made of the same net; OpenVINO reads them as its own kind."""
    files = {name: job.folder / file for name, file in INT8_FILES.items()}
    if not any(file.exists() for file in files.values()):
        raise CannotRunError("needs the model that the row of ONNX Runtime int8 makes, and there is none")
    ways: Ways = {}
    for name, file in files.items():
        if file.exists():
            ways |= in_both_layouts(f"{name}, ", partial(read, file.read_bytes()), job.threads)
    return ways


def binary(job: Job) -> Ways:
    """The net with OpenVINO's convolution of bits with bits; the rest is as in fp32."""
    model = read_model(job.file)
    if not any(_is_binary(model, node) for node in model.graph.nodes):
        raise CannotRunError("has no convolution of floats with 1-bit kernels")
    return in_both_layouts("", lambda: _with_binary_convolutions(model, job.batch), job.threads)


def _is_binary(model: Model, node: Node) -> bool:
    return node.op == "bconv2d" and model.values[node.inputs[0]].kind == "bits"


def _with_binary_convolutions(model: Model, batch: int) -> ov.Model:
    """The net in floats, in which each convolution of bits is replaced."""
    net = read(onnx_model(model, batch).SerializeToString())
    made_by = {name: output for op in net.get_ops() for output in op.outputs() for name in output.get_names()}
    nodes = {node.name: node for node in model.graph.nodes}
    for node in filter(lambda node: _is_binary(model, node), model.graph.nodes):
        sign = nodes[node.inputs[0]]
        bits = _bits(made_by[sign.inputs[0]], sign, model.values[sign.name].channels)
        new = _binary_convolution(model, node, bits)
        old = made_by[node.name]
        for reader in old.get_target_inputs():
            reader.replace_source_output(new)
        made_by[node.name] = new
    net.validate_nodes_and_infer_types()
    return net


def _bits(x: ov.Output, sign: Node, channels: int) -> ov.Output:
    """1 above a threshold, else 0; the binary convolution takes these for +1 and -1.

    FakeQuantize is 'above' where ours is 'at least', so the threshold is a little lower; of whole numbers, a half.
    """
    at_most = np.zeros(channels, bool)
    limits: Array = np.full(channels, _BELOW_ZERO)
    if sign.op == "threshold":
        at_most = unpack_signs(sign.tensors["at_most"], (channels,)) > 0
        limits = sign.tensors["thresholds"]
        is_whole = limits.dtype == np.int32
        limits = limits.astype(np.float32)
        below = limits - np.float32(0.5) if is_whole else np.nextafter(limits, np.float32(-np.inf))
        limits = np.where(at_most, limits, below)
    limit, low, high = (
        ops.constant(each.astype(np.float32).reshape(1, -1, 1, 1)) for each in (limits, at_most, ~at_most)
    )
    return ops.fake_quantize(x, limit, limit, low, high, levels=2).output(0)


def _binary_convolution(model: Model, node: Node, bits: ov.Output) -> ov.Output:
    """Pads with `pad_value`, and 0 is the value of neither bit: the CPU leaves out what is outside of the image."""
    at = node.attributes
    top, bottom, left, right = at["padding"]
    weight = weight_of(model, node)
    if at["groups"] != 1:
        raise ValueError(f"{node.name}: OpenVINO's binary convolution has no groups")
    kernels = ov.Tensor(ov.Type.u1, ov.Shape(weight.shape))  # owns its memory; one made of an array would not
    kernels.data[:] = pack_signs(weight)
    return ops.binary_convolution(
        bits,
        ov.op.Constant(kernels),
        at["stride"],
        [top, left],
        [bottom, right],
        at["dilation"],
        "xnor-popcount",
        0.0,
    ).output(0)
