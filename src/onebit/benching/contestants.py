"""Who is timed: the engine, and the programs that are installed, each with the same net and with its float twin."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Literal, NamedTuple

from onebit.engine import Engine
from onebit.modelfile import Model
from onebit.peers import onebit_net
from onebit.peers.agreement import Agreement, compare
from onebit.peers.runner import Bursts, Runner, Ways, fastest, in_short, outputs_of
from onebit.runnable import Floats

OURS = "onebit"


class Peer(NamedTuple):
    """A program: the packages that it needs, the extra that brings them, and the module that makes a net ready."""

    title: str
    needs: tuple[str, ...]
    extra: str
    module: str

    def missing(self) -> list[str]:
        """Packages that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


PEERS = {
    "torch": Peer("PyTorch", ("torch",), "train", "torch_net"),
    "onnxruntime": Peer("ONNX Runtime", ("onnx", "onnxruntime"), "bench", "onnxruntime_net"),
    "openvino": Peer("OpenVINO", ("onnx", "openvino"), "bench", "openvino_net"),
}


@dataclass
class Row:
    """A program with a net; once it is timed, the seconds of its calls. Without them `failure` says why.

    name        of `PEERS`, or 'onebit'
    net         'file': from bits; 'same': its bits as floats; 'twin': its float twin
    agreement   with onebit's outputs of the same images; of a twin, which is another net, None
    """

    name: str
    net: Literal["file", "same", "twin"]
    way: str = ""
    failure: str = ""
    agreement: Agreement | None = None
    bursts: Bursts = field(default_factory=list)
    runner: Runner | None = None
    x: Any = None  # a batch, as the runner wants it

    @property
    def title(self) -> str:
        """Of the program, for people."""
        return OURS if self.name == OURS else PEERS[self.name].title


def versions(names: list[str]) -> dict[str, str]:
    """Of the programs that take part, and of what they need."""
    packages = [OURS, *dict.fromkeys(package for name in names for package in PEERS[name].needs)]
    return {name: found for name in packages if (found := _version(name))}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


class Nets(NamedTuple):
    """What all rows run: the engine with the file, and its float twin."""

    engine: Engine
    twin: Model

    def ways(self, row: Row, images: Floats) -> Ways:
        """How a program can run the net of a row."""
        if row.name == OURS:
            return onebit_net.ways(self.engine)
        module = importlib.import_module(f"onebit.peers.{PEERS[row.name].module}")
        ways: Ways = module.ways(self.twin if row.net == "twin" else self.engine.model, images)
        return ways


def make_ready(row: Row, nets: Nets, images: Floats, batch: int) -> None:
    """Load the net of a row in its program's fastest way, and see what it makes of the images."""
    try:
        row.way, row.runner = fastest(nets.ways(row, images[:batch]), images[:batch])
        row.x = row.runner.enter(images[:batch])
        made = outputs_of(row.runner, images, batch)
        if row.net == "same":
            row.agreement = compare(made, nets.engine(images))
    except Exception as error:
        if row.name == OURS:
            raise
        row.failure = in_short(error)
        row.runner = None
