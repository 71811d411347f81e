"""Table 5: what Resnet18 takes, as the paper counts and on disk; and how fast it is, by measuring, not by count."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import nn

from onebit import models
from onebit.benching.contestants import Nets
from onebit.benching.measuring import Effort, measure, turns
from onebit.exporting.exporter import export
from onebit.layers import ProjectionConv2d
from onebit.loading import load
from onebit.peers.twin import float_twin
from onebit.reproduction.published import MEMORY
from onebit.reproduction.sheets import Sheet
from onebit.summary import Summary

LAYERS = ((64, 56), (128, 28), (256, 14), (512, 7))  # channels and sides of Resnet18's 1-bit convolutions
PEERS = ["torch"]


class Speed(NamedTuple):
    """Milliseconds of a call with one image on one core, and how many times as long PyTorch takes in float.

    by_count    how many times as long it would take if operations were all that counts, see `by_count`
    """

    what: str
    by_count: float
    onebit_ms: float
    torch_ms: float
    times: float


class Memory(NamedTuple):
    """Bits as the paper counts them, bytes of the files, and what was timed."""

    float_bits: int
    slopes: int  # of the W1A1 net's PReLUs, which the paper does not count
    one_bit: dict[str, Summary]
    speeds: list[Speed]

    def saving(self, of: Summary) -> float:
        """How many times as many bits Resnet18 takes in float, as the paper counts."""
        return self.float_bits / _paper_bits(of)

    def saving_on_disk(self, of: Summary) -> float:
        """And how many times as many bytes. XNOR-Net's own float twin has smaller norms."""
        return self.float_bits / 8 / of.file_bytes

    def as_json(self) -> dict[str, Any]:
        """For a program."""
        nets = {
            name: {
                "mbit": _paper_bits(of) / 1e6,
                "saving": self.saving(of),
                "bytes_on_disk": of.file_bytes,
                "saving_on_disk": self.saving_on_disk(of),
            }
            for name, of in self.one_bit.items()
        }
        speeds = [speed._asdict() for speed in self.speeds]
        counts = {"float_mbit": self.float_bits / 1e6, "prelu_slopes": self.slopes}
        return {"paper": MEMORY, **counts, "nets": nets, "speeds": speeds}


def _paper_bits(of: Summary) -> int:
    """A net that was exported by this program knows them."""
    if of.paper_bits is None:
        raise ValueError("a net that was not exported from PyTorch")
    return of.paper_bits


def measured(effort: Effort, image_size: int, advance: Callable[[], None]) -> Memory:
    """Make the nets, store them, time them. Speed and size do not depend on what a net has learned."""
    torch.manual_seed(0)
    example = torch.zeros(1, 3, image_size, image_size)
    with TemporaryDirectory() as folder:
        summaries, speeds = {}, []
        for label, method in (("PCNN", "pcnn"), ("XNOR-Net", "xnor")):
            net = _as_if_trained(models.resnet18(method=method, activation_bits=1))
            path = Path(folder) / f"{method}.onebit"
            summaries[label] = export(net, path, example)
        shown, pcnn = f"Resnet18, {image_size} x {image_size}", Path(folder) / "pcnn.onebit"
        speeds.append(_speed(shown, pcnn, by_count(summaries["PCNN"]), effort, advance))
        for channels, side in LAYERS:
            path = Path(folder) / f"{channels}.onebit"
            layer = nn.Sequential(ProjectionConv2d(channels, channels, 3, padding=1, activation_bits=1)).eval()
            counted = by_count(export(layer, path, torch.zeros(1, channels, side, side)))
            shown = f"3x3, {channels} channels, {side} x {side}"
            speeds.append(_speed(shown, path, counted, effort, advance))
    with torch.device("meta"):
        in_float, one_bit = models.resnet18(method="float"), models.resnet18(activation_bits=1)
    float_bits = 32 * sum(parameter.numel() for parameter in in_float.parameters())
    slopes = sum(module.weight.numel() for module in one_bit.modules() if isinstance(module, nn.PReLU))
    return Memory(float_bits, slopes, summaries, speeds)


