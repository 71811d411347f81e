"""`onebit eval`: top-1 and top-5 of a trained net."""

from __future__ import annotations

import argparse
import json

from onebit.errors import UserError

HELP = "evaluate a trained net: top-1 and top-5 on the test images"
EXAMPLES = """examples:
  onebit eval RUN                               the last checkpoint of a run, on the data that it was trained for
  onebit eval RUN --which best --json           the epoch that did best on held-out images, for a program to read
  onebit eval net.safetensors --data imagefolder --data-dir PHOTOS
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("net", metavar="RUN", help="the folder of a run, or a .safetensors of it")
    parser.add_argument("--which", choices=("last", "best"), default="last", help="of a run (default: last)")
    parser.add_argument("--data", metavar="NAME", help="digits, cifar10, cifar100, imagefolder or imagenet")
    parser.add_argument("--data-dir", metavar="DIR", help="the folder that holds it ($ONEBIT_DATA)")
    parser.add_argument("-b", "--batch-size", type=int, default=128, metavar="N", help="(default: 128)")
    parser.add_argument("-j", "--workers", type=int, default=2, metavar="N", help="processes that decode images")
    parser.add_argument("--on-bad-image", choices=("error", "skip"), default="error", help="(default: error)")
    parser.add_argument("--device", default="auto", help="auto: the GPU if there is one, else the CPU")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Evaluate, and print the result."""
    import numpy as np

    from onebit.data.catalog import load_data
    from onebit.training.evaluation import Feed, evaluate
    from onebit.training.nets import build_trained, read_weights
    from onebit.training.processes import Processes
    from onebit.training.recipes import checked

    if arguments.batch_size < 1:
        raise UserError(f"--batch-size {arguments.batch_size}: use at least 1")
    if arguments.workers < 0:
        raise UserError(f"--workers {arguments.workers}: use at least 0")
    weights = read_weights(arguments.net, arguments.which)
    spec = weights.spec
    name = checked({"data": arguments.data or spec.data}, {"data": ""}).data
    data = load_data(
        name,
        arguments.data_dir or trained_on(arguments.net, name == spec.data),
        image_size=spec.image_shape[1],
        workers=arguments.workers,
        on_bad_image=arguments.on_bad_image,
    )
    if data.num_classes != spec.num_classes:
        raise UserError(
            f"{arguments.net}: its net knows {spec.num_classes} classes, the data has {data.num_classes}"
        )
    if data.class_names != list(spec.class_names) and not all(map(str.isdigit, data.class_names)):
        raise UserError(f"{arguments.net}: its net knows {spec.class_names[0]}, ..., the data has other classes")
    if data.image_shape != spec.image_shape:
        raise UserError(
            f"{arguments.net}: its net is for images {spec.image_shape}, the data has {data.image_shape}"
        )
    with Processes(arguments.device) as processes:
        net = build_trained(weights).to(processes.device)
        feed = Feed(spec.mean, spec.deviation, processes.device)
        found = evaluate(net, data.test, np.arange(len(data.test.labels)), arguments.batch_size, feed, processes)
    result = {"net": spec.summary(), "data": name, "top1": found.top1, "top5": found.top5, "loss": found.loss}
    result |= {"images": found.images, "skipped_images": len(data.skipped)}
    if not processes.writes:
        return 0
    if arguments.json:
        print(json.dumps(result))  # noqa: T201
    else:
        scores = f"top-1 {found.top1:.2f} %, top-5 {found.top5:.2f} %"
        skipped = f", {len(data.skipped)} left out" if data.skipped else ""
        print(f"{spec.summary()} on {name}: {scores} of {found.images} test images{skipped}")  # noqa: T201
    return 0


def trained_on(net: str, same_data: bool) -> str | None:
    """Where a run had its data."""
    from pathlib import Path

    from onebit.training.runfolder import CONFIG, RunFolder

    folder = Path(net) if Path(net).is_dir() else Path(net).parent
    if not same_data or not (folder / CONFIG).is_file():
        return None
    found = RunFolder(folder).stored_config().get("data_dir")
    return str(found) if found else None
