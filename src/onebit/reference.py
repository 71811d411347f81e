"""A NumPy interpreter of the packed net: short, and the judge of every engine.

Each function below is one operation of `onebit.operations`, on a whole batch: images are (N, channels, height,
width), features (N, features). Bits are int8 of +-1, levels and sums int32, floats float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from onebit.checking import first_alike
from onebit.graph import INPUT, Array, Node
from onebit.modelfile import Model
from onebit.packing import unpack_signs
from onebit.runnable import Floats, Runnable, checked_input
from onebit.shapes import pooled_sides
from onebit.weights import laid_out

MAX_WINDOWS = 1 << 25  # numbers of a convolution's windows in memory at once


class Reference(Runnable):
    """Runs a model, batch after batch: `logits = reference(images)`."""

    engine = "reference"

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._first_alike = first_alike(model.graph, model.values)
        self._weights: dict[str, Array] = {}  # laid out, by the name of the first node that has it

    def __call__(self, x: Floats) -> Floats:
        """Images (N, channels, height, width), float32, to the outputs of the net."""
        made: Array = x
        for _, made in self.values(x):  # noqa: B007 the last one counts
            pass
        return made

    def values(self, x: Floats) -> Iterator[tuple[Node, Array]]:
        """Every node with the value that it makes of a batch, in order."""
        nodes = self.model.graph.nodes
        last_use = {name: node.name for node in nodes for name in node.inputs}
        values = {INPUT: checked_input(x, self.model)}
        for node in nodes:
            inputs = [values[name] for name in node.inputs]
            made = OPERATIONS[node.op](node, *inputs, *self._weight(node, inputs[0]))
            for name in set(node.inputs):
                if last_use[name] == node.name:
                    del values[name]
            values[node.name] = made
            yield node, made

    def _weight(self, node: Node, x: Array) -> list[Array]:
        """Of a node that has one: laid out once for all nodes that share it."""
        first = self._first_alike.get(node.name)
        if first is None:
            return []
        if first not in self._weights:
            self._weights[first] = _laid_out(node, x)
        return [self._weights[first]]

    def info(self) -> dict[str, Any]:
        """What runs here."""
        return {"engine": self.engine, "isa": "NumPy", "nodes": len(self.model.graph.nodes)}


def per_channel(tensor: Array, x: Array) -> Array:
    """A tensor of one number a channel (or one for all), so that it meets the channels of x."""
    return tensor.reshape(-1, *[1] * (x.ndim - 2))


def convolve(x: Array, weight: Array, at: dict[str, Any]) -> Array:
    """The convolution of x, padded with 0, with the weight; in the dtype of both."""
    top, bottom, left, right = at["padding"]
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    reach = [dilation * (side - 1) + 1 for dilation, side in zip(at["dilation"], weight.shape[2:], strict=True)]
    windows = sliding_window_view(x, reach, axis=(2, 3))
    strides, dilations = at["stride"], at["dilation"]
    windows = windows[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]
    rows = max(1, MAX_WINDOWS * windows.shape[2] // windows.size)  # at a time, since a product copies the windows
    made = [
        _products(part[:, :, row : row + rows], kernels)  # (N, rows, width, outputs)
        for part, kernels in zip(
            np.split(windows, at["groups"], axis=1), np.split(weight, at["groups"]), strict=True
        )
        for row in range(0, windows.shape[2], rows)
    ]
    per_group = len(made) // at["groups"]
    groups = [np.concatenate(made[at_ : at_ + per_group], axis=1) for at_ in range(0, len(made), per_group)]
    return np.moveaxis(np.concatenate(groups, axis=3), 3, 1)


def _products(windows: Array, kernels: Array) -> Array:
    """Of windows (N, planes, rows, width, kh, kw) with kernels (outputs, planes, kh, kw): a number for each output.

    By matmul: np.tensordot of one plane and one tap leaves out a weight of 0, and with it what 0 times NaN is.
    """
    rows = windows.transpose(0, 2, 3, 1, 4, 5)
    flat = kernels.reshape(len(kernels), -1)
    products: Array = rows.reshape(-1, flat.shape[1]) @ flat.T
    return products.reshape(*rows.shape[:3], len(flat))


def _laid_out(node: Node, x: Array) -> Array:
    return laid_out(node, x.shape[1] // node.attributes.get("groups", 1), is_float=x.dtype == np.float32)


def bconv2d(node: Node, x: Array, weight: Array | None = None) -> Array:
    """1-bit convolution: exact whole numbers of bits and levels, floats of floats. weight: as it is laid out."""
    weight = _laid_out(node, x) if weight is None else weight
    if x.dtype == np.float32:
        return convolve(x, weight, node.attributes)
    return _sums(x, weight, node.attributes)


def _sums(x: Array, weight: Array, at: dict[str, Any]) -> Array:
    # Every sum is below 2**31 (checked with the file), so 64-bit floats hold it and all its parts exactly.
    return convolve(x.astype(np.float64), weight.astype(np.float64), at).astype(np.int32)


def conv2d(node: Node, x: Array, weight: Array | None = None) -> Array:
    """Convolution of floats; or of levels, exact."""
    weight = _laid_out(node, x) if weight is None else weight
    if x.dtype != np.float32:
        return _sums(x, weight, node.attributes)
    return _with_bias(node, convolve(x, weight, node.attributes))


def linear(node: Node, x: Array, weight: Array | None = None) -> Array:
    """Weight @ x + bias; of levels exact, and without a bias."""
    weight = _laid_out(node, x) if weight is None else weight
    if x.dtype != np.float32:
        return (x.astype(np.float64) @ weight.astype(np.float64).T).astype(np.int32)
    return _with_bias(node, x @ weight.T)


def _with_bias(node: Node, y: Array) -> Array:
    return y + per_channel(node.tensors["bias"], y) if "bias" in node.tensors else y


def affine(node: Node, x: Array) -> Array:
    """Scale * x + shift."""
    y = x.astype(np.float32) * per_channel(node.tensors["scale"], x)
    return y + per_channel(node.tensors["shift"], x) if "shift" in node.tensors else y


def sign(node: Node, x: Floats) -> Array:  # noqa: ARG001
    """+1 where x >= 0: for 0 and -0.0, too, and not for NaN."""
    return _bits(x >= 0)


def threshold(node: Node, x: Array) -> Array:
    """+1 from the threshold on, or up to it; not for NaN."""
    thresholds = per_channel(node.tensors["thresholds"], x)
    at_most = per_channel(unpack_signs(node.tensors["at_most"], (x.shape[1],)) > 0, x)
    return _bits(np.where(at_most, x <= thresholds, x >= thresholds))


def _bits(condition: NDArray[np.bool_]) -> Array:
    return np.where(condition, np.int8(1), np.int8(-1))


def quantize(node: Node, x: Floats) -> Array:
    """The nearest level; NaN is 0."""
    at = node.attributes
    levels: Array = np.rint(np.clip(x * np.float32(at["per_unit"]), at["low"], at["high"]))
    return np.nan_to_num(levels).astype(np.int32)


def concatenate(node: Node, *inputs: Array) -> Array:  # noqa: ARG001
    """Channels one after another."""
    return np.concatenate(inputs, axis=1)


def slice_channels(node: Node, x: Array) -> Array:
    """Some of the channels."""
    return x[:, node.attributes["start"] : node.attributes["stop"]]


def reshape(node: Node, x: Array) -> Array:
    """Another shape."""
    return x.reshape(len(x), *node.attributes["shape"])


def pad(node: Node, x: Array) -> Array:
    """Rows and columns around an image."""
    top, bottom, left, right = node.attributes["padding"]
    mode: Any = {"zeros": "constant", "replicate": "edge", "circular": "wrap"}.get(
        node.attributes["mode"], "reflect"
    )
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), mode=mode)


def _spans(at: dict[str, Any], axis: int, size: int, count: int) -> list[slice]:
    """The part of the image that each window of a pool covers, along one axis."""
    dilation = at.get("dilation", (1, 1))[axis]
    spans = []
    for place in range(count):
        start = place * at["stride"][axis] - at["padding"][axis]
        inside = [
            tap for tap in range(start, start + dilation * at["kernel_size"][axis], dilation) if 0 <= tap < size
        ]
        spans.append(slice(inside[0], inside[-1] + 1, dilation))
    return spans


def _windows(x: Array, rows: list[slice], columns: list[slice], of: Callable[..., Array]) -> Array:
    """What `of` makes of every window of x: of its rows first, then of the columns of that."""
    by_rows = np.stack([of(x[:, :, row], axis=2) for row in rows], axis=2)
    return np.stack([of(by_rows[..., column], axis=3) for column in columns], axis=3)


def max_pool2d(node: Node, x: Array) -> Array:
    """The largest of each window."""
    at = node.attributes
    sides = pooled_sides(at, (x.shape[2], x.shape[3]))
    rows, columns = (_spans(at, axis, x.shape[2 + axis], sides[axis]) for axis in (0, 1))
    return _windows(x, rows, columns, np.max)


def avg_pool2d(node: Node, x: Floats) -> Array:
    """The mean of each window: of the image's numbers in it, or of those and the zeros around the image."""
    at = node.attributes
    sides = pooled_sides(at, (x.shape[2], x.shape[3]))
    rows, columns = (_spans(at, axis, x.shape[2 + axis], sides[axis]) for axis in (0, 1))
    if not at["count_include_pad"]:
        return _means(x, rows, columns)
    # With ceil_mode a window may reach beyond the padding: what is there does not count.
    counts = [
        [
            min(place * at["stride"][axis] + at["kernel_size"][axis], x.shape[2 + axis] + 2 * at["padding"][axis])
            - place * at["stride"][axis]
            for place in range(sides[axis])
        ]
        for axis in (0, 1)
    ]
    return _means(x, rows, columns, counts)


