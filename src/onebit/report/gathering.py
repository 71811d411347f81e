"""What a page shows of a run: read from its folder, and seen by its net in the test images."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from onebit.console import Progress
from onebit.convolution import QuantizedConv2d
from onebit.data.splits import Batch, DataSet
from onebit.errors import UserError
from onebit.graph import Array
from onebit.summary import Summary
from onebit.training.config import Config
from onebit.training.evaluation import Feed
from onebit.training.exports import export_trained
from onebit.training.kernels import BINS, histograms, sign_bits
from onebit.training.nets import NetSpec, build_trained, read_weights
from onebit.training.recipes import checked
from onebit.training.runfolder import METRICS, RunFolder
from onebit.training.session import data_of

BATCH = 250
SAMPLES = 8  # test images that are shown, right ones and wrong ones
MAPS = 8  # channels of a feature map that are shown


class Pictured(NamedTuple):
    """A layer at work on one image: maps (height, width) of its first channels."""

    layer: str
    before: list[Array]  # its input
    signs: list[Array]  # of its input, if the layer takes 1 bit of it
    learned: list[Array]  # its output with the kernels that were learned
    one_bit: list[Array]  # and with those that it uses


class Kernels(NamedTuple):
    """A layer's kernels: as learned, (kernels, planes, k, k), and as used."""

    layer: str
    learned: Array
    used: Array


class Seen(NamedTuple):
    """What the net made of test images (rows of the data set)."""

    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    guessed: NDArray[np.int64]


@dataclass
class Gathered:
    """A run, as far as it could be gathered; `notes` say what is missing and why."""

    name: str
    config: Config
    spec: NetSpec
    summary: dict[str, Any] | None
    epochs: list[dict[str, Any]]
    kernel_records: list[dict[str, Any]]
    last_kernels: dict[str, dict[str, Any]]
    kernels: list[Kernels]
    packed: Summary | None = None
    seen: Seen | None = None
    pixels: dict[int, NDArray[np.uint8]] = field(default_factory=dict)  # of the test images that are shown
    pictured: list[Pictured] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def runs_in(folder: Path) -> list[Path]:
    """The folder, if a run is in it; else the folders in it that hold one, as those of a comparison."""
    if RunFolder(folder).has_run() or not folder.is_dir():
        return [folder]
    return sorted(each for each in folder.iterdir() if RunFolder(each).has_weights()) or [folder]


def check_runs(folders: Iterable[Path]) -> None:
    """Refuse folders that hold no run, or one that has saved nothing yet."""
    for folder in folders:
        run = RunFolder(folder)
        if not run.has_run():
            raise UserError(f"{folder}: no run of `onebit train` is there")
        if not run.has_weights():
            raise UserError(f"{folder}: its run has no checkpoint yet; wait for its first epoch")


def gather(folder: Path, *, data_dir: str | None = None, most_images: int = 10_000) -> Gathered:
    """Everything about the run in a folder; its net looks at up to `most_images` test images."""
    check_runs([folder])
    run = RunFolder(folder)
    config = checked(run.stored_config())
    weights = read_weights(folder)
    net = build_trained(weights).eval()
    records = _records(folder / METRICS)
    found = Gathered(
        name=folder.name or str(folder.resolve().name),
        config=config,
        spec=weights.spec,
        summary=_summary(run),
        epochs=[record for record in records if record["kind"] == "epoch"],
        kernel_records=[record for record in records if record["kind"] == "kernels"],
        last_kernels=histograms(sign_bits(net), net),
        kernels=_kernels(net),
    )
    if found.summary is None:
        found.notes.append("The run is not finished: this is its last checkpoint.")
    if config.model_ema_decay:
        found.notes.append("The epochs' histograms are of the net that learns, all else is of its running mean.")
    _pack(found, net)
    if most_images == 0:
        found.notes.append("No test images were looked at (--images 0).")
    else:
        where = config.model_copy(update={"data_dir": data_dir or config.data_dir})
        try:
            _look(found, net, data_of(where, may_fetch=False), most_images)
        except UserError as error:
            found.notes.append(f"Nothing is shown of test images: {error}")
    return found


def _summary(run: RunFolder) -> dict[str, Any] | None:
    """The numbers of its result, if it has one."""
    summary = run.summary()
    return {k: v for k, v in summary.items() if _is_number(v)} if isinstance(summary, dict) else None


def _records(path: Path) -> list[dict[str, Any]]:
    """The records of a run; a line that is being written, or was cut off, is left out.

    Each gets a key `at`: its epoch, counted on from those of the stages before. The file may be anybody's: what is
    not a number that can be drawn is left out, and so is a record of kernels that is not one of ours.
    """
    found = []
    before, last = 0, (1, 0)  # epochs of earlier stages; stage and epoch of the record before
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(record, dict) or not all(_is_count(record.get(key)) for key in ("stage", "epoch")):
            continue
        before += last[1] if record["stage"] > last[0] else 0
        last = (record["stage"], record["epoch"])
        drawn = {key: value for key, value in record.items() if _is_number(value)}
        if record.get("kind") == "kernels":
            drawn["layers"] = _known_layers(record.get("layers"))
        found.append(drawn | {"kind": record.get("kind"), "at": before + record["epoch"]})
    return found


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30


