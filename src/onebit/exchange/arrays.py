"""A packed net as arrays in an .npz file, which NumPy reads alone. docs/exchange.md says what is in it."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import numpy as np

from onebit.errors import ExportError
from onebit.graph import Array, Node
from onebit.modelfile import Model
from onebit.packing import unpack_signs
from onebit.weights import dense_kernels

FORMAT = 1
GRAPH = "graph"  # the array that holds the JSON text; all others have a dot in their names
DATE = (1980, 1, 1, 0, 0, 0)  # the same net is the same bytes


def npz_bytes(model: Model) -> bytes:
    """The file: every tensor as it is stored, bits written out as well, and the graph."""
    arrays: dict[str, Array] = {}
    nodes: list[dict[str, Any]] = []
    for node in model.graph.nodes:
        if set("/\\:") & set(node.name):
            raise ExportError(
                f"{node.name}: a name with '/', '\\' or ':' can't be that of an array in an .npz file"
            )
        own = {f"{node.name}.{role}": array for role, array in arrays_of(model, node).items()}
        arrays |= own
        nodes.append(described_node(model, node) | {"arrays": list(own)})
    text = json.dumps(described(model) | {"nodes": nodes}, ensure_ascii=False)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, array in {GRAPH: np.array(text), **arrays}.items():
            member = zipfile.ZipInfo(f"{name}.npy", DATE)
            member.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(member, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(array, order="C"), allow_pickle=False)
    return content.getvalue()


def arrays_of(model: Model, node: Node) -> dict[str, Array]:
    """The tensors of a node by role, and its bits written out: `weight` of +-1, `direction` of +-1."""
    made = dict(node.tensors)
    channels = model.values[node.inputs[0]].channels
    if node.op == "bconv2d":
        made["weight"] = dense_kernels(node, channels // node.attributes["groups"])
    elif node.op == "threshold":
        made["direction"] = -unpack_signs(node.tensors["at_most"], (channels,))
    return made


def described(model: Model) -> dict[str, Any]:
    """What is known of the net, but for its nodes."""
    return {
        "format": FORMAT,
        "producer": model.producer,
        "description": model.description,
        "input_shape": model.graph.input_shape,
        "preprocessing": model.preprocessing and model.preprocessing._asdict(),
        "classes": model.classes,
    }


def described_node(model: Model, node: Node) -> dict[str, Any]:
    """A node, with nothing left to be worked out."""
    value = model.values[node.name]
    return {
        "name": node.name,
        "op": node.op,
        "inputs": node.inputs,
        "attributes": node.attributes,
        "makes": {"kind": value.kind, "shape": value.shape},
    }
