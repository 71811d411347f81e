"""The weights of a packed net, written out as arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onebit.checking import first_alike
from onebit.graph import Array, Node
from onebit.modelfile import Model
from onebit.packing import unpack_kernels, unpack_signs


def kernels_and_masks(node: Node, planes: int) -> tuple[Array, Array | None]:
    """The +-1 kernels (out_channels / J, planes, kh, kw) of a `bconv2d`; its masks (J, kh, kw), if it has any."""
    at = node.attributes
    J, (height, width) = at["projections"], at["kernel_size"]
    kernels = unpack_kernels(node.tensors["kernels"], (at["out_channels"] // J, planes, height, width))
    masks = unpack_signs(node.tensors["masks"], (J, height, width)) if "masks" in node.tensors else None
    return kernels, masks


def dense_kernels(node: Node, planes: int) -> Array:
    """The +-1 weight (out_channels, planes, kh, kw) of a `bconv2d`: row o*J + j is mask j times kernel o."""
    kernels, masks = kernels_and_masks(node, planes)
    weight = np.repeat(kernels, node.attributes["projections"], axis=0)
    if masks is not None:
        weight *= np.tile(masks, (len(kernels), 1, 1))[:, None]
    return weight


def modulated_kernels(node: Node, planes: int) -> NDArray[np.float32]:
    """The weight of a `bconv2d` of floats: +-1, times its modulation if it has one."""
    weight = dense_kernels(node, planes).astype(np.float32)
    if "modulation" in node.tensors:
        modulation = node.tensors["modulation"]
        weight *= np.tile(modulation, (len(weight) // len(modulation), 1, 1))[:, None]
    return weight


def float_weight(node: Node) -> NDArray[np.float32]:
    """The weight of a `conv2d` or `linear`, however it is stored."""
    weight = node.tensors["weight"].astype(np.float32)
    if "weight_scale" in node.tensors:
        weight *= node.tensors["weight_scale"].reshape(-1, *[1] * (weight.ndim - 1))
    return weight


def laid_out(node: Node, planes: int, *, is_float: bool) -> Array:
    """The weight of a `linear`, `conv2d` or `bconv2d` as inputs meet it: floats, or whole numbers."""
    if node.op == "bconv2d":
        return modulated_kernels(node, planes) if is_float else dense_kernels(node, planes)
    return float_weight(node) if is_float else node.tensors["weight"]


def weight_of(model: Model, node: Node) -> NDArray[np.float32]:
    """The weight of a `linear`, `conv2d` or `bconv2d` as floats, outputs first."""
    planes = model.values[node.inputs[0]].channels // node.attributes.get("groups", 1)
    return laid_out(node, planes, is_float=True)


def directed(node: Node, channels: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Of a `threshold`, by channel: d (+-1) and t, such that the bit is +1 where d * x >= t."""
    d = np.where(unpack_signs(node.tensors["at_most"], (channels,)) > 0, np.float32(-1), np.float32(1))
    return d, d * node.tensors["thresholds"].astype(np.float32)


def packed_state_dict(model: Model) -> dict[str, Array]:
    """The 1-bit kernels as int8 arrays of -1 and +1, by the names of their layers: 'NAME.weight'.

    Layers that share their kernels share one array, which can't be written to.
    """
    made: dict[str, Array] = {}  # by the first node that has it
    state: dict[str, Array] = {}
    for node, first in one_bit_layers(model):
        if first in made:
            made[first].flags.writeable = False
        else:
            made[first] = signs_of(model, node)
        state[f"{node.name}.weight"] = made[first]
    return state


def one_bit_layers(model: Model) -> list[tuple[Node, str]]:
    """Every `bconv2d`, with the name of the first one that has the same kernels, often its own."""
    first = first_alike(model.graph, model.values)
    return [(node, first[node.name]) for node in model.graph.nodes if node.op == "bconv2d"]


def signs_of(model: Model, node: Node) -> Array:
    """The +-1 weight of a `bconv2d` of a model."""
    return dense_kernels(node, model.values[node.inputs[0]].channels // node.attributes["groups"])