def _known_layers(layers: Any) -> dict[str, Any]:
    """The layers of a record of kernels (see `histograms`) that are whole."""
    if not isinstance(layers, dict):
        return {}
    return {
        name: layer
        for name, layer in layers.items()
        if isinstance(layer, dict)
        and _is_number(layer.get("flipped"))
        and isinstance(layer.get("counts"), list)
        and len(layer["counts"]) == BINS
        and all(map(_is_count, layer["counts"]))
    }


def _one_bit_layers(net: nn.Module) -> dict[str, QuantizedConv2d]:
    return {name: layer for name, layer in net.named_modules() if isinstance(layer, QuantizedConv2d)}


@torch.no_grad()
def _kernels(net: nn.Module) -> list[Kernels]:
    found = []
    for name, layer in _one_bit_layers(net).items():
        learned = layer.learned_kernels()
        if learned is not None:
            used = layer.quantized_weight()[:: layer.num_projections]
            used = used.sign() if layer.weight_bits == 1 else used  # of any scale, bits are black and white
            found.append(Kernels(name, learned.numpy(), used.numpy()))
    return found


def _pack(found: Gathered, net: nn.Module) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            found.packed = export_trained(found.spec, net, Path(folder) / "net.onebit")
        except UserError as error:
            found.notes.append(f"The net has no file of bits: {error}")


@torch.inference_mode()
def _look(found: Gathered, net: nn.Module, data: DataSet, most: int) -> None:
    if data.num_classes != found.spec.num_classes or data.image_shape != found.spec.image_shape:
        raise UserError("the data has other classes or images than the net")
    count = len(data.test.labels)
    rows = np.sort(np.random.default_rng(0).permutation(count)[:most])  # folders are listed by class
    if len(rows) < count:
        found.notes.append(f"{len(rows)} of {count} test images were looked at (--images).")
    feed = Feed(found.spec.mean, found.spec.deviation, torch.device("cpu"))
    parts = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
    labels, guessed = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    with Progress(f"{found.name}: test images", len(rows)) as progress:
        for batch in data.test.batches(parts):
            images, truth = feed(batch)
            guessed.append(net(images).argmax(dim=1).numpy())
            labels.append(truth.numpy())
            progress.advance(len(truth))
    if data.skipped:  # rows and images no longer go together
        found.notes.append(f"{len(data.skipped)} test images can't be read; no single ones are shown.")
        found.seen = Seen(np.empty(0, np.int64), np.concatenate(labels), np.concatenate(guessed))
        return
    found.seen = Seen(rows, np.concatenate(labels), np.concatenate(guessed))
    wrong = found.seen.guessed != found.seen.labels
    shown = np.concatenate([_spread(rows[~wrong]), _spread(rows[wrong])])
    if not len(shown):
        return
    ((pixels, truth),) = data.test.batches([shown])
    found.pixels = dict(zip(shown.tolist(), pixels.numpy(), strict=True))
    found.pictured = _pictured(net, feed(Batch(pixels[:1], truth[:1]))[0])


def _spread(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Some of them, from all parts."""
    return rows[np.linspace(0, len(rows) - 1, min(SAMPLES, len(rows))).astype(int)] if len(rows) else rows


def _pictured(net: nn.Module, image: torch.Tensor) -> list[Pictured]:
    """The first, a middle and the last 1-bit layer, at work on an image."""
    layers = {name: layer for name, layer in _one_bit_layers(net).items() if layer.KERNEL is not None}
    names = list(layers)
    chosen = sorted({0, len(names) // 2, len(names) - 1}) if names else []
    inputs: dict[str, torch.Tensor] = {}
    hooks = [
        layers[names[at]].register_forward_hook(
            lambda _, given, __, name=names[at]: inputs.update({name: given[0]})
        )
        for at in chosen
    ]
    net(image)
    for hook in hooks:
        hook.remove()
    return [_at_work(name, layers[name], x) for name, x in inputs.items()]


def _at_work(name: str, layer: QuantizedConv2d, x: torch.Tensor) -> Pictured:
    taken = layer.quantized_input(x)
    J = layer.num_projections
    used = layer.convolve(taken, layer.quantized_weight())[:, ::J]
    kernels = layer.learned_kernels()
    learned = used if kernels is None else layer.convolve(taken, kernels.repeat_interleave(J, dim=0))[:, ::J]
    signs = [] if layer.input_bits == 32 else list(taken[0, :MAPS].numpy())
    return Pictured(
        name, list(x[0, :MAPS].numpy()), signs, list(learned[0, :MAPS].numpy()), list(used[0, :MAPS].numpy())
    )
