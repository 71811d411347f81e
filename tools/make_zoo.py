"""A trained run as a net of the zoo: exports it, measures the file on all test images, writes file and card.

python tools/make_zoo.py RUN NAME --description 'PCNN-22, i = 16' --data-name 'CIFAR-10 (JPEG)' --data-dir DATA
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onebit import zoo
from onebit.advice import program
from onebit.commands import main as onebit_command
from onebit.console import complain, say
from onebit.errors import UserError, WorkError
from onebit.graph import INPUT
from onebit.loading import load
from onebit.modelfile import read_model
from onebit.paths import user_path, write_whole
from onebit.reference import Reference, per_channel
from onebit.summary import summarize
from onebit.training.config import Config
from onebit.training.recipes import checked, command_of, without_places
from onebit.training.runfolder import ENVIRONMENT, RunFolder
from onebit.zoo.cards import FORMS, Card, Check, check_images, parse_card

IMAGES, SEEDS = 2, 24  # of a check, and those that it is chosen from


def main(words: Sequence[str] | None = None) -> int:
    """Make a net of the zoo, and show its card; 2 for the user's mistakes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", metavar="RUN", help="the folder of a finished run")
    parser.add_argument("name", metavar="NAME", help="of the net in the zoo: small letters, digits, - and .")
    parser.add_argument("--description", required=True, help="the net in a few words, without its bits")
    parser.add_argument("--data-name", required=True, help="the data in words, such as 'CIFAR-10 (JPEG)'")
    parser.add_argument("--data-dir", metavar="DIR", help="the folder that holds it ($ONEBIT_DATA)")
    parser.add_argument("--activation-bits", type=int, choices=(8,), help="as of onebit export")
    parser.add_argument("--float-bits", type=int, choices=(32, 16, 8), default=32, help="as of onebit export")
    arguments = parser.parse_args(words)
    try:
        put(*made(arguments))
    except (UserError, WorkError) as error:
        complain("make_zoo", str(error))
        return 2
    return onebit_command(["zoo", arguments.name])


def made(arguments: argparse.Namespace) -> tuple[Card, bytes]:
    """The card, and the bytes of the file."""
    if not re.fullmatch(FORMS["name"], arguments.name):
        raise UserError(f"{arguments.name}: use small letters, digits, - and . for the name of a net")
    run = RunFolder(user_path(arguments.run))
    config = checked(run.stored_config())
    if run.summary() is None:
        raise UserError(f"{run.path}: is not finished; {program()} train --resume {run.path}")
    commit = json.loads((run.path / ENVIRONMENT).read_text()).get("commit")
    if commit is None or commit.endswith("-dirty"):
        raise UserError(f"{run.path}: was trained by code of no commit ({commit}), so nobody can do it again")
    data_dir = ["--data-dir", arguments.data_dir] if arguments.data_dir else []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{arguments.name}.onebit"
        options = ["--activation-bits", str(arguments.activation_bits)] if arguments.activation_bits else []
        options += ["--float-bits", str(arguments.float_bits)] if arguments.float_bits != 32 else []
        _onebit("export", str(run.path), "--out", str(file), *options, *data_dir)
        found = _onebit("eval", str(file), "--data", config.data, *data_dir)
        content, check = file.read_bytes(), check_of(file)
        card = Card(
            name=arguments.name,
            description=arguments.description,
            data=arguments.data_name,
            data_key=config.data,
            budget=budget_of(config),
            bits=bits_of(file),
            top1=round(found["top1"], 4),
            test_images=found["images"],
            bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            command=command_of(without_places(config)),
            export=" ".join(["onebit export RUN", *options]),
            commit=commit,
            check=check,
        )
    return card, content


def put(card: Card, content: bytes) -> None:
    """Write both files, or none: first the net, which nobody sees without its card."""
    text = card.as_json().encode()
    parse_card(text, card.name)  # or what is wrong with it
    net, beside = (zoo.FOLDER / f"{card.name}.{kind}" for kind in ("onebit", "json"))
    others = [file for kind in ("*.onebit", "*.json") for file in zoo.FOLDER.glob(kind) if file.stem != card.name]
    total = sum(file.stat().st_size for file in others) + len(content) + len(text)
    if total > zoo.MAX_BYTES:
        raise UserError(f"{card.name}: the zoo would have {total:,} bytes, and may have {zoo.MAX_BYTES:,}")
    before = net.read_bytes() if net.is_file() else None
    write_whole(net, content)
    try:
        write_whole(beside, text)
    except BaseException:
        if before is None:
            net.unlink()
        else:
            write_whole(net, before)
        raise


def budget_of(config: Config) -> str:
    """How long and how it was trained, in words."""
    second = f" + {config.stage2_epochs or config.epochs}" if config.two_stage else ""
    epochs = f"{config.epochs}{second} epoch{'s' if second or config.epochs > 1 else ''}"
    words = [epochs, config.sched]
    words += [{"bfloat16": "bf16", "float16": "fp16"}[config.amp]] if config.amp else []
    words += [f"{config.limit_images:,} images"] if config.limit_images else []
    words += ["distilled"] if config.teacher else []
    return ", ".join([*words, "one seed"])


def bits_of(file: Path) -> str:
    """Of the weights and inputs of most 1-bit multiply-adds; of a net without them: W32A32."""
    rows = [row for row in summarize(read_model(file)).rows if row.one_bit_macs]
    return max(rows, key=lambda row: row.one_bit_macs).precision if rows else "W32A32"


def check_of(file: Path) -> Check:
    """Random images, and what the native engine makes of them.

    A value that rounding moves across the threshold of a sign turns a bit, and with it the outputs. Of some seeds
    that one is taken whose values stay farthest away, so that other kernels and machines agree.
    """
    model, reference = load(file).model, load(file, engine="reference")

    def images(seed: int) -> Any:
        return check_images(seed, IMAGES, model.graph.input_shape)

    seed = max(range(SEEDS), key=lambda seed: margin(reference, images(seed))) if _has_signs(reference) else 0
    logits = load(file)(images(seed))
    return Check(seed, IMAGES, tuple(tuple(float(str(value)) for value in row) for row in logits))


def margin(net: Reference, images: Any) -> float:
    """How near any float comes to the threshold that makes a bit of it."""
    values, smallest = {INPUT: images}, np.inf
    for node, made_of_it in net.values(images):
        values[node.name] = made_of_it
        value = values[node.inputs[0]]
        if node.op in {"sign", "threshold"} and value.dtype == np.float32:
            limits = per_channel(node.tensors["thresholds"], value) if node.op == "threshold" else np.float32(0)
            smallest = min(smallest, float(np.abs(value - limits).min()))
    return smallest


def _has_signs(net: Reference) -> bool:
    return any(node.op in {"sign", "threshold"} for node in net.model.graph.nodes)


def _onebit(*words: str) -> dict[str, Any]:
    """What a command says, as JSON; what goes wrong it says itself."""
    say(f"onebit {words[0]} ...")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = onebit_command([*words, "--json"])
    if code:
        raise WorkError(f"onebit {words[0]} has failed, and nothing was written")
    found: dict[str, Any] = json.loads(said.getvalue())
    return found


if __name__ == "__main__":
    sys.exit(main())
