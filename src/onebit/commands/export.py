"""`onebit export`: a trained net as a .onebit file; a trained net or a .onebit file for other programs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, NamedTuple

from onebit.advice import program
from onebit.console import Progress, counted, say, tell
from onebit.errors import UserError
from onebit.jsonfields import json_text
from onebit.paths import user_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from onebit.exchange.converting import Kind
    from onebit.modelfile import Model
    from onebit.summary import Summary
    from onebit.training.nets import NetSpec

HELP = (
    "write a trained net as a .onebit file, which runs without PyTorch; or for other programs: ONNX, QONNX, NumPy"
)
EXAMPLES = """examples:
  onebit export RUN                            the last checkpoint of a run, as RUN/net.onebit
  onebit export RUN --out small.onebit --float-bits 8   what is not 1-bit (stem, classifier) in 8 bits
  onebit export RUN --activation-bits 8        W1A8: inputs of 1-bit layers in 8 bits, scaled by training images
  onebit export RUN --int8-layers              other layers in 8 bits, too: W1A1 nets may answer otherwise
  onebit inspect RUN/net.onebit                what is in it

  onebit export RUN --to onnx                  for ONNX Runtime, viewers, ...: as large as float, see the next
  onebit export net.onebit --to onnx --packed  the same, small: operators unpack the bits; needs no PyTorch
  onebit export net.onebit --to qonnx          for flows to FPGAs: says what is 1-bit, and what has few bits
  onebit export net.onebit --to npz            arrays for NumPy: bits, packed and written out, scales, thresholds
