"""Randomness without state: each number depends on a seed, an epoch and an index, and on nothing else.

So a run that goes on after an interruption draws what it would have drawn, whatever the number of processes and
workers, and no generator's state has to be kept.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Stream(IntEnum):
    """What a number is drawn for: numbers of different streams are independent."""

    ORDER = 0
    TOP = 1
    LEFT = 2
    FLIP = 3
    HELD_OUT = 4
    STEP = 5
    SUBSET = 6


def draw(stream: Stream, seed: int, epoch: int, index: NDArray[np.int64] | list[int] | int) -> NDArray[np.uint64]:
    """A random 64-bit number for each index (a chain of splitmix64's mixing function)."""
    number = np.zeros(1, np.uint64)
    for key in (int(stream), seed, epoch):
        number = _mix(number ^ np.array([key % 2**64], np.uint64))
    return _mix(number ^ np.atleast_1d(np.asarray(index)).astype(np.uint64))


def shuffled(stream: Stream, seed: int, epoch: int, index: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same indices in random order."""
    return index[np.argsort(draw(stream, seed, epoch, index), kind="stable")]


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Steele, Lea and Flood 2014: a bijection of 64-bit numbers that leaves no visible pattern."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
