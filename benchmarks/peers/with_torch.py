"""PyTorch, eager and as a frozen graph: convolutions in channels_last, which is its fastest layout on CPUs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onebit.graph import INPUT, Node
from onebit.modelfile import Model, read_model

from .runner import Floats, Job, Runner, Ways
from .twin import directed, weight_of

Operation = Callable[..., Tensor]  # of the values that a node reads


class Interpreter(nn.Module):
    """A packed net in PyTorch's operations. Weights are constants, so a traced net has nothing left to look up."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        if unknown := {node.op for node in model.graph.nodes} - set(_OPERATIONS):
            raise ValueError(f"{', '.join(sorted(unknown))}: not compared")
        self.steps = [(node.name, node.inputs, _OPERATIONS[node.op](model, node)) for node in model.graph.nodes]

    def forward(self, x: Tensor) -> Tensor:
        """Images to outputs."""
        values = {INPUT: x}
        for name, inputs, operation in self.steps:
            values[name] = x = operation(*[values[each] for each in inputs])
        return x


def fp32(job: Job) -> Ways:
    """The net in 32-bit floats."""
    torch.set_num_threads(1)
    model = read_model(job.file)

    def eager() -> Runner:
        return Runner(_without_gradients(Interpreter(model)), _enter, Tensor.numpy)

    def frozen() -> Runner:
        example = _enter(job.images[: job.batch])
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated, and still the faster one at times
            traced = torch.jit.trace(Interpreter(model).eval(), example, check_trace=False)
            net = torch.jit.optimize_for_inference(traced)
        return Runner(_without_gradients(net), _enter, Tensor.numpy)

    return {"eager": eager, "frozen": frozen}


def _enter(images: Floats) -> Tensor:
    return torch.from_numpy(images).contiguous(memory_format=torch.channels_last)


def _without_gradients(net: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        with torch.inference_mode():
            return net(x)

    return run


def _conv(model: Model, node: Node) -> Operation:
    at = node.attributes
    top, bottom, left, right = at["padding"]
    if (top, left) != (bottom, right):
        raise ValueError(f"{node.name}: padding that is not the same on both sides is not compared")
    weight = torch.from_numpy(weight_of(model, node)).contiguous(memory_format=torch.channels_last)
    bias = _tensor(node, "bias")
    return lambda x: F.conv2d(x, weight, bias, at["stride"], (top, left), at["dilation"], at["groups"])


def _linear(model: Model, node: Node) -> Operation:
    weight, bias = torch.from_numpy(weight_of(model, node)), _tensor(node, "bias")
    return lambda x: F.linear(x, weight, bias)


def _affine(model: Model, node: Node) -> Operation:
    scale, shift = (_tensor(node, role) for role in ("scale", "shift"))
    by_channel = _by_channel(model, node)
    factor = by_channel(scale)
    if shift is None:
        return lambda x: x * factor
    summand = by_channel(shift)
    return lambda x: x * factor + summand


def _threshold(model: Model, node: Node) -> Operation:
    arrays = directed(node, model.values[node.inputs[0]].channels)
    d, t = map(_by_channel(model, node), map(torch.from_numpy, arrays))
    return lambda x: torch.where(d * x >= t, 1.0, -1.0)


def _prelu(model: Model, node: Node) -> Operation:  # noqa: ARG001
    slope = _tensor(node, "slope")
    return lambda x: F.prelu(x, slope)


def _tensor(node: Node, role: str) -> Any:
    """A tensor of the node, or None."""
    return torch.from_numpy(np.array(node.tensors[role])) if role in node.tensors else None


def _by_channel(model: Model, node: Node) -> Callable[[Tensor], Tensor]:
    sides = len(model.values[node.inputs[0]].shape) - 1
    return lambda tensor: tensor.reshape(1, -1, *[1] * sides)


def _plain(operation: Callable[..., Tensor]) -> Callable[[Model, Node], Operation]:
    """Of a function of the attributes and the inputs."""
    return lambda _, node: lambda *inputs: operation(node.attributes, *inputs)


_OPERATIONS: dict[str, Callable[[Model, Node], Operation]] = {
    "conv2d": _conv,
    "bconv2d": _conv,
    "linear": _linear,
    "affine": _affine,
    "threshold": _threshold,
    "prelu": _prelu,
    "sign": _plain(lambda _, x: torch.where(x >= 0, 1.0, -1.0)),
    "add": _plain(lambda _, x, y: x + y),
    "relu": _plain(lambda _, x: F.relu(x)),
    "clamp": _plain(lambda at, x: torch.clamp(x, at["low"], at["high"])),
    "reshape": _plain(lambda at, x: x.reshape(x.shape[0], *at["shape"])),
    "max_pool2d": _plain(
        lambda at, x: F.max_pool2d(
            x, at["kernel_size"], at["stride"], at["padding"], at["dilation"], at["ceil_mode"]
        )
    ),
    "avg_pool2d": _plain(
        lambda at, x: F.avg_pool2d(
            x, at["kernel_size"], at["stride"], at["padding"], at["ceil_mode"], at["count_include_pad"]
        )
    ),
    "adaptive_avg_pool2d": _plain(lambda at, x: F.adaptive_avg_pool2d(x, at["output_size"])),
}
