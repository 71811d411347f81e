"""What a net takes in each form that other programs read, and how ONNX Runtime runs it.

Sizes of the files; seconds to load one, and milliseconds an image on one core, floats and packed bits in turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import onnxruntime
import torch

import onebit
from onebit.exchange.converting import Kind, content_of
from onebit.graph import INPUT
from onebit.modelfile import Model, pack_model, read_model
from onebit.runnable import Floats

FORMS: dict[str, tuple[Kind, bool]] = {
    "ONNX": ("onnx", False),
    "ONNX, packed": ("onnx", True),
    "QONNX": ("qonnx", False),
    ".npz": ("npz", False),
}


class Timed(NamedTuple):
    """What ONNX Runtime takes for a file."""

    load: float
    run: float


def resnet18() -> Model:
    """W1A1, J = 1, for 1000 classes and images of 224 x 224; what its weights are does not matter."""
    torch.manual_seed(0)
    net = onebit.models.resnet18(activation_bits=1).eval()
    with TemporaryDirectory() as folder:
        onebit.export(net, f"{folder}/net.onebit", torch.zeros(1, 3, 224, 224))
        return read_model(f"{folder}/net.onebit")


def session(content: bytes) -> onnxruntime.InferenceSession:
    """A file in ONNX Runtime, on one core."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def seconds(run: onnxruntime.InferenceSession, x: Floats, calls: int) -> float:
    """Of a call, the median."""
    taken = []
    for _ in range(calls):
        start = time.perf_counter()
        run.run(None, {INPUT: x})
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def timed(contents: dict[str, bytes], x: Floats, rounds: int) -> dict[str, Timed]:
    """The medians over rounds, in which all files take turns."""
    loads: dict[str, list[float]] = {name: [] for name in contents}
    runs: dict[str, list[float]] = {name: [] for name in contents}
    for _ in range(rounds):
        for name, content in contents.items():
            start = time.perf_counter()
            net = session(content)
            loads[name].append(time.perf_counter() - start)
            seconds(net, x, 2)
            runs[name].append(seconds(net, x, 10))
    return {name: Timed(statistics.median(loads[name]), statistics.median(runs[name])) for name in contents}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    print("| net | file | bytes | of `.onebit` | ONNX Runtime loads it in | runs an image in |")
    print("|---|---|---:|---:|---:|---:|")
    nets = {"WRN-22, `zoo:cifar10-w1a1`": onebit.load("zoo:cifar10-w1a1").model, "Resnet18 W1A1": resnet18()}
    for net, model in nets.items():
        own = len(pack_model(model))
        print(f"| {net} | `.onebit` | {own:,} | 1.0 | | |")
        contents = {name: content_of(model, kind, packed=packed) for name, (kind, packed) in FORMS.items()}
        x = np.random.default_rng(0).standard_normal((1, *model.graph.input_shape), np.float32)
        times = timed({name: contents[name] for name in ("ONNX", "ONNX, packed")}, x, rounds)
        for name, content in contents.items():
            time_ = f"{1e3 * times[name].load:.0f} ms | {1e3 * times[name].run:.2f} ms" if name in times else " | "
            print(f"| | {name} | {len(content):,} | {len(content) / own:.1f} | {time_} |")


if __name__ == "__main__":
    main()
