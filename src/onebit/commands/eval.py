"""`onebit eval`: top-1 and top-5 of a trained net, or of a packed one."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from onebit.commands import add_threads, threads_of
from onebit.console import Progress, counted, tell
from onebit.errors import UserError
from onebit.jsonfields import json_text
from onebit.paths import user_path
from onebit.zoo import card_of, model_path

if TYPE_CHECKING:
    from torch import Tensor

    from onebit.data.splits import DataSet
    from onebit.training.evaluation import Accuracy
    from onebit.training.processes import Processes

MOST_NUMBERS = 1 << 28  # of a batch of images, if that is more than one

HELP = "evaluate a trained net, or a .onebit file: top-1 and top-5 on the test images"
EXAMPLES = """examples:
  onebit eval RUN                               the last checkpoint of a run, on the data that it was trained for
  onebit eval RUN --which best --json           the epoch that did best on held-out images, for a program to read
  onebit eval RUN/net.onebit                    what `onebit export` made of it, run from bits
  onebit eval net.onebit --data cifar10 --data-dir DATA
  onebit eval zoo:digits-w1a1                   a net that comes with the package, on the data of its card
  onebit eval net.safetensors --data imagefolder --data-dir PHOTOS
"""
DATA_NAMES = ("digits", "cifar10", "cifar100", "imagefolder", "imagenet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "net", metavar="RUN", help="the folder of a run, a .safetensors of it, a .onebit file, or zoo:NAME"
    )
    parser.add_argument("--which", choices=("last", "best"), default="last", help="of a run (default: last)")
    parser.add_argument(
        "--data", metavar="|".join(DATA_NAMES), help="which data (default: what the run was trained on)"
    )
    parser.add_argument("--data-dir", metavar="DIR", help="the folder that holds it ($ONEBIT_DATA)")
    parser.add_argument("-b", "--batch-size", type=int, default=128, metavar="N", help="(default: 128)")
    parser.add_argument("-j", "--workers", type=int, default=2, metavar="N", help="processes that decode images")
    parser.add_argument("--on-bad-image", choices=("error", "skip"), default="error", help="(default: error)")
    parser.add_argument("--device", default="auto", help="auto: the GPU if there is one, else the CPU")
    add_threads(parser, "threads that run a .onebit file")
    parser.add_argument("--json", action="store_true", help="print JSON")


class Subject(NamedTuple):
    """A net to evaluate: what it is, what it takes, and how it is called once there is a device."""

    described: str
    data: str
    image_shape: tuple[int, ...]
    num_classes: int
    class_names: Sequence[str] | None
    mean: Sequence[float]
    deviation: Sequence[float]
    share: float  # how large a part of a picture it takes
    predictor: Callable[[Any], Callable[[Tensor], Tensor]]


def run(arguments: argparse.Namespace) -> int:
    """Evaluate, and print the result."""
    if arguments.batch_size < 1:
        raise UserError(f"--batch-size {arguments.batch_size}: use at least 1")
    if arguments.workers < 0:
        raise UserError(f"--workers {arguments.workers}: use at least 0")
    packed = is_packed(arguments.net)
    subject = _packed(arguments) if packed else _trained(arguments)

    from onebit.data.catalog import load_data
    from onebit.training.processes import Processes
    from onebit.training.recipes import checked

    name = checked({"data": arguments.data or subject.data}, {"data": ""}).data
    data = load_data(
        name,
        arguments.data_dir or trained_on(arguments.net, name == subject.data),
        image_size=subject.image_shape[1],
        share=subject.share,
        workers=arguments.workers,
        on_bad_image=arguments.on_bad_image,
    )
    _check_fits(arguments.net, subject, data)
    with Processes("cpu" if packed else arguments.device) as processes:
        found = _measured(subject, data, arguments, processes)
    result = {"net": subject.described, "data": name, "top1": found.top1, "top5": found.top5, "loss": found.loss}
    result |= {"images": found.images, "skipped_images": len(data.skipped)}
    if not processes.writes:
        return 0
    if arguments.json:
        tell(json_text(result))
    else:
        scores = f"top-1 {found.top1:.2f} %, top-5 {found.top5:.2f} %"
        skipped = f", {len(data.skipped)} left out" if data.skipped else ""
        tell(f"{subject.described} on {name}: {scores} of {counted(found.images, 'test image')}{skipped}")
    return 0


def _trained(arguments: argparse.Namespace) -> Subject:
    """A run of `onebit train`, in PyTorch."""
    from onebit.training.exports import crop_of
    from onebit.training.nets import build_trained, read_weights

    weights = read_weights(arguments.net, arguments.which)
    if arguments.threads is not None:
        raise UserError(f"--threads {arguments.threads}: for a .onebit file; $OMP_NUM_THREADS are those of PyTorch")
    spec = weights.spec
    return Subject(
        spec.summary(), spec.data, spec.image_shape, spec.num_classes, spec.class_names, spec.mean, spec.deviation,
        crop_of(spec),
        lambda device: build_trained(weights).to(device).eval(),
    )  # fmt: skip


def _packed(arguments: argparse.Namespace) -> Subject:
    """A .onebit file, run by the native engine."""
    from onebit.loading import load

    engine = load(arguments.net, threads=threads_of(arguments))
    model = engine.model
    if arguments.which != "last" or arguments.device not in {"auto", "cpu"}:
        given = f"--which {arguments.which}" if arguments.which != "last" else f"--device {arguments.device}"
        raise UserError(f"{given}: not for a .onebit file, which holds one net for the CPU")
    outputs = model.values[model.graph.nodes[-1].name].shape
    if model.preprocessing is None or len(outputs) != 1:
        what = "does not say how its images are prepared" if len(outputs) == 1 else "is no classifier"
        raise UserError(f"{arguments.net}: {what}, so it can't be evaluated; files of `onebit export` can")
    data = arguments.data or stored_config(arguments.net).get("data")
    if not data:
        names = "|".join(DATA_NAMES)
        raise UserError(f"{arguments.net}: a .onebit file does not say which images it is for: use --data {names}")

    def logits(images: Tensor) -> Tensor:
        import torch

        made = torch.from_numpy(engine(images.numpy()))
        if model.graph.nodes[-1].op == "softmax":  # the logarithms of probabilities are logits, too
            return made.clamp_min(torch.finfo(made.dtype).tiny).log()
        return made

    described = model.description or Path(arguments.net).name
    shape = model.graph.input_shape
    return Subject(described, str(data), shape, outputs[0], model.classes, *model.preprocessing, lambda _: logits)


def _check_fits(path: str, subject: Subject, data: DataSet) -> None:
    if data.num_classes != subject.num_classes:
        known = counted(subject.num_classes, "class")
        raise UserError(f"{path}: its net knows {known}, the data has {data.num_classes}")
    if data.image_shape != subject.image_shape:
        raise UserError(f"{path}: its net is for images {subject.image_shape}, the data has {data.image_shape}")
    names = subject.class_names
    if names and data.class_names != list(names) and not all(map(str.isdigit, data.class_names)):
        raise UserError(f"{path}: its net knows {names[0]}, ..., the data has other classes")


def _measured(subject: Subject, data: DataSet, arguments: argparse.Namespace, processes: Processes) -> Accuracy:
    import numpy as np

    from onebit.training.evaluation import Feed, measure

    predict = subject.predictor(processes.device)
    feed = Feed(subject.mean, subject.deviation, processes.device)
    rows = np.arange(len(data.test.labels))
    mine = -(-len(rows) // processes.count)
    batch = max(1, min(arguments.batch_size, MOST_NUMBERS // math.prod(subject.image_shape)))
    with Progress("evaluating", mine, quiet=not processes.writes) as progress:
        return measure(predict, data.test, rows, batch, feed, processes, progress.advance)


def is_packed(path: str) -> bool:
    """Whether it is a .onebit file, by its name; or by what is in it, whatever its name."""
    from onebit.container import KEY

    file = model_path(path)
    if not os.path.exists(file):  # noqa: PTH110 Path's own raises for a name that is too long
        raise UserError(f"{path}: no such file or run folder")  # before a trained one is read, which needs torch
    if not os.path.isfile(file):  # noqa: PTH113
        return False
    if file.suffix == ".onebit":
        return True
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as opened:
            return KEY in (opened.metadata() or {})
    except (OSError, SafetensorError):
        return False


def stored_config(net: str) -> dict[str, Any]:
    """The keys of the run whose folder this is, or in whose folder the file is; none if there is no run.

    Of a net of the zoo, the data that its card names.
    """
    if (card := card_of(net)) is not None:
        return {"data": card.data_key}
    from onebit.training.runfolder import RunFolder

    path = user_path(net)
    run = RunFolder(path if path.is_dir() else path.parent)
    return run.stored_config() if run.has_run() else {}


def trained_on(net: str, same_data: bool) -> str | None:
    """Where a run had its data."""
    found = stored_config(net).get("data_dir") if same_data else None
    return str(found) if found else None
