"""What a 1-bit net costs and gives, measured: a net in float and in bits, trained, stored, run side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from onebit.console import Progress
from onebit.data.splits import DataSet
from onebit.errors import UserError
from onebit.loading import load
from onebit.peers.runner import Runner, burst, fastest
from onebit.peers.torch_net import ways
from onebit.runnable import Floats, Runnable
from onebit.summary import Summary
from onebit.training.config import Config
from onebit.training.evaluation import Feed
from onebit.training.exports import export_trained
from onebit.training.nets import build_trained, read_weights
from onebit.training.recipes import checked, resolve
from onebit.training.runfolder import RunFolder
from onebit.training.session import changed_keys, data_of, train

EPOCHS = {"digits": 24, "cifar10": 3}
# Behind a batch norm the size of a kernel does not matter, only how fast its signs move: 1-bit nets like it fast.
KERNEL_RATE = {"digits": 1.0, "cifar10": 0.1}
ROUNDS, BURST_SECONDS, MOST_CALLS = 15, 0.02, 200  # of the timing
BATCH = 250
SAMPLES = 20  # images that are left for `onebit run`


class Contestant(NamedTuple):
    """One of the nets."""

    name: str
    folder: str
    keys: dict[str, Any]  # of its config


class Outcome(NamedTuple):
    """A row of the table. Times are of one image at a time on one core, medians, in milliseconds."""

    name: str
    run: str
    top1: float  # of the test images, by the engine, in percent
    test_images: int
    bytes: int
    times_smaller: float  # than the parameters of the same net in float
    torch_ms: float
    engine_ms: float
    times_faster: float  # the engine, than PyTorch with the float net
    same_class: int  # test images in which engine and PyTorch see the same


def contestants(data: str, projections: int) -> list[Contestant]:
    """The float twin first."""
    one_bit = {"projections": projections, "width": 16 // projections, "lr": KERNEL_RATE[data]}
    return [
        Contestant("float", "float", {"method": "float"}),
        Contestant("W1A32", "w1a32", one_bit),
        Contestant("W1A1", "w1a1", one_bit | {"activation_bits": 1}),
    ]


def config_of(contestant: Contestant, data: str, shared: dict[str, Any]) -> Config:
    """The config of a net's run: the recipe of its data, and what all nets share."""
    return resolve(
        f"{data}-pcnn22", "paper", {"sched": "cosine", "epochs": EPOCHS[data]} | shared | contestant.keys
    )


def check_folder(out: Path, chosen: Sequence[Contestant], configs: Sequence[Config]) -> None:
    """Refuse a folder in which another demo was made."""
    for contestant, config in zip(chosen, configs, strict=True):
        folder = RunFolder(out / contestant.folder)
        if folder.has_checkpoint() and changed_keys(checked(folder.stored_config()), config):
            raise UserError(f"{folder.path}: holds another run: use another --out, or remove it")


def train_all(out: Path, chosen: Sequence[Contestant], configs: Sequence[Config]) -> None:
    """Train what is not trained yet; a run that was interrupted goes on."""
    for contestant, config in zip(chosen, configs, strict=True):
        train(config, out / contestant.folder, resume=True, watcher=_Bar(contestant.name))


