"""Where the values of a net lie in one block of memory: those that never live at the same time may share bytes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64


class Lifetime(NamedTuple):
    """Bytes that are needed from one step to another, both included."""

    size: int
    first: int
    last: int


def place(lifetimes: dict[str, Lifetime]) -> dict[str, int]:
    """The first byte of each: the largest are placed first, each at the lowest place free while it lives.

    What is placed is kept in arrays, so that looking through it takes microseconds: a net may have thousands of
    values that all live to its end.
    """
    placed = _Placed(len(lifetimes))
    offsets: dict[str, int] = {}
    for name, (wanted, first, last) in sorted(lifetimes.items(), key=lambda item: (-item[1].size, item[1].first)):
        size = -(-wanted // ALIGNMENT) * ALIGNMENT
        offsets[name] = placed.lowest_gap(size, first, last)
        placed.add(offsets[name], size, first, last)
    return offsets


class _Placed:
    """Values that have their place, in order of their first bytes."""

    def __init__(self, most: int) -> None:
        self.count = 0
        self.columns = np.zeros((4, most), np.int64)  # first byte, byte behind the last; first step, last step

    def lowest_gap(self, size: int, first: int, last: int) -> int:
        """The lowest place for so many bytes, free in all these steps."""
        starts, ends, firsts, lasts = self.columns[:, : self.count]
        meets = (lasts >= first) & (firsts <= last)
        starts, ends = starts[meets], ends[meets]
        free: NDArray[np.int64] = np.zeros(len(starts) + 1, np.int64)  # from here up to the next start
        np.maximum.accumulate(ends, out=free[1:])
        fits = np.flatnonzero(free[:-1] + size <= starts)
        return int(free[fits[0]] if len(fits) else free[-1])

    def add(self, start: int, size: int, first: int, last: int) -> None:
        """Keep the order."""
        at = int(np.searchsorted(self.columns[0, : self.count], start))
        self.columns[:, at + 1 : self.count + 1] = self.columns[:, at : self.count]
        self.columns[:, at] = start, start + size, first, last
        self.count += 1
