"""Where the values of a net lie in one block of memory: those that never live at the same time may share bytes."""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple

ALIGNMENT = 64


class Lifetime(NamedTuple):
    """Bytes that are needed from one step to another, both included."""

    size: int
    first: int
    last: int


def place(lifetimes: dict[str, Lifetime]) -> dict[str, int]:
    """The first byte of each: the largest are placed first, each at the lowest place free while it lives."""
    placed: list[tuple[int, int, Lifetime]] = []  # first byte, byte behind the last; in this order
    offsets: dict[str, int] = {}
    for name, life in sorted(lifetimes.items(), key=lambda item: (-item[1].size, item[1].first)):
        size = -(-life.size // ALIGNMENT) * ALIGNMENT
        start = 0
        for other_start, other_end, other in placed:
            if other.last < life.first or life.last < other.first:
                continue
            if start + size <= other_start:
                break
            start = max(start, other_end)
        offsets[name] = start
        insort(placed, (start, start + size, life))
    return offsets