class _Bar:
    """A `Watcher`: a bar for the whole run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.bar: Progress | None = None
        self.steps = self.done = 0

    def stage(self, name: str, epoch: int, epochs: int, steps: int) -> None:  # noqa: ARG002
        """See `Watcher`."""
        self.steps, self.done = steps, epoch * steps
        self.bar = Progress(f"training: {self.name}", epochs * steps).__enter__()
        self.bar.advance(self.done)

    def step(self, epoch: int, step: int, loss: float, images_per_s: float) -> None:  # noqa: ARG002
        """See `Watcher`."""
        if self.bar is not None:
            self.bar.advance(epoch * self.steps + step - self.done)
            self.done = epoch * self.steps + step

    def record(self, record: dict[str, Any]) -> None:
        """See `Watcher`."""

    def close(self) -> None:
        """See `Watcher`."""
        if self.bar is not None:
            self.bar.__exit__(None, None, None)


class _Ready(NamedTuple):
    """A trained net in all its forms."""

    summary: Summary
    packed: Runnable
    trained: nn.Module


def measure(out: Path, chosen: Sequence[Contestant], configs: Sequence[Config]) -> list[Outcome]:
    """Export every net, and compare accuracy, bytes, time and classes on the test images."""
    data = data_of(configs[0])
    images, labels = _test_images(data)
    nets = [_ready(out / contestant.folder) for contestant in chosen]
    times = _times(nets, images[:1])
    rows = []
    for at, (contestant, net) in enumerate(zip(chosen, nets, strict=True)):
        found = np.concatenate([net.packed(part) for part in _parts(images)])
        with torch.inference_mode():
            expected = np.concatenate([net.trained(torch.from_numpy(part)).numpy() for part in _parts(images)])
        rows.append(
            Outcome(
                name=contestant.name,
                run=str(out / contestant.folder),
                top1=100 * float((found.argmax(1) == labels).mean()),
                test_images=len(labels),
                bytes=net.summary.file_bytes,
                times_smaller=net.summary.file_compression or 0.0,
                torch_ms=times[at].torch,
                engine_ms=times[at].engine,
                times_faster=times[0].torch / times[at].engine,
                same_class=int((found.argmax(1) == expected.argmax(1)).sum()),
            )
        )
    return rows


def _test_images(data: DataSet) -> tuple[Floats, NDArray[np.int64]]:
    """All of them, as every net takes them, and what they are."""
    feed = Feed(data.mean, data.deviation, torch.device("cpu"))
    batches = [feed(batch) for batch in data.test.batches(_parts(np.arange(len(data.test.labels))))]
    images, labels = (torch.cat(parts).numpy() for parts in zip(*batches, strict=True))
    return images, labels


def _ready(run: Path) -> _Ready:
    weights = read_weights(run)
    net = build_trained(weights).eval()
    summary = export_trained(weights.spec, net, run / "net.onebit")
    return _Ready(summary, load(run / "net.onebit"), net)


def _parts(rows: Any) -> list[Any]:
    return [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]


class _Times(NamedTuple):
    """Milliseconds of a call with one image: medians."""

    engine: float
    torch: float


def _times(nets: Sequence[_Ready], image: Floats) -> list[_Times]:
    """Of the engine and of PyTorch in its fastest way, for each net, in turns."""
    threads = torch.get_num_threads()
    runners = [Runner(net.packed) for net in nets]
    runners += [fastest(ways(net.packed.model, image), image)[1] for net in nets]
    inputs = [runner.enter(image) for runner in runners]
    calls: list[list[float]] = [[] for _ in runners]
    with Progress("timing", ROUNDS) as progress:
        for _ in range(ROUNDS):
            for runner, x, taken in zip(runners, inputs, calls, strict=True):
                taken.extend(burst(runner.run, x, BURST_SECONDS, MOST_CALLS))
            progress.advance()
    torch.set_num_threads(threads)  # the timing was on one
    medians = [1e3 * float(np.median(taken)) for taken in calls]
    return [_Times(*pair) for pair in zip(medians[: len(nets)], medians[len(nets) :], strict=True)]


def write_samples(out: Path, config: Config) -> Path:
    """Some test images as files, to be classified by `onebit run`; named for what they are."""
    from PIL import Image

    data, folder = data_of(config), out / "images"
    folder.mkdir(parents=True, exist_ok=True)
    (batch,) = data.test.batches([np.arange(min(SAMPLES, len(data.test.labels)))])
    for row, (pixels, label) in enumerate(zip(batch.images.numpy(), batch.labels.tolist(), strict=True)):
        image = pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels[0]
        Image.fromarray(image).save(folder / f"{row:02d}-is-{data.class_names[label]}.png")
    return folder
