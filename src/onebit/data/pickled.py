"""What a pickle of CIFAR may name: what arrays are made of, and nothing else. Of each there is a stand-in here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_DIMENSIONS, MOST_NUMBERS, LONGEST_WORD = 8, 1 << 28, 32
DTYPES = {"u1", "i1", "i4", "i8", "u4", "u8"}


class PickledDType:
    """Stands for a dtype: bytes and whole numbers only."""

    def __init__(self, *arguments: Any) -> None:
        name = _word(arguments[0]) if arguments else None
        if name not in DTYPES:
            raise ValueError("an array of numbers that are not whole, or of none")
        self.dtype = np.dtype(name)

    def build(self, state: Any) -> None:
        """Its byte order is in its state."""
        if not isinstance(state, tuple) or len(state) < 2:
            raise ValueError("a dtype of a kind that is not expected")
        self.dtype = self.dtype.newbyteorder(">" if _word(state[1]) == ">" else "<")


class PickledArray:
    """Stands for an ndarray while it is read."""

    def __init__(self, *_: Any) -> None:
        self.array: NDArray[Any] = np.empty(0, np.uint8)

    def build(self, state: Any) -> None:
        """What an array's state is: version, shape, dtype, whether it is Fortran's order, bytes."""
        if not isinstance(state, tuple) or len(state) != 5:
            raise ValueError("an array of a kind that is not expected")
        _version, shape, dtype, fortran, data = state
        self.fill(data, dtype, shape, "F" if fortran is True or fortran == 1 else "C")

    def fill(self, data: Any, dtype: Any, shape: Any, order: Any) -> None:
        """Take the bytes, if they are what shape and dtype say."""
        if not (isinstance(dtype, PickledDType) and isinstance(data, bytes) and isinstance(shape, tuple)):
            raise ValueError("an array of a kind that is not expected")
        is_shape = len(shape) <= MOST_DIMENSIONS and all(type(size) is int and size >= 0 for size in shape)
        # NumPy minds a large size even beside a 0.
        if not is_shape or math.prod(max(size, 1) for size in shape) > MOST_NUMBERS:
            raise ValueError("an array of a size that is not expected")
        if math.prod(shape) * dtype.dtype.itemsize != len(data):
            raise ValueError("an array whose size does not fit its data")
        self.array = np.frombuffer(data, dtype.dtype).reshape(shape, order="F" if _word(order) == "F" else "C")


class Name:
    """A function or a class that a pickle may name; `make` is what a call of it comes to, if it may be called."""

    def __init__(self, make: Callable[..., Any] | None) -> None:
        self.make = make


def _from_buffer(*arguments: Any) -> PickledArray:
    """What NumPy writes in protocol 5: bytes, dtype, shape, order."""
    if len(arguments) != 4:
        raise ValueError("an array of a kind that is not expected")
    array = PickledArray()
    array.fill(*arguments)
    return array


def _encoded(*arguments: Any) -> bytes:
    """How Python 3 writes bytes in the older protocols: as text, a character a byte."""
    if len(arguments) != 2 or not isinstance(arguments[0], str) or _word(arguments[1]) != "latin1":
        raise ValueError("text of a kind that is not expected")
    return arguments[0].encode("latin1")


def _no_bytes(*arguments: Any) -> bytes:
    """How Python 3 writes b'' in the older protocols."""
    if arguments:
        raise ValueError("bytes of a kind that is not expected")
    return b""


def _word(value: Any) -> str | None:
    """A word, which Python 2 wrote as bytes: short ones only, since a file may ask for one again and again."""
    if isinstance(value, bytes) and len(value) <= LONGEST_WORD and value.isascii():
        return value.decode("ascii")
    return value if isinstance(value, str) else None


_RECONSTRUCT, _FROM_BUFFER = Name(PickledArray), Name(_from_buffer)
ENCODE = Name(_encoded)
NAMES = {
    "numpy.core.multiarray._reconstruct": _RECONSTRUCT,
    "numpy._core.multiarray._reconstruct": _RECONSTRUCT,
    "numpy.core.numeric._frombuffer": _FROM_BUFFER,
    "numpy._core.numeric._frombuffer": _FROM_BUFFER,
    "numpy.ndarray": Name(None),  # _reconstruct is told it
    "numpy.dtype": Name(PickledDType),
    "_codecs.encode": ENCODE,
    "__builtin__.bytes": Name(_no_bytes),
}
