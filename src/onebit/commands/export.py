"""`onebit export`: a trained net as a .onebit file."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from onebit.console import Progress
from onebit.errors import UserError
from onebit.paths import user_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onebit.summary import Summary
    from onebit.training.nets import NetSpec

HELP = "write a trained net as a .onebit file, which runs without PyTorch"
EXAMPLES = """examples:
  onebit export RUN                            the last checkpoint of a run, as RUN/net.onebit
  onebit export RUN --out small.onebit --float-bits 8   what is not 1-bit (stem, classifier) in 8 bits
  onebit export RUN --activation-bits 8        W1A8: inputs of 1-bit layers in 8 bits, scaled by training images
  onebit export RUN --int8-layers              stem, 1x1 convolutions and classifier in 8 bits, weights and inputs
  onebit inspect RUN/net.onebit                what is in it
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("net", metavar="RUN", help="the folder of a run, or a .safetensors of it")
    parser.add_argument("--which", choices=("last", "best"), default="last", help="of a run (default: last)")
    parser.add_argument("-o", "--out", metavar="FILE", help="the file to write (default: RUN/net.onebit)")
    parser.add_argument(
        "--float-bits",
        type=int,
        choices=(32, 16, 8),
        default=32,
        help="of weights that are not 1-bit (default: 32)",
    )
    parser.add_argument(
        "--activation-bits", type=int, choices=(8,), help="8: float inputs of 1-bit layers in 8 bits"
    )
    parser.add_argument(
        "--int8-layers", action="store_true", help="layers that are not 1-bit in 8 bits, weights and inputs"
    )
    parser.add_argument(
        "--calibrate",
        metavar="N",
        type=int,
        help="images that scale the 8-bit inputs; 0: scale them by the batch norms (default: 256)",
    )
    parser.add_argument("--data-dir", metavar="DIR", help="where the images are (default: where the run had them)")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Export, compare with PyTorch, and say what was written."""
    from onebit.commands.eval import is_packed
    from onebit.modelfile import read_model

    has_levels = arguments.activation_bits is not None or arguments.int8_layers
    if arguments.calibrate is not None and (not has_levels or arguments.calibrate < 0):
        raise UserError(
            f"--calibrate {arguments.calibrate}: a number of images, with --activation-bits 8 or --int8-layers"
        )
    if is_packed(arguments.net):
        read_model(arguments.net)  # or what is wrong with it
        raise UserError(f"{arguments.net}: is exported already; `onebit inspect` shows what is in it")

    import torch

    from onebit.training.exports import export_trained
    from onebit.training.nets import build_trained, read_weights

    weights = read_weights(arguments.net, arguments.which)
    spec, file = weights.spec, _target(arguments)
    net = build_trained(weights).eval()
    images = _calibration(arguments, spec) if has_levels and arguments.calibrate != 0 else None
    with Progress("calibrating", sum(map(len, images or [])), quiet=not images) as progress:
        summary = export_trained(
            spec,
            net,
            file,
            activation_bits=arguments.activation_bits,
            int8_layers=arguments.int8_layers,
            calibration=images and _shown(images, progress),
            float_bits=arguments.float_bits,
        )
    random = torch.rand(8, *spec.image_shape, generator=torch.Generator().manual_seed(0))
    mean, deviation = (torch.tensor(of).reshape(-1, 1, 1) for of in (spec.mean, spec.deviation))
    pixels = (random - mean) / deviation  # no others: levels of the input cover what pixels become
    agreement = _agreement(net, file, images[0] if images else pixels, "training" if images else "random")
    if arguments.json:
        print(json.dumps(summary.as_json() | {"file": str(file)} | agreement))  # noqa: T201
        return 0
    print("\n".join(_told(summary, file, agreement)))  # noqa: T201
    return 0


def _target(arguments: argparse.Namespace) -> Path:

    net = user_path(arguments.net)
    if arguments.out:
        return user_path(arguments.out)
    return net / "net.onebit" if net.is_dir() else net.with_suffix(".onebit")


def _calibration(arguments: argparse.Namespace, spec: NetSpec) -> list[Any]:
    """Training images, as the net takes them."""
    from onebit.commands.eval import trained_on
    from onebit.data.catalog import load_data
    from onebit.training.exports import CALIBRATION_IMAGES, calibration_images
    from onebit.training.recipes import checked

    folder = arguments.data_dir or trained_on(arguments.net, same_data=True)
    name = checked({"data": spec.data}, {"data": ""}).data
    data = load_data(name, folder, image_size=spec.image_shape[1], workers=0)
    return calibration_images(
        spec, data, CALIBRATION_IMAGES if arguments.calibrate is None else arguments.calibrate
    )


def _shown(images: list[Any], progress: Progress) -> Iterator[Any]:
    """The batches; the interpreter that calibrates with them takes its time."""
    for batch in images:
        yield batch
        progress.advance(len(batch))


def _agreement(net: Any, file: Path, images: Any, what: str) -> dict[str, Any]:
    """The file against PyTorch."""
    import numpy as np
    import torch

    from onebit.loading import load

    with torch.inference_mode():
        expected = net(images).numpy()
    found = load(file)(images.numpy())
    difference = float(np.abs(found - expected).max() / np.abs(expected).max())
    same = int((found.argmax(1) == expected.argmax(1)).sum())
    return {"difference": difference, "same_class": same, "of": len(images), "images": what}


def _told(summary: Summary, file: Path, agreement: dict[str, Any]) -> list[str]:
    same = f"{agreement['same_class']} of {agreement['of']} {agreement['images']} images in the same class"
    return [
        f"{file}: {summary.description}",
        *summary.totals(),
        f"against PyTorch: {same}, outputs differ by at most {agreement['difference']:.1e} of the largest",
    ]
