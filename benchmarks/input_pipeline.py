"""What the data costs in training, and whether memory grows. Ratios of things timed in turns, in one run.

    python benchmarks/input_pipeline.py               # all three parts, some minutes
    python benchmarks/input_pipeline.py --part cifar --rounds 15

cifar     a step of WRN-22, i = 16, batch 128: with crop, flip and normalisation of 50,000 images in memory, against
          the same step with one fixed batch
folder    images a second from JPEGs of 500 x 375 pixels, to 224 x 224, with 2 workers: all of the loader, against
          2 processes that decode the same files and do nothing else
memory    resident memory after each epoch of a run, of this process and its workers
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from onebit.data.catalog import load_data
from onebit.data.decoding import Item, decode
from onebit.data.keyed import Stream, shuffled
from onebit.data.splits import ArraySplit, Batch, DataSet, Pass
from onebit.imagefiles import Crop
from onebit.training.evaluation import Feed
from onebit.training.learner import Learner
from onebit.training.loop import Loop
from onebit.training.nets import spec_of
from onebit.training.processes import Processes
from onebit.training.recipes import checked
from onebit.training.runfolder import RunFolder
from onebit.training.schedule import stages
from onebit.training.watching import Watchers

BATCH = 128


def cifar(rounds: int) -> None:
    """The share of the input pipeline in a step."""
    pixels = np.random.default_rng(0).integers(0, 256, (50_000, 3, 32, 32), dtype=np.uint8)
    split = ArraySplit(pixels, np.arange(50_000) % 10, pad=4, padding="reflect", flip=True)
    data = DataSet(split, split, [str(n) for n in range(10)], (3, 32, 32), (0.5,) * 3, (0.25,) * 3)
    config = checked({"width": 16, "channels_last": True})  # as the recipes have it
    with Processes("cpu") as processes:
        learner = Learner(spec_of(config, data).build(), config, stages(config)[0], processes, None)
        feed = Feed(data.mean, data.deviation, processes.device)

        def batches() -> Iterator[Batch]:
            for epoch in itertools.count():
                order = shuffled(Stream.ORDER, 0, epoch, np.arange(50_000))[: 50_000 // BATCH * BATCH]
                yield from split.batches(list(order.reshape(-1, BATCH)), Pass(0, epoch))

        flow = batches()
        fixed = feed(next(flow))
        times: dict[str, list[float]] = {"fixed batch": [], "pipeline": []}
        for step in range(2 + 2 * rounds):
            begun = time.perf_counter()
            kind = "fixed batch" if step % 2 else "pipeline"
            images, labels = fixed if kind == "fixed batch" else feed(next(flow))
            learner.update(images, labels, 0.01, 0, step)
            if step > 1:  # the first steps allocate
                times[kind].append(time.perf_counter() - begun)
    ratios = [p / f for p, f in zip(times["pipeline"], times["fixed batch"], strict=True)]
    for kind, taken in times.items():
        print(f"  {kind:<24} {1e3 * statistics.median(taken):8.1f} ms")
    print(f"  ratio x {statistics.median(ratios):.3f} (asked: at most 1.05)")


def make_images(root: Path, count: int) -> list[str]:
    """Photograph-like files: smooth shapes and noise, which a JPEG decoder takes about as long for."""
    rng = np.random.default_rng(0)
    for part, number in (("train", count), ("val", 64)):
        for index in range(number):
            folder = root / part / f"n{index % 2:08d}"
            folder.mkdir(parents=True, exist_ok=True)
            small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
            smooth = np.asarray(small.resize((500, 375), Image.Resampling.BICUBIC)).astype(np.int16)
            noisy = (smooth + rng.normal(0, 12, smooth.shape)).clip(0, 255).astype(np.uint8)
            Image.fromarray(noisy).save(folder / f"{index}.JPEG", quality=90)
    return sorted(str(path) for path in (root / "train").rglob("*.JPEG"))


def decode_all(paths: list[str]) -> int:
    """A worker of the bare decoder."""
    return sum(int(decode(Item(path, 224, Crop()))[0, 0, 0]) >= 0 for path in paths)


def folder(rounds: int) -> None:
    """The loader against its decoder."""
    with tempfile.TemporaryDirectory() as place:
        paths = make_images(Path(place), 768)
        data = load_data("imagefolder", place, image_size=224, workers=2)
        rows = list(shuffled(Stream.ORDER, 0, 0, np.arange(len(paths))).reshape(-1, 64))
        halves = [paths[0::2], paths[1::2]]
        speeds: dict[str, list[float]] = {"decoder alone": [], "loader": []}
        with multiprocessing.get_context("fork").Pool(2) as pool:
            for number in range(rounds + 1):
                begun = time.perf_counter()
                pool.map(decode_all, halves, chunksize=1)
                bare = len(paths) / (time.perf_counter() - begun)
                begun = time.perf_counter()
                seen = sum(len(batch.labels) for batch in data.train.batches(rows, Pass(0, number)))
                loaded = seen / (time.perf_counter() - begun)
                if number:  # the first round starts the workers
                    speeds["decoder alone"].append(bare)
                    speeds["loader"].append(loaded)
    for kind, found in speeds.items():
        print(f"  {kind:<24} {statistics.median(found):8.0f} images/s")
    ratios = [b / a for a, b in zip(*speeds.values(), strict=True)]
    print(f"  the loader reaches {100 * statistics.median(ratios):.0f} % of its decoder's speed")


def resident() -> float:
    """MB of this process and its children."""
    pages = 0
    own = os.getpid()
    children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
    for process in (str(own), *children):
        pages += int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


class Scale:
    """A watcher that weighs the process after each epoch."""

    def __init__(self) -> None:
        self.weights: list[float] = []

    def stage(self, name: str, epoch: int, epochs: int, steps: int) -> None:
        """See `Watcher`."""

    def step(self, epoch: int, step: int, loss: float, images_per_s: float) -> None:
        """See `Watcher`."""

    def record(self, record: dict[str, Any]) -> None:
        """See `Watcher`."""
        if record["kind"] == "epoch":
            self.weights.append(resident())

    def close(self) -> None:
        """See `Watcher`."""


def memory(rounds: int) -> None:  # noqa: ARG001
    """Whether it grows."""
    with tempfile.TemporaryDirectory() as place:
        make_images(Path(place), 512)
        runs = {
            "in memory (digits)": {"data": "digits", "width": 8},
            "folder, 2 workers": {
                "data": "imagefolder", "data_dir": place, "image_size": 64, "width": 8, "batch_size": 32,
                "limit_images": 256,
            },
        }  # fmt: skip
        for name, keys in runs.items():
            config = checked(keys | {"epochs": 5})
            scale = Scale()
            with Processes("cpu") as processes:
                data = load_data(config.data, config.data_dir, image_size=config.image_size, workers=config.workers)
                run = RunFolder(Path(place) / name)
                run.open()
                Loop(config, run, data, processes).run(Watchers(scale))
                run.close()
            shown = " ".join(f"{weight:.0f}" for weight in scale.weights)
            growth = scale.weights[2] / scale.weights[1]
            print(f"  {name:<24} {shown} MB after each epoch; the third x {growth:.3f} of the second")


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"cifar": cifar, "folder": folder, "memory": memory}
    parser.add_argument("--part", choices=tuple(parts))
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}")
    for name, part in parts.items():
        if arguments.part in {None, name}:
            print(name)
            part(arguments.rounds)


if __name__ == "__main__":
    main()
