"""What an attribute of a node may be, in words and as a check."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

REQUIRED = object()


class Attribute(NamedTuple):
    """What a value must be, in words and as a check; and what it is when the file does not say."""

    words: str
    is_right: Callable[[Any], bool]
    default: Any = REQUIRED


def _is_whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_number(value: object) -> bool:
    """A float32: engines compute with no more."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 3e38:
        return False
    return math.isfinite(value) and float(np.float32(value)) == value


def whole(low: int, high: int, default: Any = REQUIRED) -> Attribute:
    """A whole number within bounds."""
    return Attribute(f"a whole number from {low} to {high}", lambda value: _is_whole(value, low, high), default)


def wholes(count: int, low: int, high: int, default: Any = REQUIRED) -> Attribute:
    """As many whole numbers within bounds."""

    def is_right(value: object) -> bool:
        return isinstance(value, list) and len(value) == count and all(_is_whole(each, low, high) for each in value)

    return Attribute(f"{count} whole numbers from {low} to {high}", is_right, default)


def one_of(*words: str) -> Attribute:
    """One of these words."""
    return Attribute(f"one of {', '.join(words)}", lambda value: isinstance(value, str) and value in words)


def flag(*, default: bool) -> Attribute:
    """True or false."""
    return Attribute("true or false", lambda value: isinstance(value, bool), default)


NUMBER = Attribute("a finite 32-bit float", _is_number)
NUMBER_OR_NULL = Attribute("a finite 32-bit float or null", lambda value: value is None or _is_number(value), None)
