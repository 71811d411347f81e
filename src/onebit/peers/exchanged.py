"""A file for another program: written, run by that program, and compared with what the engine makes of the net."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NamedTuple

from onebit.engine import Engine
from onebit.exchange.converting import Kind, content_of, write_content
from onebit.modelfile import Model, pack_model, writable
from onebit.peers.agreement import Agreement, compare, draw_images
from onebit.peers.runner import outputs_of

IMAGES = 4
PROGRAMS: dict[Kind, str] = {"onnx": "onnxruntime", "qonnx": "qonnx"}  # what runs files of a kind
FLOATS = "for exchange: every bit is a float of 32 bits in it"
REMARKS: dict[tuple[Kind, bool], str] = {
    ("onnx", False): f"{FLOATS} (--packed keeps bits)",
    ("onnx", True): "operators unpack the bits where it is loaded; then it runs as a float net does",
    ("qonnx", False): f"{FLOATS}, behind operators that say what it is",
    ("npz", False): "bits, packed and written out; docs/exchange.md says how to read them",
}


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
        """For people."""
        made = [f"{self.file}: {self.bytes:,} bytes ({self.onebit_bytes:,} as .onebit)"]
        made.append(REMARKS[self.kind, self.packed])
        if self.agreement is not None:
            same = f"{self.agreement.same_argmax:.0%} of {self.agreement.images} random images in the same class"
            largest = f"outputs differ by at most {self.agreement.difference:.1e} of the largest"
            made.append(f"{PROGRAMS[self.kind]} against onebit: {same}, {largest}")
        elif self.kind in PROGRAMS:
            program = PROGRAMS[self.kind]
            made.append(f"not run to compare: pip install 'onebit[{self.kind}]' brings {program}")
        return made


def write_and_compare(model: Model, path: Path, kind: Kind, *, packed: bool = False) -> Written:
    """Write a net for another program, and have that program run it."""
    file = writable(path)
    content = content_of(model, kind, packed=packed)
    agreement = _agreement(model, content, kind) if kind in PROGRAMS else None
    write_content(file, content)
    return Written(file, kind, packed, len(content), len(pack_model(model)), agreement)


def _agreement(model: Model, content: bytes, kind: Kind) -> Agreement | None:
    try:
        module = importlib.import_module(f"onebit.peers.{PROGRAMS[kind]}_net")
    except ModuleNotFoundError as error:
        if error.name != PROGRAMS[kind]:
            raise
        return None
    images = draw_images(IMAGES, model.graph.input_shape)
    return compare(outputs_of(module.session(content), images, 1), Engine(model)(images))
