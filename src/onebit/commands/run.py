"""`onebit run`: what a packed net sees in image files."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from onebit.advice import program
from onebit.commands import add_threads, threads_of
from onebit.console import Progress, complain, counted, printable, tell
from onebit.errors import UserError
from onebit.jsonfields import json_text

if TYPE_CHECKING:
    from onebit.classifying import Found, Outcome

HELP = "classify image files with a .onebit file, from bits, without PyTorch"
EXAMPLES = """examples:
  onebit run net.onebit photo.jpg                    the best three classes, with probabilities
  onebit run zoo:digits-w1a1 photo.png               with a net that comes with the package
  onebit run net.onebit PHOTOS --top 1               every image in a folder and the folders in it
  onebit run net.onebit 'PHOTOS/**/cat*.png' --json  a pattern; a JSON object a line, for a program to read
  curl -s https://example.org/cat.jpg | onebit run net.onebit -
  find PHOTOS -newer yesterday | onebit run net.onebit -
"""
LONGEST_NAME = 60  # columns; a name that is longer pushes its own line only


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("file", metavar="FILE", help="a .onebit file, or zoo:NAME (see onebit zoo)")
    parser.add_argument(
        "images",
        metavar="IMAGE",
        nargs="+",
        help="files (PNG, JPEG, WebP, ...), folders, patterns; -: an image, or names of files, from stdin",
    )
    parser.add_argument("--top", type=int, default=3, metavar="K", help="classes to show (default: 3)")
    add_threads(parser, "threads that run the net")
    parser.add_argument("--json", action="store_true", help="print a JSON object a line, one for each image")


def run(arguments: argparse.Namespace) -> int:
    """Classify, print a line an image; 1 if some could not be read."""
    from onebit.classifying import STDIN, classify, find_images
    from onebit.loading import load
    from onebit.runnable import preprocessing_of

    if arguments.top < 1:
        raise UserError(f"--top {arguments.top}: use at least 1")
    net = load(arguments.file, threads=threads_of(arguments))
    preprocessing_of(net.model)  # or there is nothing to do at all
    piped = b""
    if STDIN in arguments.images:
        if sys.stdin.isatty():
            raise UserError(f"-: nothing is piped in; e.g. cat photo.jpg | {program()} run net.onebit -")
        piped = sys.stdin.buffer.read()
    images = find_images(arguments.images, piped)
    if all(found.problem for found in images):
        raise UserError(f"{images[0].name}: {images[0].problem}")
    _without_warnings()
    outputs = net.model.values[net.model.graph.nodes[-1].name].channels
    classes = net.model.classes or tuple(map(str, range(outputs)))
    head, line_of = ("", as_json) if arguments.json else in_columns(images, classes, min(arguments.top, outputs))
    bad = 0
    with Progress("images", len(images)) as progress:
        for outcome in classify(net, images, arguments.top):
            if outcome.problem:
                bad += 1
                complain("onebit run", f"{outcome.name}: {outcome.problem}")
            if arguments.json or not outcome.problem:
                if head:
                    tell(head)
                    head = ""
                tell(line_of(outcome), flush=sys.stdout.isatty())
            progress.advance()
    if bad and len(images) > 1:
        complain("onebit run", f"{bad} of {counted(len(images), 'image')} could not be read")
    return int(bool(bad))


def as_json(outcome: Outcome) -> str:
    """An object for one image."""
    if outcome.problem:
        return json_text({"image": outcome.name, "error": outcome.problem})
    top = [{"class": label, "index": number, "probability": share} for label, number, share in outcome.guesses]
    return json_text({"image": outcome.name, "top": top})


def in_columns(images: Sequence[Found], classes: Sequence[str], top: int) -> tuple[str, Callable[[Outcome], str]]:
    """The heading, and what makes the line of an image: its name and its guesses, below those of the others."""
    name_width = min(LONGEST_NAME, max(len(printable(found.name)) for found in images))
    label_width = max(len("class"), *map(len, classes))

    def line_of(outcome: Outcome) -> str:
        guessed = (f"{guess.label:<{label_width}}  {100 * guess.probability:6.2f} %" for guess in outcome.guesses)
        return "   ".join([f"{printable(outcome.name):<{name_width}}", *guessed])

    heading = "   ".join([f"{'image':<{name_width}}", *[f"{'class':<{label_width}}  {'sure':>8}"] * top])
    return heading, line_of


def _without_warnings() -> None:
    """What Pillow would say of strange files, beside what we say of those that can't be read."""
    from PIL import Image

    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    warnings.filterwarnings("ignore", module="PIL")