def _means(x: Floats, rows: list[slice], columns: list[slice], counts: list[list[int]] | None = None) -> Array:
    """Of windows that have so many numbers along the axes; those of the image, if nothing is said."""
    counts = counts or [[span.stop - span.start for span in spans] for spans in (rows, columns)]
    means: Array = _windows(x, rows, columns, np.sum) / np.outer(counts[0], counts[1]).astype(np.float32)
    return means


def adaptive_avg_pool2d(node: Node, x: Floats) -> Array:
    """Means of parts that cover the image; they overlap where its side is no multiple of theirs."""
    rows, columns = (
        [slice(place * size // parts, -(-(place + 1) * size // parts)) for place in range(parts)]
        for size, parts in zip(x.shape[2:], node.attributes["output_size"], strict=True)
    )
    return _means(x, rows, columns)


def prelu(node: Node, x: Floats) -> Array:
    """x, or slope * x where it is negative."""
    return np.where(x >= 0, x, x * per_channel(node.tensors["slope"], x))


def clamp(node: Node, x: Floats) -> Array:
    """X between two bounds, of which one may lack."""
    low, high = node.attributes["low"], node.attributes["high"]
    x = x if low is None else np.maximum(x, np.float32(low))
    return x if high is None else np.minimum(x, np.float32(high))


def softmax(node: Node, x: Floats) -> Array:  # noqa: ARG001
    """Over the channels; the largest is taken away first, so that no power overflows."""
    powers: Array = np.exp(x - x.max(axis=1, keepdims=True))
    shares: Array = powers / powers.sum(axis=1, keepdims=True)
    return shares


def _sigmoid(x: Floats) -> Any:
    return 0.5 * (1 + np.tanh(0.5 * x))  # the same as 1 / (1 + exp(-x)), which would overflow


def _elementwise(function: Callable[..., Any]) -> Callable[..., Array]:
    return lambda node, *inputs: function(*inputs)  # noqa: ARG005


OPERATIONS: dict[str, Callable[..., Array]] = {
    "bconv2d": bconv2d,
    "conv2d": conv2d,
    "linear": linear,
    "affine": affine,
    "sign": sign,
    "threshold": threshold,
    "quantize": quantize,
    "add": _elementwise(np.add),
    "multiply": _elementwise(np.multiply),
    "concatenate": concatenate,
    "slice": slice_channels,
    "reshape": reshape,
    "pad": pad,
    "max_pool2d": max_pool2d,
    "avg_pool2d": avg_pool2d,
    "adaptive_avg_pool2d": adaptive_avg_pool2d,
    "prelu": prelu,
    "clamp": clamp,
    "relu": _elementwise(lambda x: np.maximum(x, np.float32(0))),
    "sigmoid": _elementwise(_sigmoid),
    "hardsigmoid": _elementwise(lambda x: np.clip(x + 3, 0, 6) / 6),
    "hardswish": _elementwise(lambda x: x * (np.clip(x + 3, 0, 6) / 6)),
    "silu": _elementwise(lambda x: x * _sigmoid(x)),
    "tanh": _elementwise(np.tanh),
    "elu": _elementwise(lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
    "abs": _elementwise(np.abs),
    "softmax": softmax,
}
