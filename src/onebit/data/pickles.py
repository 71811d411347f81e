"""Reads the pickles that CIFAR is published as, and runs nothing of what they say.

A pickle is a program: it may name any function and call it. This reader knows the few names that arrays need,
and gives each a stand-in of its own, so that a file can describe arrays and plain containers and nothing else.
"""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit.errors import UserError
from onebit.paths import open_regular

LARGEST = 1 << 30  # bytes; CIFAR's files have at most 153,600,000


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in the file, with text keys; arrays are of bytes or whole numbers."""
    try:
        with open_regular(path) as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    if len(content) > LARGEST:
        raise UserError(f"{path}: too large for a batch of CIFAR")
    try:
        content = _Reader(io.BytesIO(content), encoding="bytes").load()
    except _ForbiddenError as error:
        raise UserError(f"{path}: refused, for its pickle names {error}, which is no array") from None
    except (
        pickle.UnpicklingError,
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
        EOFError,
        MemoryError,
    ) as error:
        raise UserError(f"{path}: not a batch of CIFAR ({error})") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a batch of CIFAR (it holds a {type(content).__name__})")
    return {_text(key): _plain(value) for key, value in content.items()}


class _ForbiddenError(Exception):
    pass


class _Array:
    """Stands for an ndarray while it is read."""

    def __init__(self) -> None:
        self.array: NDArray[Any] = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _version, shape, dtype, fortran, data = state
        self.fill(shape, dtype, data, "F" if fortran else "C")

    def fill(self, shape: Any, dtype: Any, data: Any, order: Any) -> None:
        """Take the bytes, if they are what shape and dtype say."""
        if not (isinstance(dtype, _DType) and isinstance(data, bytes | bytearray) and isinstance(shape, tuple)):
            raise ValueError("an array of this kind is not expected")
        shape = tuple(int(size) for size in shape)
        if min(shape, default=0) < 0 or math.prod(shape) * dtype.dtype.itemsize != len(data):
            raise ValueError("an array's size does not fit its data")
        self.array = np.frombuffer(data, dtype.dtype).reshape(shape, order="F" if order == "F" else "C")


class _DType:
    """Stands for a dtype: bytes and whole numbers only."""

    def __init__(self, name: Any, *_: Any) -> None:
        name = name.decode("ascii") if isinstance(name, bytes) else name
        if name not in {"u1", "i1", "i4", "i8", "u4", "u8"}:
            raise ValueError(f"an array of {name!r} is not expected")
        self.dtype = np.dtype(name)

    def __setstate__(self, state: Any) -> None:
        self.dtype = self.dtype.newbyteorder(">" if state[1] in {">", b">"} else "<")


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _frombuffer(data: Any, dtype: Any, shape: Any, order: Any, *_: Any) -> _Array:
    """What NumPy writes in protocol 5."""
    array = _Array()
    array.fill(shape, dtype, data, order)
    return array


def _encode(text: Any, codec: Any) -> bytes:
    """How Python 3 writes bytes in the older protocols."""
    if not isinstance(text, str) or codec not in {"latin1", b"latin1"}:
        raise ValueError("text of this kind is not expected")
    return text.encode("latin1")


class _NdArray:
    """Stands for the name ndarray, which only _reconstruct takes."""


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _frombuffer,
    ("numpy._core.numeric", "_frombuffer"): _frombuffer,
    ("numpy", "ndarray"): _NdArray,
    ("numpy", "dtype"): _DType,
    ("_codecs", "encode"): _encode,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise _ForbiddenError(f"{module}.{name}")
        return _KNOWN[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise _ForbiddenError(f"the object {pid!r}")


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.array
    if isinstance(value, list):
        return [_text(item) for item in value]
    return _text(value)
