"""A packed net in PyTorch, eager and as a frozen graph: images in channels_last, its fastest layout on CPUs.

The only file of the packed net's side that imports torch. Bits, levels and sums are floats here: exact up to 2^24.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onebit.checking import first_alike
from onebit.exchange.limits import check_weights
from onebit.graph import INPUT, Node
from onebit.modelfile import Model
from onebit.peers.runner import Runner, Ways
from onebit.runnable import Floats
from onebit.weights import directed, weight_of

Operation = Callable[..., Tensor]  # of the values that a node reads


class Interpreter(nn.Module):
    """A packed net in PyTorch's operations. Weights are constants, so a traced net has nothing left to look up.

    Nodes that share a weight share one tensor.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        first = first_alike(model.graph, model.values)
        weights: dict[str, Tensor] = {}  # by the name of the first node that has it
        self.steps: list[tuple[str, tuple[str, ...], Operation]] = []
        for node in model.graph.nodes:
            given = []
            if node.name in first:
                if first[node.name] not in weights:
                    weights[first[node.name]] = _weight(model, node)
                given = [weights[first[node.name]]]
            self.steps.append((node.name, node.inputs, OPERATIONS[node.op](model, node, *given)))

    def forward(self, x: Tensor) -> Tensor:
        """Images to outputs."""
        values = {INPUT: x}
        for name, inputs, operation in self.steps:
            values[name] = x = operation(*[values[each] for each in inputs])
        return x


def ways(model: Model, images: Floats, threads: int = 1) -> Ways:
    """The net in 32-bit floats, for batches such as this one; all of PyTorch has so many threads from here on."""
    torch.set_num_threads(threads)

    def eager() -> Runner:
        return Runner(_without_gradients(Interpreter(model)), _enter, Tensor.numpy)

    def frozen() -> Runner:
        check_weights(model, as_floats=True)  # it lays them out for every node, shared or not
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated, and still the faster one at times
            traced = torch.jit.trace(Interpreter(model).eval(), _enter(images), check_trace=False)
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


def _weight(model: Model, node: Node) -> Tensor:
    weight = torch.from_numpy(weight_of(model, node))
    return weight if node.op == "linear" else weight.contiguous(memory_format=torch.channels_last)


def _conv(model: Model, node: Node, weight: Tensor) -> Operation:  # noqa: ARG001
    at = node.attributes
    top, bottom, left, right = at["padding"]
    bias = _tensor(node, "bias")
    if (top, left) == (bottom, right):
        return lambda x: F.conv2d(x, weight, bias, at["stride"], (top, left), at["dilation"], at["groups"])

    def padded_first(x: Tensor) -> Tensor:
        padded = F.pad(x, (left, right, top, bottom))
        return F.conv2d(padded, weight, bias, at["stride"], 0, at["dilation"], at["groups"])

    return padded_first


def _linear(model: Model, node: Node, weight: Tensor) -> Operation:  # noqa: ARG001
    bias = _tensor(node, "bias")
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


def _quantize(at: dict[str, Any], x: Tensor) -> Tensor:
    levels = torch.round(torch.clamp(x * at["per_unit"], at["low"], at["high"]))  # halves to the even one
    return torch.nan_to_num(levels)


def _clamp(at: dict[str, Any], x: Tensor) -> Tensor:
    low, high = at["low"], at["high"]
    return x if low is None and high is None else torch.clamp(x, low, high)  # which must have a bound


def _pad(at: dict[str, Any], x: Tensor) -> Tensor:
    top, bottom, left, right = at["padding"]
    mode = "constant" if at["mode"] == "zeros" else at["mode"]
    return F.pad(x, (left, right, top, bottom), mode=mode)


def _tensor(node: Node, role: str) -> Any:
    """A tensor of the node, or None."""
    return torch.from_numpy(np.array(node.tensors[role])) if role in node.tensors else None


def _by_channel(model: Model, node: Node) -> Callable[[Tensor], Tensor]:
    sides = len(model.values[node.inputs[0]].shape) - 1
    return lambda tensor: tensor.reshape(1, -1, *[1] * sides)


def _plain(operation: Callable[..., Tensor]) -> Callable[[Model, Node], Operation]:
    """Of a function of the attributes and the inputs."""
    return lambda _, node: lambda *inputs: operation(node.attributes, *inputs)


# Of a model, a node, and its weight if it has one.
OPERATIONS: dict[str, Callable[..., Operation]] = {
    "conv2d": _conv,
    "bconv2d": _conv,
    "linear": _linear,
    "affine": _affine,
    "threshold": _threshold,
    "prelu": _prelu,
    "quantize": _plain(_quantize),
    "pad": _plain(_pad),
    "sign": _plain(lambda _, x: torch.where(x >= 0, 1.0, -1.0)),
    "add": _plain(lambda _, x, y: x + y),
    "multiply": _plain(lambda _, x, y: x * y),
    "concatenate": _plain(lambda _, *inputs: torch.cat(inputs, dim=1)),
    "slice": _plain(lambda at, x: x[:, at["start"] : at["stop"]]),
    "reshape": _plain(lambda at, x: x.reshape(x.shape[0], *at["shape"])),
    "clamp": _plain(_clamp),
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
    "relu": _plain(lambda _, x: F.relu(x)),
    "sigmoid": _plain(lambda _, x: torch.sigmoid(x)),
    "hardsigmoid": _plain(lambda _, x: F.hardsigmoid(x)),
    "hardswish": _plain(lambda _, x: F.hardswish(x)),
    "silu": _plain(lambda _, x: F.silu(x)),
    "tanh": _plain(lambda _, x: torch.tanh(x)),
    "elu": _plain(lambda _, x: F.elu(x)),
    "abs": _plain(lambda _, x: torch.abs(x)),
    "softmax": _plain(lambda _, x: F.softmax(x, dim=1)),
}
