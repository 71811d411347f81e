"""`onebit.convert`: a packed net as a file for another program."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Literal

from onebit.errors import ExportError, UserError
from onebit.graph import Node
from onebit.modelfile import Model, read_model, writable
from onebit.paths import write_whole
from onebit.runnable import Runnable
from onebit.shapes import bconv_shape

Kind = Literal["onnx", "qonnx", "npz"]

ENDINGS: dict[Kind, str] = {"onnx": ".onnx", "qonnx": ".qonnx.onnx", "npz": ".npz"}
MAX_BYTES = (
    1 << 31
) - 1  # of weights that are written out; an ONNX model has no more, and who unpacks bits has them, too


def convert(
    net: str | Path | Runnable | Model, path: str | Path, to: Kind | None = None, *, packed: bool = False
) -> int:
    """Write a packed net for another program; returns the size of the file in bytes. Needs no torch.

        onebit.convert("net.onebit", "net.onnx")
        onebit.convert("zoo:cifar10-w1a8", "net.npz")

    net      a .onebit file, 'zoo:NAME', or what `onebit.load` made of one
    to       'onnx': standard operators, for a batch of any size; 'qonnx': with operators that say what is
             quantized, for flows to FPGAs, batches of 1; 'npz': arrays for NumPy; None: what the path ends in
    packed   'onnx' only: bits stay packed in the file, and operators unpack them where it is loaded

    ONNX and QONNX need the package onnx. The file is written whole or not at all; what a format can't hold raises
    ExportError, which names the node and its operation.
    """
    kind = to or kind_of(path)
    if kind not in ENDINGS:
        raise UserError(f"to={to!r}: use {', '.join(map(repr, ENDINGS))}")
    if packed and kind != "onnx":
        raise UserError(f"packed=True is for 'onnx'; {kind!r} has one form only")
    file = writable(path)
    content = content_of(model_of(net), kind, packed=packed)
    write_content(file, content)
    return len(content)


def write_content(file: Path, content: bytes) -> None:
    """Write a file, whole or not at all."""
    try:
        write_whole(file, content)
    except OSError as error:
        raise ExportError(f"{file}: can't be written ({error.strerror})") from error


def kind_of(path: str | os.PathLike[str]) -> Kind:
    """What a file is to be, by its name."""
    name = Path(path).name.lower()
    fitting = [kind for kind, ending in ENDINGS.items() if name.endswith(ending)]
    if not fitting:
        raise UserError(f"{path}: name it .onnx or .npz, or say what it is to be: to='onnx', 'qonnx' or 'npz'")
    return max(fitting, key=lambda kind: len(ENDINGS[kind]))


def model_of(net: str | Path | Runnable | Model) -> Model:
    """The packed net that is meant."""
    if isinstance(net, Runnable):
        return net.model
    return net if isinstance(net, Model) else read_model(net)


def content_of(model: Model, kind: Kind, *, packed: bool = False) -> bytes:
    """The bytes of the file."""
    _check_size(model, bytes_each=1 if kind == "npz" else 4)
    if kind == "npz":
        from onebit.exchange.arrays import npz_bytes

        return npz_bytes(model)
    if kind == "onnx":
        from onebit.exchange.onnx_net import onnx_model

        made = onnx_model(model, packed=packed)
    else:
        from onebit.exchange.qonnx_net import qonnx_model

        made = qonnx_model(model)
    content: bytes = made.SerializeToString(deterministic=True)
    return content


def _check_size(model: Model, bytes_each: int) -> None:
    """A few bits with many projections, written out, could take all memory."""
    total = sum(_numbers(model, node) for node in model.graph.nodes) * bytes_each
    if total > MAX_BYTES:
        raise ExportError(
            f"its weights, written out, take {total:,} bytes, and an ONNX model may have {MAX_BYTES:,}"
        )


def _numbers(model: Model, node: Node) -> int:
    """Of a node's weight, written out."""
    if node.op == "bconv2d":
        return math.prod(bconv_shape(node, model.values[node.inputs[0]])) * int(node.attributes["projections"])
    return sum(tensor.size for tensor in node.tensors.values())
