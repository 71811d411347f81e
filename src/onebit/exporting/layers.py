"""What becomes of a 1-bit layer: bits or levels of its input, packed kernels, a multiply-add for its scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from onebit.convolution import Bases, Kernels, QuantizedConv2d
from onebit.exporting.lowering import Call
from onebit.graph import Array
from onebit.methods import METHODS
from onebit.packing import pack_kernels, pack_signs
from onebit.rivals import LocalBinaryConv2d, XnorConv2d


def lower_layer(call: Call, name: str, layer: QuantizedConv2d, x: str) -> str:
    """Add the nodes of a 1-bit layer that reads x; returns the name of its output."""
    if isinstance(layer, LocalBinaryConv2d):
        return _local_binary(call, name, layer, x)
    kernels = layer.kernels()
    if not kernels:
        return _int8_layer(call, name, layer, x)
    y = _sum(
        call,
        name,
        [_term(call, name, layer, each, *code) for code in _inputs(call, name, layer, x) for each in kernels],
    )
    if isinstance(layer, XnorConv2d) and layer.scale_map:
        y = call.builder.add("multiply", f"{name}.scaled", y, _scale_map(call, name, layer, x))
    return y if layer.bias is None else call.builder.affine(f"{name}.bias", y, 1, _wide(layer.bias))


def method_of(layer: QuantizedConv2d) -> str:
    """The name of a layer's method."""
    return next(name for name, kind in METHODS.items() if kind is type(layer))


def _inputs(call: Call, name: str, layer: QuantizedConv2d, x: str) -> list[tuple[str, float]]:
    """What the 1-bit convolutions of a layer read, each with the factor that it stands for."""
    code, builder = layer.input_code(), call.builder
    if code is None:
        return [(x, 1.0)]
    if isinstance(code, Bases):
        channels = builder.values[x].channels
        found = []
        for threshold, scale in zip(code.thresholds.tolist(), code.scales.tolist(), strict=True):
            if threshold == 0:
                bits = builder.add("sign", f"{name}.sign", x)
            else:
                thresholds = np.full(channels, threshold, np.float32)
                bits = builder.threshold(f"{name}.sign", x, thresholds, np.zeros(channels, bool))
            found.append((bits, scale))
        return found
    return [(builder.add("quantize", f"{name}.quantize", x, per_unit=float(code), low=0, high=code), 1 / code)]


def _term(call: Call, name: str, layer: QuantizedConv2d, kernels: Kernels, x: str, factor: float) -> str:
    """The convolution of one input with one set of 1-bit kernels, times their scales."""
    tensors: dict[str, Array] = {"kernels": pack_kernels(_array(kernels.signs))}
    J = layer.num_projections
    if kernels.masks is not None and bool((kernels.masks < 0).any()):
        tensors["masks"] = pack_signs(_array(kernels.masks))
    if kernels.modulation is not None:
        tensors["modulation"] = _array(kernels.modulation).astype(np.float32)
    x, at = _padded(call, name, layer, x)
    y = call.builder.add(
        "bconv2d",
        name,
        x,
        tensors=tensors,
        out_channels=J * len(kernels.signs),
        kernel_size=list(layer.kernel_size),
        projections=J,
        method=method_of(layer),
        **at,
    )
    return call.builder.affine(f"{name}.scale", y, _wide(kernels.scale) * factor)


def _sum(call: Call, name: str, terms: list[str]) -> str:
    total, *rest = terms
    for term in rest:
        total = call.builder.add("add", f"{name}.sum", total, term)
    return total


def _int8_layer(call: Call, name: str, layer: QuantizedConv2d, x: str) -> str:
    """A weight of more than two levels, in 8 bits where these hold it."""
    code, builder = layer.input_code(), call.builder
    if isinstance(code, Bases):
        x = builder.affine(f"{name}.signs", builder.add("sign", f"{name}.sign", x), 1)
    y = _conv(call, name, layer, x, whole_numbers(layer.quantized_weight()))
    return y if layer.bias is None else builder.affine(f"{name}.bias", y, 1, _wide(layer.bias))


def _local_binary(call: Call, name: str, layer: LocalBinaryConv2d, x: str) -> str:
    """LBCNN's block: the fixed kernels, a ReLU, and a 1x1 convolution in float."""
    kernels = layer.kernels()
    if kernels:
        y = _term(call, name, layer, kernels[0], x, 1.0)
    else:
        y = _conv(call, name, layer, x, whole_numbers(layer.quantized_weight()))
    y = call.builder.add("relu", f"{name}.relu", y)
    tensors = {"weight": _array(layer.pointwise).astype(np.float32)}
    if layer.bias is not None:
        tensors["bias"] = _wide(layer.bias).astype(np.float32)
    return call.builder.add("conv2d", f"{name}.pointwise", y, tensors=tensors, groups=layer.groups)


def _scale_map(call: Call, name: str, layer: XnorConv2d, x: str) -> str:
    """XNOR-Net's K: the mean of |x| over each window; one channel serves all if there is one group."""
    size = call.builder.add("abs", f"{name}.abs", x)
    outputs = 1 if layer.groups == 1 else layer.out_channels
    shape = (outputs, layer.in_channels // layer.groups, *layer.kernel_size)
    return _conv(call, f"{name}.mean", layer, size, {"weight": np.full(shape, 1 / np.prod(shape[1:]), np.float32)})


def _conv(call: Call, name: str, layer: QuantizedConv2d, x: str, tensors: dict[str, Array]) -> str:
    x, at = _padded(call, name, layer, x)
    return call.builder.add("conv2d", name, x, tensors=tensors, **at)


def _padded(call: Call, name: str, layer: QuantizedConv2d, x: str) -> tuple[str, dict[str, Any]]:
    """Geometry; other padding than zeros is a node of its own."""
    left, right, top, bottom = layer.padding_per_side()
    padding = [top, bottom, left, right]
    if layer.padding_mode != "zeros" and any(padding):
        x = call.builder.add("pad", f"{name}.pad", x, padding=padding, mode=layer.padding_mode)
        padding = [0, 0, 0, 0]
    at = {
        "stride": list(layer.stride),
        "padding": padding,
        "dilation": list(layer.dilation),
        "groups": layer.groups,
    }
    return x, at


def whole_numbers(weight: Tensor) -> dict[str, Array]:
    """A weight as int8 times a scale for each row, if that is what it is; else as it is."""
    wide = _wide(weight)
    rows = wide.reshape(len(wide), -1)
    most = np.abs(rows).max(axis=1, keepdims=True)
    most[most == 0] = 1
    for steps in range(1, 128):  # the largest of a row may be any whole number
        numbers = np.rint(rows / most * steps)
        if np.allclose(numbers * most / steps, rows, rtol=0, atol=1e-6 * most.max()):
            scale = (most / steps).ravel().astype(np.float32)
            return {"weight": numbers.astype(np.int8).reshape(wide.shape), "weight_scale": scale}
    return {"weight": wide.astype(np.float32)}


def _array(tensor: Tensor) -> Array:
    found: Array = tensor.detach().cpu().to(torch.float32).numpy()
    return found


def _wide(tensor: Tensor) -> Any:
    return tensor.detach().cpu().double().numpy()
