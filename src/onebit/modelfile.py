"""The .onebit file: tensors, and the graph as a text beside them. docs/format.md is its specification.

Whatever comes from outside is hostile until it is checked: sizes before memory is taken, the graph before it runs.
Everything that can be wrong raises ModelFileError, and nothing else happens.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onebit.checking import MAX_NODES, check_graph
from onebit.console import counted
from onebit.container import MAX_FILE, pack_container, unpack_container
from onebit.errors import ExportError, ModelFileError, UserError
from onebit.graph import INPUT, Array, Graph, GraphError, Node, Value
from onebit.jsonfields import Fields, is_int, parse_json, plain_text
from onebit.operations import OPERATIONS, default_attributes
from onebit.paths import user_path, write_whole
from onebit.version import __version__
from onebit.zoo import model_path

FORMAT = 1
MAX_CLASSES = 1 << 17
MAX_PARAMETERS = 1 << 40
MIN_STD, MAX_NUMBER = 1e-6, 1e6  # of preprocessing: no pixel becomes infinite, nor all of them one number


class Preprocessing(NamedTuple):
    """How a picture becomes the net's input.

    A centred part of the picture, of the input's proportions and `crop` times as large as fits, is resized to the
    input's height and width; then each channel is (pixel / 255 - mean) / std.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: float = 1.0


def check_preprocessing(mean: Iterable[Any], std: Iterable[Any], crop: Any) -> None:
    """Raise ModelFileError for numbers with which no picture becomes an input."""
    for number in (*mean, *std, crop):
        if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) < MAX_NUMBER:
            raise ModelFileError("preprocessing: mean, std and crop must be numbers below a million, and finite")
    if not all(number >= MIN_STD for number in std):
        raise ModelFileError(f"preprocessing: std must be at least {MIN_STD:g}, for pixels of 0 to 1")
    if not 0 < crop <= 1:
        raise ModelFileError("preprocessing: crop must be more than 0 and at most 1")


class Counts(NamedTuple):
    """Of the net before it was packed, to compare with: parameters of the same net in float, and how many of them
    are weights and biases of layers that are not 1-bit.
    """

    in_float: int
    full_precision: int


@dataclass
class Model:
    """What a model file holds."""

    graph: Graph
    preprocessing: Preprocessing | None = None
    classes: tuple[str, ...] | None = None
    description: str = ""
    counts: Counts | None = None
    producer: str = f"onebit {__version__}"
    values: dict[str, Value] = field(init=False)

    def __post_init__(self) -> None:
        self.values = check_graph(self.graph)
        channels, outputs = self.graph.input_shape[0], self.values[self.graph.nodes[-1].name].channels
        if self.preprocessing and not len(self.preprocessing.mean) == len(self.preprocessing.std) == channels:
            raise GraphError(f"preprocessing must have a mean and a std for each of {counted(channels, 'channel')}")
        if self.classes is not None and len(self.classes) != outputs:
            raise GraphError(f"{counted(len(self.classes), 'class name')} for {counted(outputs, 'output')}")


def pack_model(model: Model) -> bytes:
    """The bytes of the file. Tensors that are equal are stored once."""
    stored: dict[str, Array] = {}
    names: dict[tuple[str, tuple[int, ...], bytes], str] = {}
    nodes = []
    previous = INPUT
    for node in model.graph.nodes:
        elsewhere = {}
        for role, tensor in node.tensors.items():
            own = f"{node.name}.{role}"
            name = names.setdefault((tensor.dtype.str, tensor.shape, tensor.tobytes()), own)
            if name == own:
                stored[own] = np.ascontiguousarray(tensor)
            else:
                elsewhere[role] = name
        known = OPERATIONS[node.op].attributes
        stated = {
            "name": node.name,
            "op": node.op,
            "inputs": () if node.inputs == (previous,) else node.inputs,
            "attributes": {key: value for key, value in node.attributes.items() if value != known[key].default},
            "tensors": [role for role in node.tensors if role not in elsewhere],
            "tensors_of": elsewhere,
        }
        nodes.append({key: value for key, value in stated.items() if value})
        previous = node.name
    described = {
        "format": FORMAT,
        "producer": model.producer,
        "description": model.description,
        "input_shape": list(model.graph.input_shape),
        "nodes": nodes,
        "preprocessing": model.preprocessing and model.preprocessing._asdict(),
        "classes": model.classes,
        "counts": model.counts and model.counts._asdict(),
    }
    text = json.dumps(described, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return pack_container(text, stored)


def writable(path: str | os.PathLike[str]) -> Path:
    """The file that is to be written; raises ExportError if it can't be one."""
    file = user_path(path)
    if not os.path.isdir(file.parent):  # noqa: PTH112 Path's own raises for a name that is too long
        raise ExportError(f"{path}: there is no folder {file.parent}")
    if os.path.isdir(file):  # noqa: PTH112
        raise ExportError(f"{path}: a folder; name a file in it")
    if os.path.exists(file) and not os.path.isfile(file):  # noqa: PTH110, PTH113
        raise ExportError(f"{path}: is there, and is no ordinary file")
    return file


def write_model(model: Model, path: str | Path) -> int:
    """Write the file, whole or not at all, and only if it can be read; returns its size."""
    content, file = pack_model(model), Path(path)
    unpack_model(content)
    write_whole(file, content)
    return len(content)


def read_model(path: str | os.PathLike[str]) -> Model:
    """Read a model file, or 'zoo:NAME', and check everything in it."""
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"the path of a .onebit file is expected, not {type(path).__name__}")
    file = model_path(path)
    if not file.is_file():
        what = "a folder, not a file" if file.is_dir() else "no such file"
        raise UserError(f"{path}: {what}; a .onebit file is expected (`onebit export RUN` makes one)")
    if file.stat().st_size > MAX_FILE:
        raise ModelFileError(f"{path}: larger than the {MAX_FILE} bytes that a model file may have")
    try:
        return unpack_model(file.read_bytes())
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}") from None


