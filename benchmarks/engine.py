"""The engine by itself: its inner loops beside the core's limit, layers, nets with each set of kernels.

    python benchmarks/engine.py                         # all of it, some minutes; needs cmake and a C compiler
    python benchmarks/engine.py --part levels           # W1A8: the inner loop, layers, nets
    python benchmarks/engine.py --part layers --rounds 31

Everything of a table is measured in turns in one run. `python -m benchmarks.peers` compares with other engines.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import nn

import onebit
from onebit.engine import Engine
from onebit.graph import Graph, Node
from onebit.modelfile import Model
from onebit.models import wrn22
from onebit.native import ISAS, native
from onebit.operations import default_attributes
from onebit.packing import pack_kernels, pack_signs
from peers.nets import TABLES, Case, layer, make_files

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "benchmarks"


def run_native(name: str) -> None:
    """Build and run native/benchmarks/NAME.c."""
    configure = ["cmake", "-S", str(ROOT), "-B", str(BUILD), f"-DPython_EXECUTABLE={sys.executable}"]
    build = ["cmake", "--build", str(BUILD), "--target", name]
    for command in (configure, build):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 our own
    subprocess.run([BUILD / name], check=True)  # noqa: S603 our own


def engine_of(case: Case, folder: Path, isa: str = "auto") -> tuple[Engine, np.ndarray]:
    """A case's net, and a batch for it in the layout that the engine likes best."""
    files = make_files(case, folder)
    images = np.load(files.images)[: case.batch]
    by_pixels = np.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    return onebit.load(files.same, isa=isa), by_pixels


