"""A file for another program: written, run by that program, and compared with what the engine makes of the net."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any, NamedTuple

from onebit.advice import install_extra
from onebit.engine import Engine
from onebit.errors import WorkError
from onebit.exchange.converting import Kind, content_of, write_content
from onebit.graph import INPUT
from onebit.modelfile import Model, pack_model
from onebit.peers.agreement import CLOSE, Agreement, compare, draw_images
from onebit.peers.runner import in_short, outputs_of

IMAGES, MOST_NUMBERS = 4, 1 << 26  # that are compared; one image may have more
PROGRAMS: dict[Kind, str] = {"onnx": "onnxruntime", "qonnx": "qonnx"}  # what runs files of a kind
FLOATS = "for exchange: every bit is a float of 32 bits in it"
REMARKS: dict[tuple[Kind, bool], str] = {
    ("onnx", False): f"{FLOATS} (--packed keeps bits)",
    ("onnx", True): "operators unpack the bits where it is loaded; then it runs as a float net does",
    ("qonnx", False): f"{FLOATS}, behind operators that say what it is",
    ("npz", False): "bits, packed and written out; docs/exchange.md says how to read them",
}
LEVELS_CLOSE = 0.05  # a float at the edge of two levels may become the other one: the outputs move a little
TURNED = "no image agrees closely: a float near its threshold turned a bit, and so what follows; compare accuracies"


class Written(NamedTuple):
    """A file that was written; how its program and the engine agree, if the program is there."""

    file: Path
    kind: Kind
    packed: bool
    bytes: int
    onebit_bytes: int  # of the same net as a .onebit file
    agreement: Agreement | None

    def as_json(self) -> dict[str, Any]:
        """For a program."""
        told = {
            "file": str(self.file),
            "to": self.kind,
            "packed": self.packed,
            "bytes": self.bytes,
            "onebit_bytes": self.onebit_bytes,
        }
        if self.agreement is None:
            return told
        agreement = {"program": PROGRAMS[self.kind]} | self.agreement._asdict()
        return told | {"agreement": agreement}

    def lines(self) -> list[str]:
        """What came out, for people."""
        made = [f"{self.file}: {self.bytes:,} bytes ({self.onebit_bytes:,} as .onebit)"]
        if self.agreement is not None:
            same = f"{self.agreement.same_argmax:.0%} of {self.agreement.images} random images in the same class"
            largest = f"outputs differ by at most {self.agreement.difference:.1e} of the largest"
            made.append(f"{PROGRAMS[self.kind]} against onebit: {same}, {largest}")
            made += [TURNED] if not self.agreement.close else []
        return made

    def remarks(self) -> list[str]:
        """What is good to know, for people."""
        made = [REMARKS[self.kind, self.packed]]
        if self.agreement is None and self.kind in PROGRAMS:
            made.append(f"not run to compare: {install_extra(self.kind)} brings {PROGRAMS[self.kind]}")
        return made


def write_and_compare(model: Model, file: Path, kind: Kind, *, packed: bool = False) -> Written:
    """Write a net for another program, and have that program run it, if it is installed.

    Raises WorkError if the program can't run the file, or makes something else of it.
    """
    content = content_of(model, kind, packed=packed)
    write_content(file, content)
    agreement = _agreement(model, content, kind, file) if kind in PROGRAMS else None
    return Written(file, kind, packed, len(content), len(pack_model(model)), agreement)


def _agreement(model: Model, content: bytes, kind: Kind, file: Path) -> Agreement | None:
    program = PROGRAMS[kind]
    try:
        module = importlib.import_module(f"onebit.peers.{program}_net")
    except ModuleNotFoundError as error:
        if error.name != program:
            raise
        return None
    count = max(1, min(IMAGES, MOST_NUMBERS // math.prod(model.graph.input_shape)))
    images = draw_images(count, model.graph.input_shape)
    try:
        made = outputs_of(module.session(content), images, 1)
    except Exception as error:
        raise WorkError(f"{file} is written, but {program} can't run it ({in_short(error)})") from error
    agreement = compare(made, Engine(model)(images))
    if agreement.difference > _allowed(model):
        told = f"outputs differ by {agreement.difference:.1e} of the largest"
        raise WorkError(f"{file} is written, but {program} does not make of it what onebit makes ({told})")
    return agreement


def _allowed(model: Model) -> float:
    """How far outputs may differ: where floats become bits, any rounding may turn one.

    So it may where floats that were computed become levels, and sums of these become bits behind them.
    """
    nodes = model.graph.nodes
    levels = [node for node in nodes if node.op == "quantize"]
    may_move = any(node.inputs != (INPUT,) for node in levels)
    turns = any(
        node.op in {"sign", "threshold"} and (may_move or model.values[node.inputs[0]].kind == "float")
        for node in nodes
    )
    if turns:
        return float("inf")
    return LEVELS_CLOSE if levels else 10 * CLOSE
