"""`onebit zoo`: the trained nets that come with the package."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from onebit.advice import program
from onebit.console import tell
from onebit.jsonfields import json_text

if TYPE_CHECKING:
    from pathlib import Path

    from onebit.zoo import Card

HELP = "list the trained nets that come with the package, ready to run as zoo:NAME"
EXAMPLES = """examples:
  onebit zoo                                   all of them: what they are, how good, how large
  onebit zoo digits-w1a1                       the card of one: how it was trained, and how to use it
  onebit run zoo:digits-w1a1 photo.jpg         zoo:NAME goes wherever a .onebit file can be named
  onebit zoo --json                            for a program to read
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("zoo_net", metavar="NAME", nargs="?", help="a net of the zoo, whose card is shown")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the table, or a card."""
    from onebit import zoo

    if arguments.zoo_net is not None:
        card, file = zoo.card(arguments.zoo_net), zoo.path(arguments.zoo_net)
        said = [json_text(asdict(card) | {"path": str(file)})] if arguments.json else told(card, file)
    else:
        cards = zoo.list()
        said = [json_text([asdict(card) for card in cards])] if arguments.json else table(cards)
    tell(*said)
    return 0


def table(cards: list[Card]) -> list[str]:
    """A line a net."""
    from onebit.summary import columns

    heads = ("name", "net", "data", "bits", "top-1", "bytes")
    cells = [
        (f"zoo:{card.name}", card.description, card.data, card.bits, f"{card.top1:.2f} %", f"{card.bytes:,}")
        for card in cards
    ]
    return columns([heads, *cells], left=4)


def told(card: Card, file: Path) -> list[str]:
    """A card in words, and how its net is used."""
    from onebit.summary import columns

    facts: list[tuple[str, ...]] = [
        ("data", card.data),
        ("top-1", f"{card.top1:.2f} % of {card.test_images:,} test images, run from bits"),
        ("trained", card.budget),
        ("", card.command),
        ("", card.export),
        ("", f"commit {card.commit}"),
        ("file", f"{card.bytes:,} bytes, {file}"),
        ("sha256", card.sha256),
    ]
    net, where = f"zoo:{card.name}", "" if card.data_key == "digits" else " --data-dir DATA"
    uses: list[tuple[str, ...]] = [
        (f"{program()} run {net} photo.jpg", "what it sees in images"),
        (f"{program()} eval {net}{where}", "its accuracy, measured again"),
        (f"{program()} inspect {net}", "its layers"),
        (f"{program()} bench {net}", "how fast it is here"),
        (f'onebit.load("{net}")', "in Python"),
    ]
    lines = [f"{net}: {card.description}, {card.bits}", ""]
    return [*lines, *columns(facts, left=2), "", *columns(uses, left=2)]
