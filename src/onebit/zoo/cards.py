"""The card of a net of the zoo, `NAME.json`: what the net is, how good, how it was trained, what it computes."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit.errors import ModelFileError
from onebit.jsonfields import Fields, is_int, parse_json, plain_text

TEXTS = ("name", "description", "data", "data_key", "budget", "bits", "sha256", "command", "export", "commit")
FORMS = {"name": r"[a-z0-9][a-z0-9.-]*", "bits": r"W\d+A\d+", "sha256": r"[0-9a-f]{64}"}


@dataclass(frozen=True)
class Check:
    """What the native engine made of `count` random images, where the card was written."""

    seed: int
    count: int
    logits: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Card:
    """A net of the zoo."""

    name: str
    description: str
    data: str  # that it was trained and measured on, in words
    data_key: str  # the same for --data
    budget: str  # of the training, in words
    bits: str  # of weights and inputs of its 1-bit layers: 'W1A32'
    top1: float  # percent, measured by the native engine
    test_images: int  # of which
    bytes: int  # of the file
    sha256: str  # of the file
    command: str  # that trained it
    export: str  # that made the file of what was trained
    commit: str  # of the code that trained it
    check: Check

    def as_json(self) -> str:
        """As `read_card` takes it, a line a key."""
        lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in asdict(self).items())
        return "{\n" + ",\n".join(lines) + "\n}\n"


def check_images(seed: int, count: int, input_shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The images of a check: the same numbers wherever they are drawn."""
    return np.random.default_rng(seed).standard_normal((count, *input_shape), dtype=np.float32)


def read_card(file: Path) -> Card:
    """The card in a file; raises ModelFileError if anything is wrong with it."""
    try:
        return parse_card(file.read_bytes(), file.name.removesuffix(".json"))
    except ModelFileError as error:
        raise ModelFileError(f"{file}: {error}; install onebit again") from None


def parse_card(content: bytes, name: str) -> Card:
    """The card of the net of this name, in the bytes of its file."""
    found = Fields(parse_json(content, "the card"), "the card")
    kinds: dict[str, Any] = {"test_images": int, "bytes": int, "top1": (int, float), "check": dict}
    taken = {field.name: found.take(field.name, kinds.get(field.name, str)) for field in fields(Card)}
    found.end()
    for key in TEXTS:
        if not re.fullmatch(FORMS.get(key, ".+"), plain_text(taken[key], f"the card: {key!r}")):
            raise ModelFileError(f"the card: {key!r} can't be {taken[key]!r}")
    if taken["name"] != name:
        raise ModelFileError(f"the card: is that of {taken['name']!r}")
    if not (0 <= taken["top1"] <= 100 and taken["test_images"] > 0 and taken["bytes"] > 0):
        raise ModelFileError("the card: 'top1' must be a percentage, 'test_images' and 'bytes' more than 0")
    return Card(**taken | {"check": _check(taken["check"])})


def _check(described: Any) -> Check:
    found = Fields(described, "the card's check")
    seed, count, logits = found.take("seed", int), found.take("count", int), found.take("logits", list)
    found.end()
    rows = [row for row in logits if isinstance(row, list) and row]
    is_whole = seed >= 0 and 0 < count == len(logits) == len(rows) and len({len(row) for row in rows}) == 1
    if not is_whole or not all(_is_number(value) for row in rows for value in row):
        raise ModelFileError("the card's check: 'logits' must have a row of numbers for each of 'count' images")
    return Check(seed, count, tuple(tuple(map(float, row)) for row in rows))


def _is_number(value: Any) -> bool:
    return (is_int(value) or isinstance(value, float)) and abs(value) < 1e30