"""
KINDS = ("onebit", "onnx", "qonnx", "npz")
# Options that say how a net in PyTorch is packed; a .onebit file is packed already.
OF_RUNS = ("which", "float_bits", "activation_bits", "int8_layers", "calibrate", "data_dir")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "net",
        metavar="RUN",
        help="the folder of a run, or a .safetensors of it; with --to a .onebit file, or zoo:NAME",
    )
    parser.add_argument(
        "--to", choices=KINDS, help="what to write (default: what --out ends in, .onnx or .npz, else onebit)"
    )
    parser.add_argument("--packed", action="store_true", help="onnx: bits stay packed, and operators unpack them")
    parser.add_argument("--which", choices=("last", "best"), help="of a run (default: last)")
    parser.add_argument(
        "-o", "--out", metavar="FILE", help="the file to write (default: RUN/net.onebit, .onnx, ...)"
    )
    parser.add_argument(
        "--float-bits", type=int, choices=(32, 16, 8), help="of weights that are not 1-bit (default: 32)"
    )
    parser.add_argument(
        "--activation-bits",
        type=int,
        choices=(8,),
        help="8: float inputs of 1-bit layers in 8 bits (W1A8), so that they run fast; no training is needed",
    )
    parser.add_argument(
        "--int8-layers",
        action="store_true",
        default=None,
        help="layers that are not 1-bit (stem, 1x1 convolutions, classifier) in 8 bits, weights and inputs: a "
        "smaller file, and faster by what these layers take. In W1A32 and W1A8 nets nearly all answers stay; in a "
        "W1A1 net a rounded stem turns signs behind it, and many may change: compare `onebit eval` of both files",
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
    """Export, compare with PyTorch or with the program that it is for, and say what was written."""
    from onebit.commands.eval import is_packed

    told = _of_file(arguments) if is_packed(arguments.net) else _of_run(arguments)
    for line in told.remarks:
        say(line)
    tell(*([json_text(told.numbers)] if arguments.json else told.lines))
    return 0


class Told(NamedTuple):
    """What to say of a file that was written."""

    lines: list[str]
    numbers: dict[str, Any]
    remarks: Sequence[str] = ()


def _of_file(arguments: argparse.Namespace) -> Told:
    """A .onebit file, for another program."""
    from onebit.modelfile import read_model
    from onebit.zoo import model_path

    model = read_model(arguments.net)  # or what is wrong with it
    kind = _kind(arguments)
    if kind is None:
        raise UserError(
            f"{arguments.net}: is exported already; `{program()} inspect` shows what is in it, "
            "--to onnx, qonnx or npz writes it for other programs"
        )
    for name in OF_RUNS:
        if getattr(arguments, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"{flag}: is for the folder of a run; {arguments.net} is packed already")
    return _converted(arguments, model, kind, _target(arguments, kind, model_path(arguments.net)))


def _of_run(arguments: argparse.Namespace) -> Told:
    """A trained net, as a .onebit file or for another program."""
    has_levels = arguments.activation_bits is not None or arguments.int8_layers
    if arguments.calibrate is not None and (not has_levels or arguments.calibrate < 0):
        raise UserError(
            f"--calibrate {arguments.calibrate}: a number of images, with --activation-bits 8 or --int8-layers"
        )
    kind = _kind(arguments)
    if kind is None:
        file = user_path(arguments.out) if arguments.out else _beside(arguments.net, ".onebit")
        summary, agreement = _export(arguments, file)
        lines = [f"{file}: {summary.description}", *summary.totals(), _against_torch(agreement)]
        return Told(lines, summary.as_json() | {"file": str(file)} | agreement)

    from tempfile import TemporaryDirectory

    from onebit.modelfile import read_model

    file = _target(arguments, kind, None)
    if kind != "npz":
        import onebit.exchange.onnx_net  # noqa: F401 what it needs is told before the work, not after it
    with TemporaryDirectory(prefix="onebit-") as folder:
        packed = user_path(folder) / "net.onebit"
        _, agreement = _export(arguments, packed)
        model = read_model(packed)
    lines, numbers, remarks = _converted(arguments, model, kind, file)
    return Told([*lines, _against_torch(agreement)], numbers | {"pytorch": agreement}, remarks)


def _converted(arguments: argparse.Namespace, model: Model, kind: Kind, file: Path) -> Told:
    """A packed net, for another program."""
    from onebit.peers.exchanged import write_and_compare

    written = write_and_compare(model, file, kind, packed=arguments.packed)
    return Told(written.lines(), written.as_json(), written.remarks())


def _kind(arguments: argparse.Namespace) -> Kind | None:
    """What to write for another program; None: a .onebit file."""
    from onebit.exchange.converting import kind_of

    kind: Kind | None = arguments.to or kind_of(arguments.out or "")
    if arguments.packed and kind != "onnx":
        raise UserError("--packed: is for --to onnx")
    return None if arguments.to == "onebit" else kind


def _target(arguments: argparse.Namespace, kind: Kind, source: Path | None) -> Path:
    """The file to write for another program: as --out says, or beside the net."""
    from onebit.exchange.converting import PACKED, USUAL, target

    return target(
        arguments.out or _beside(arguments.net, PACKED if arguments.packed else USUAL[kind]), kind, source
    )


def _beside(net: str, ending: str) -> Path:
    """In the folder of a run, or beside a file; a net of the zoo goes into this folder."""
    from onebit.zoo import PREFIX

    if net.startswith(PREFIX):
        return user_path(net.removeprefix(PREFIX) + ending)
    path = user_path(net)
    if path.is_dir():
        return path / f"net{ending}"
    known = path.suffix in {".onebit", ".safetensors"}
    return path.with_name((path.stem if known else path.name) + ending)


def _export(arguments: argparse.Namespace, file: Path) -> tuple[Summary, dict[str, Any]]:
    """Write the .onebit file of a run; what is in it, and how it agrees with PyTorch."""
    import torch

    from onebit.training.exports import export_trained
    from onebit.training.nets import build_trained, read_weights

    weights = read_weights(arguments.net, arguments.which or "last")
    spec = weights.spec
    net = build_trained(weights).eval()
    has_levels = arguments.activation_bits is not None or arguments.int8_layers
    images = _calibration(arguments, spec) if has_levels and arguments.calibrate != 0 else None
    with Progress("calibrating", sum(map(len, images or [])), quiet=not images) as progress:
        summary = export_trained(
            spec,
            net,
            file,
            activation_bits=arguments.activation_bits,
            int8_layers=bool(arguments.int8_layers),
            calibration=images and _shown(images, progress),
            float_bits=arguments.float_bits or 32,
        )
    random = torch.rand(8, *spec.image_shape, generator=torch.Generator().manual_seed(0))
    mean, deviation = (torch.tensor(of).reshape(-1, 1, 1) for of in (spec.mean, spec.deviation))
    pixels = (random - mean) / deviation  # no others: levels of the input cover what pixels become
    agreement = _agreement(net, file, images[0] if images else pixels, "training" if images else "random")
    return summary, agreement


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


def _against_torch(agreement: dict[str, Any]) -> str:
    images = counted(agreement["of"], f"{agreement['images']} image")
    same = f"{agreement['same_class']} of {images} in the same class"
    return f"against PyTorch: {same}, outputs differ by at most {agreement['difference']:.1e} of the largest"
