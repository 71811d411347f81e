"""The zoo: trained nets that come with the package. `onebit.load("zoo:NAME")` runs one, `onebit zoo` lists them.

A net is NAME.onebit beside this file, with its card, NAME.json. `tools/make_zoo.py` puts them here.
"""

from __future__ import annotations

import builtins
import hashlib
import os
from difflib import get_close_matches
from pathlib import Path

from onebit.errors import ModelFileError, UserError
from onebit.paths import user_path
from onebit.zoo.cards import Card, Check, read_card

__all__ = ["Card", "Check", "card", "list", "path"]

PREFIX = "zoo:"
FOLDER = Path(__file__).parent
MAX_BYTES = 1_000_000  # of the whole zoo: it is in every wheel


def names() -> builtins.list[str]:
    """Of the nets, sorted."""
    return sorted(file.name.removesuffix(".json") for file in FOLDER.glob("*.json"))


def list() -> builtins.list[Card]:  # noqa: A001 `onebit.zoo.list()` says what it does
    """The cards of all nets, sorted by name."""
    return [read_card(FOLDER / f"{name}.json") for name in names()]


def card(name: str) -> Card:
    """The card of a net, 'NAME' or 'zoo:NAME'."""
    known, wanted = names(), name.removeprefix(PREFIX)
    if wanted not in known:
        near = get_close_matches(wanted, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"{PREFIX}{wanted}: no such net; {hint}there are {', '.join(known) or 'none'}")
    return read_card(FOLDER / f"{wanted}.json")


def path(name: str) -> Path:
    """The file of a net, 'NAME' or 'zoo:NAME'; raises ModelFileError if it is not the file of the net's card."""
    found = card(name)
    file = FOLDER / f"{found.name}.onebit"
    if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != found.sha256:
        what = "damaged: its sha256 is not that of its card" if file.is_file() else "missing"
        raise ModelFileError(f"{PREFIX}{found.name}: {file} is {what}; install onebit again")
    return file


def card_of(net: str | os.PathLike[str]) -> Card | None:
    """The card of 'zoo:NAME'; None for what is no name of a net in the zoo."""
    return card(str(net)) if str(net).startswith(PREFIX) else None


def model_path(net: str | os.PathLike[str]) -> Path:
    """The model file that is meant, wherever one can be named: 'zoo:NAME', or a path as users write it."""
    return path(str(net)) if str(net).startswith(PREFIX) else user_path(net)
