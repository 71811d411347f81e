"""`onebit.convert`: a packed net as a file for another program."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from onebit.advice import install_extra
from onebit.errors import ExportError, UserError
from onebit.exchange.limits import check_weights
from onebit.modelfile import Model, read_model, writable
from onebit.paths import write_whole
from onebit.runnable import Runnable
from onebit.zoo import model_path

Kind = Literal["onnx", "qonnx", "npz"]

# What a file is by its name, the longest ending first; and what one is called if nothing is said.
ENDINGS: dict[str, Kind] = {".qonnx.onnx": "qonnx", ".qonnx": "qonnx", ".onnx": "onnx", ".npz": "npz"}
USUAL: dict[Kind, str] = {"onnx": ".onnx", "qonnx": ".qonnx.onnx", "npz": ".npz"}
PACKED = ".packed.onnx"


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
    if kind is None:
        raise UserError(f"{path}: name it .onnx, .qonnx.onnx or .npz, or say what it is to be: to='onnx', ...")
    if kind not in USUAL:
        raise UserError(f"to={to!r}: use {', '.join(map(repr, USUAL))}")
    if packed and kind != "onnx":
        raise UserError(f"packed=True is for 'onnx'; {kind!r} has one form only")
    source = model_path(net) if isinstance(net, str | Path) else None
    file = target(path, kind, source)
    try:
        content = content_of(model_of(net), kind, packed=packed)
    except ModuleNotFoundError as error:
        if error.name != "onnx":
            raise
        raise ImportError(f"onebit.convert to {kind} needs onnx: {install_extra('onnx')}") from error
    write_content(file, content)
    return len(content)


def kind_of(path: str | os.PathLike[str]) -> Kind | None:
    """What a file is to be, by its name."""
    name = Path(path).name.lower()
    return next((kind for ending, kind in ENDINGS.items() if name.endswith(ending)), None)


def target(path: str | os.PathLike[str], kind: Kind, source: Path | None) -> Path:
    """The file that is to be written; raises ExportError if it can't be, or has the name of something else."""
    file = writable(path)
    told = kind_of(path)
    if file.suffix == ".onebit" or (told not in {None, kind} and (kind, told) != ("qonnx", "onnx")):
        raise ExportError(f"{path}: has the name of another kind of file; {kind} is named {USUAL[kind]}")
    if source is not None and file.exists() and source.exists() and file.samefile(source):
        raise ExportError(f"{path}: is the net that is to be written; name another file")
    return file


def write_content(file: Path, content: bytes) -> None:
    """Write a file, whole or not at all."""
    try:
        write_whole(file, content)
    except OSError as error:
        raise ExportError(f"{file}: can't be written ({error.strerror})") from error


def model_of(net: str | Path | Runnable | Model) -> Model:
    """The packed net that is meant."""
    if isinstance(net, Runnable):
        return net.model
    return net if isinstance(net, Model) else read_model(net)


def content_of(model: Model, kind: Kind, *, packed: bool = False) -> bytes:
    """The bytes of the file."""
    check_weights(model, as_floats=kind != "npz")
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