def layers(rounds: int, folder: Path) -> None:
    """Microseconds of the two steps of a layer, floats to floats, and what calls cost beside them."""
    cases = [*(layer(width, 512 // width) for width in (16, 32, 64)), *TABLES["conv"]]
    fast = [isa for isa in here() if isa != "scalar"]
    nets = {(case.title, isa): engine_of(case, folder, isa) for case in cases for isa in fast}
    times: dict[tuple[str, str], list[list[float]]] = {key: [] for key in nets}
    for _ in range(rounds):
        for key, (net, images) in nets.items():
            times[key] += [net.step_seconds(images) for _ in range(20)]
    net, images = engine_of(Case("one number", nn.ReLU, (1, 1, 1)), folder)
    calls = repeated(lambda: net(images), 20_000)
    print(f"{'median (tenth percentile)':47} {'sign':>18} {'1-bit convolution':>20} {'multiply-adds a ns':>19}")
    for (title, isa), (_, images) in nets.items():
        low, middle = np.percentile(times[title, isa], (10, 50), axis=0)
        sign, conv = (f"{middle[i] * 1e6:.1f} ({low[i] * 1e6:.1f}) us" for i in (0, 1))
        macs = 9 * images.shape[1] * images.size
        speed = f"{macs / middle[1] / 1e9:.0f} ({macs / low[1] / 1e9:.0f})"
        print(f"{title:38} {isa:8} {sign:>18} {conv:>20} {speed:>19}")
    print(f"a call of a net that only takes the positive part of one number: {median(calls) * 1e6:.1f} us")


def nets(rounds: int, folder: Path) -> None:
    """Milliseconds of whole nets; how much slower plain C is; bytes in memory."""
    cases = [TABLES["wrn22"][0], *TABLES["resnet18"], *TABLES["w1a32"]]
    print(f"{'':32} " + " ".join(f"{isa:>12}" for isa in here()) + f" {'weights':>10} {'workspace':>10}")
    for case in cases:
        engines = {isa: engine_of(case, folder, isa) for isa in here()}
        times: dict[str, list[float]] = {isa: [] for isa in engines}
        for _ in range(rounds):
            for isa, (net, images) in engines.items():
                times[isa] += repeated(lambda net=net, images=images: net(images), 3)  # type: ignore[misc]
        info = engines[here()[0]][0].info()
        memory = " ".join(f"{info[key] / 1e6:7.1f} MB" for key in ("weight_bytes", "workspace_bytes"))
        print(
            f"{case.title:32} " + " ".join(f"{median(times[isa]) * 1e3:9.2f} ms" for isa in engines) + f" {memory}"
        )


def levels(rounds: int, folder: Path) -> None:
    """Resnet18 at 224 x 224: inputs in 8 bits, all other layers in 8 bits; milliseconds, and of each kernel."""
    images = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    by_pixels = np.ascontiguousarray(images.numpy().transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    nets = {}
    for bits in (1, 32):
        torch.manual_seed(0)
        model = onebit.models.resnet18(activation_bits=bits).eval()
        for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
            nn.init.normal_(norm.bias, std=0.1)  # as after training: a norm that shifts nothing keeps zeros exact
        for wanted in (
            {},
            {"int8_layers": True},
            {"activation_bits": 8},
            {"int8_layers": True, "activation_bits": 8},
        ):
            if bits == 1 and "activation_bits" in wanted:
                continue
            title = f"W1A{wanted.get('activation_bits', bits)}{', others in 8 bits' * ('int8_layers' in wanted)}"
            onebit.export(model, folder / title, images, calibration=[images] if wanted else None, **wanted)
            nets[title] = onebit.load(folder / title)
    times: dict[str, list[list[float]]] = {title: [] for title in nets}
    for _ in range(3 * rounds):
        for title, net in nets.items():
            times[title].append(net.step_seconds(by_pixels))
    for title, net in nets.items():
        steps = np.median(times[title], axis=0)
        by_kernel: dict[str, float] = {}
        for step, seconds in zip(net.info()["steps"], steps, strict=True):
            by_kernel[step["kernel"]] = by_kernel.get(step["kernel"], 0.0) + seconds
        parts = ", ".join(f"{name} {seconds * 1e3:.2f}" for name, seconds in by_kernel.items() if seconds > 2e-5)
        print(f"Resnet18 {title:26} {np.median(np.sum(times[title], axis=1)) * 1e3:6.2f} ms: {parts}")


def kernels_with(projections: int, width: int, side: int, masks: str) -> Engine:
    """One 1-bit layer of `width` channels, with AVX2. masks: 'drawn'; 'written out' into kernels of J = 1."""
    rng = np.random.default_rng(width)
    J, shape = projections, (width // projections, width, 3, 3)
    kernels, signs = rng.choice([-1, 1], shape), rng.choice([-1, 1], (J, 3, 3))
    tensors = {"kernels": pack_kernels(kernels), "masks": pack_signs(signs)}
    if masks == "written out":
        dense = (kernels[:, None] * signs[None, :, None]).reshape(width, width, 3, 3)
        J, tensors = 1, {"kernels": pack_kernels(dense)}
    options = {"out_channels": width, "kernel_size": [3, 3], "padding": [1] * 4, "projections": J}
    nodes = [
        Node("sign", "sign", ("input",), default_attributes("sign"), {}),
        Node("conv", "bconv2d", ("sign",), default_attributes("bconv2d") | options, tensors),
        Node("out", "affine", ("conv",), default_attributes("affine"), {"scale": np.ones(width, np.float32)}),
    ]
    return Engine(Model(Graph((width, side, side), nodes)), isa="avx2")


def projections(rounds: int, folder: Path) -> None:
    """What J projections cost that share their work: layers, of which J = 1 is the yardstick, and a whole net."""
    print(f"{'3x3, channels':24} {'J':>2} {'written out':>13} {'shared':>11} {'ratio':>6}  kernel")
    for width, side in ((16, 32), (32, 32), (64, 32), (128, 16), (256, 8)):
        images = np.random.default_rng(0).normal(size=(1, width, side, side)).astype(np.float32)
        for J in (2, 4):
            layers = [kernels_with(J, width, side, masks) for masks in ("written out", "drawn")]
            times: list[list[float]] = [[], []]
            for _ in range(40 * rounds):
                for net, of in zip(layers, times, strict=True):
                    of.append(net.step_seconds(images)[1])
            apart, shared = median(times[0]), median(times[1])
            kernel = layers[1].info()["steps"][1]["kernel"]
            title = f"{width} at {side} x {side}"
            ratio = median(np.divide(times[1], times[0]))
            print(f"{title:24} {J:2} {apart * 1e6:10.1f} us {shared * 1e6:8.1f} us {ratio:6.2f}  {kernel}")
    nets = {}
    for J in (1, 2, 4):
        case = Case(f"WRN-22, J = {J}", partial(wrn22, 64 // J, J, activation_bits=1), (3, 32, 32))
        nets[J] = engine_of(case, folder, "avx2")
    calls: dict[int, list[float]] = {J: [] for J in nets}
    for _ in range(10 * rounds):
        for J, (net, images) in nets.items():
            calls[J] += repeated(lambda net=net, images=images: net(images), 1)  # type: ignore[misc]
    for J, of in calls.items():
        ratio = median(np.divide(of, calls[1]))
        print(f"WRN-22 of tensor width 64, J = {J}: {median(of) * 1e3:.3f} ms, {ratio:.2f} of J = 1")


def here() -> list[str]:
    """The kernels that this machine can run."""
    return [isa for isa in ISAS if native().has_isa(isa)]


def repeated(call: Callable[[], object], count: int) -> list[float]:
    """The seconds of each of so many calls."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("kernel", "layers", "nets", "levels", "projections", "ways")
    parser.add_argument("--part", choices=parts, help="one table alone")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.part in (None, "kernel"):
            run_native("count") if "avx2" in here() else print("no AVX2 here: the first table is left out")
        if arguments.part in (None, "layers"):
            layers(arguments.rounds, Path(folder))
        if arguments.part in (None, "nets"):
            nets(arguments.rounds, Path(folder))
        if arguments.part in (None, "levels"):
            run_native("levels") if "avx2" in here() else print("no AVX2 here: the table of sums is left out")
            levels(arguments.rounds, Path(folder))
        if arguments.part in (None, "projections") and "avx2" in here():
            projections(arguments.rounds, Path(folder))
        if arguments.part in (None, "ways") and "avx2" in here():
            run_native("ways")


if __name__ == "__main__":
    main()