def by_count(net: Summary) -> float:
    """XNOR-Net's count: 64 multiply-adds of bits take the time of one in float, and so does each sum of bits.

    For a layer that is 64 n / (n + 64), n = its channels times its taps: 62.27 for 256 channels and 3x3.
    """
    in_bits, in_float = net.total("one_bit_macs"), net.total("float_macs")
    made = sum(math.prod(row.shape) for row in net.rows if row.one_bit_macs)
    return (in_bits + in_float) / (in_bits / 64 + made + in_float)


def _as_if_trained(net: nn.Module) -> nn.Module:
    """Norms and PReLUs with different numbers for every channel: a file stores equal ones once."""
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                for numbers in (module.weight, module.running_var):
                    numbers.uniform_(0.5, 1.5)  # type: ignore[union-attr]
                for numbers in (module.bias, module.running_mean):
                    numbers.normal_()  # type: ignore[union-attr]
            elif isinstance(module, nn.PReLU):
                module.weight.uniform_(0.1, 0.3)
    return net.eval()


def steps(effort: Effort) -> int:
    """How often `measured` advances."""
    return (1 + len(LAYERS)) * turns(PEERS, [1], effort)


def _speed(what: str, path: Path, counted: float, effort: Effort, advance: Callable[[], None]) -> Speed:
    engine = load(path)
    threads = torch.get_num_threads()
    table, _ = measure(Nets(engine, float_twin(engine.model)), PEERS, 1, effort, advance)
    torch.set_num_threads(threads)  # the timing was on one
    ours, twin = table.rows[0], next(row for row in table.rows if row.net == "twin")
    return Speed(what, counted, table.milliseconds(ours), table.milliseconds(twin), table.times_onebit(twin))


HEADS = ("net", "paper, Mbit", "ours, Mbit", "paper, saving", "ours, saving", "bytes on disk", "saving on disk")
SPEED_HEADS = ("W1A1", "paper", "by count", "measured", "onebit, ms", "PyTorch in float, ms")


def remarks(memory: Memory) -> list[str]:
    """What the columns mean."""
    pcnn = _paper_bits(memory.one_bit["PCNN"])
    with_slopes = pcnn + 32 * memory.slopes
    more = f"with them {with_slopes / 1e6:.2f} in place of {pcnn / 1e6:.2f} Mbit"
    return [
        "Mbit: as the paper counts, computed from the nets",
        f"the paper's Resnet18 has PReLUs, and its Mbit leave out their slopes ({memory.slopes:,}: {more})",
        "bytes on disk: of the .onebit files, slopes included, and of the float net's parameters",
        "the paper's 58 x is XNOR-Net's figure for one convolution on a CPU, without the time that memory takes",
        "by count: by XNOR-Net's formula, 64 multiply-adds of bits in the time of one (62.27 x with 256 channels)",
        "measured: the float net in PyTorch against onebit, one image, one core, in turns",
    ]


def sheets(memory: Memory) -> list[Sheet]:
    """Sizes and speeds, for people."""
    sizes = [
        (name, f"{MEMORY['pcnn_mbit']:.1f}", f"{_paper_bits(of) / 1e6:.1f}", f"{MEMORY['saving']:.2f} x",
         f"{memory.saving(of):.2f} x", f"{of.file_bytes:,}", f"{memory.saving_on_disk(of):.2f} x")
        for name, of in memory.one_bit.items()
    ]  # fmt: skip
    in_float = memory.float_bits
    sizes.append(("Resnet18", f"{MEMORY['float_mbit']}", f"{in_float / 1e6:.1f}", "", "", f"{in_float // 8:,}", ""))
    count = f"{MEMORY['speedup']:.0f} x"
    speeds = [
        (s.what, count, f"{s.by_count:.1f} x", f"{s.times:.1f} x", f"{s.onebit_ms:.3f}", f"{s.torch_ms:.2f}")
        for s in memory.speeds
    ]
    return [Sheet(HEADS, sizes), Sheet(SPEED_HEADS, speeds)]
