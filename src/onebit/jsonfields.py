"""JSON from outside, hostile until it is checked: every key once, each of its type, and no others."""

from __future__ import annotations

import json
import math
from typing import Any

from onebit.errors import ModelFileError

MAX_NAME = 1 << 10  # characters of any name


def parse_json(text: str | bytes, what: str) -> Any:
    """What the text says; raises ModelFileError if it is no JSON, has a key twice, or NaN for a number."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no number")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) < len(pairs):
            raise ValueError("a key that is there twice")
        return found

    try:
        return json.loads(text, parse_constant=refuse, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{what} is not sound JSON ({str(error)[:100]})") from None


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON for any program: numbers that are not finite, for which it has no words, are null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def plain_text(value: Any, what: str) -> str:
    """The value, if it is text that can be shown to people."""
    if not isinstance(value, str) or len(value) > MAX_NAME or not value.isprintable():
        raise ModelFileError(f"{what} must be text of at most {MAX_NAME} printable characters")
    return value


def is_int(value: Any) -> bool:
    """A whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


class Fields:
    """The keys of a JSON object, each taken once and of its type; what is left over at the end is wrong."""

    def __init__(self, described: Any, what: str) -> None:
        if not isinstance(described, dict):
            raise ModelFileError(f"{what} must be a JSON object")
        self.left, self.what = dict(described), what

    def take(self, key: str, kind: Any, *default: Any) -> Any:
        """The value of a key; the default, if there is one, of a key that lacks."""
        if default and (key not in self.left or (self.left[key] is None and default[0] is None)):
            self.left.pop(key, None)
            return default[0]
        value = self.left.pop(key, None)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ModelFileError(f"{self.what}: {key!r} is missing or of another type")
        return value

    def end(self) -> None:
        """No key may be left."""
        if self.left:
            raise ModelFileError(f"{self.what}: {plain_text(min(self.left), 'a key')!r} is unknown")