def unpack_model(content: bytes) -> Model:
    """The model in the bytes of a file; raises ModelFileError if anything at all is wrong with them."""
    try:
        return _unpacked(content)
    except (GraphError, ModelFileError) as error:
        raise ModelFileError(str(error)[:400]) from None  # whatever names a file has put into it


def _unpacked(content: bytes) -> Model:
    text, tensors = unpack_container(content)
    fields = Fields(parse_json(text, "its description"), "the description")
    number = fields.take("format", int)
    if number != FORMAT:
        newer = "a newer onebit wrote it; update yours" if number > FORMAT else "there is no such format"
        raise ModelFileError(f"format {number}, and this version reads {FORMAT}: {newer}")
    shape = fields.take("input_shape", list)
    if len(shape) != 3 or not all(is_int(side) for side in shape):
        raise ModelFileError("input_shape must be channels, height and width")
    nodes = fields.take("nodes", list)
    if len(nodes) > MAX_NODES:
        raise ModelFileError(f"{len(nodes)} nodes, and at most {MAX_NODES} are allowed")
    graph = Graph((shape[0], shape[1], shape[2]), _nodes(nodes, tensors))
    preprocessing = _preprocessing(fields.take("preprocessing", dict, None))
    classes = _classes(fields.take("classes", list, None))
    counts = _counts(fields.take("counts", dict, None))
    about = [plain_text(fields.take(key, str), key) for key in ("description", "producer")]
    fields.end()
    return Model(graph, preprocessing, classes, about[0], counts, about[1])


def _nodes(described: list[Any], tensors: dict[str, Array]) -> list[Node]:
    nodes: list[Node] = []
    unused = set(tensors)
    for each in described:
        fields = Fields(each, "a node")
        name, op = (plain_text(fields.take(key, str), key) for key in ("name", "op"))
        if not name:
            raise ModelFileError("a node's name must not be empty")
        inputs = fields.take("inputs", list, [nodes[-1].name if nodes else INPUT])
        attributes = fields.take("attributes", dict, {})
        roles, of = fields.take("tensors", list, []), fields.take("tensors_of", dict, {})
        fields.end()
        if not all(isinstance(word, str) for word in (*inputs, *roles, *of.values())):
            raise ModelFileError(f"node {name!r}: inputs and tensors must be names")
        if len({*roles, *of}) < len(roles) + len(of):
            raise ModelFileError(f"node {name!r}: has a tensor of the same role twice")
        if op not in OPERATIONS:
            raise ModelFileError(f"node {name!r}: there is no operation {op!r} in format {FORMAT}")
        found = {role: f"{name}.{role}" for role in roles} | of
        for tensor in found.values():
            if tensor not in tensors:
                raise ModelFileError(f"node {name!r}: the file has no tensor {plain_text(tensor, 'a tensor')!r}")
        unused.difference_update(found.values())
        arrays = {role: tensors[at] for role, at in found.items()}
        nodes.append(Node(name, op, tuple(inputs), default_attributes(op) | attributes, arrays))
    if unused:
        raise ModelFileError(f"no node uses the tensor {plain_text(min(unused), 'a tensor')!r}")
    return nodes


def _preprocessing(described: Any) -> Preprocessing | None:
    if described is None:
        return None
    fields = Fields(described, "preprocessing")
    mean, std = fields.take("mean", list), fields.take("std", list)
    crop = fields.take("crop", (int, float))
    fields.end()
    check_preprocessing(mean, std, crop)
    return Preprocessing(tuple(mean), tuple(std), crop)


def _counts(described: Any) -> Counts | None:
    if described is None:
        return None
    fields = Fields(described, "counts")
    counts = Counts(fields.take("in_float", int), fields.take("full_precision", int))
    fields.end()
    if not all(0 <= count < MAX_PARAMETERS for count in counts):
        raise ModelFileError(f"counts: from 0 to {MAX_PARAMETERS} parameters are allowed")
    return counts


def _classes(described: Any) -> tuple[str, ...] | None:
    if described is None:
        return None
    if len(described) > MAX_CLASSES:
        raise ModelFileError(f"{len(described)} class names, and at most {MAX_CLASSES} are allowed")
    return tuple(plain_text(each, "a class name") for each in described)
