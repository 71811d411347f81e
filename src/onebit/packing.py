"""Signs as bits: 8 of them a byte, the first in the lowest bit; 1 means +1 and 0 means -1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Packed = NDArray[np.uint8]
Signs = NDArray[np.int8]


def packed_size(count: int) -> int:
    """Bytes that as many bits take."""
    return -(-count // 8)


def pack_signs(signs: NDArray[np.generic]) -> Packed:
    """A row of bits, in the order of the array; +1 where signs > 0. The last byte is filled with 0."""
    return np.packbits(np.asarray(signs).ravel() > 0, bitorder="little")


def unpack_signs(packed: Packed, shape: tuple[int, ...]) -> Signs:
    """The array of +-1 that was packed."""
    bits = np.unpackbits(packed, count=int(np.prod(shape, dtype=np.int64)), bitorder="little")
    return (2 * bits.astype(np.int8) - 1).reshape(shape)


def has_stray_bits(packed: Packed, count: int) -> bool:
    """Whether a bit behind the last one is set: there is one way only to write the same signs."""
    return count % 8 > 0 and bool(packed[-1] >> (count % 8))


def pack_kernels(signs: NDArray[np.generic]) -> Packed:
    """Kernels (O, I, kh, kw) of +-1 as the file has them: by kernel, tap, plane."""
    return pack_signs(np.moveaxis(np.asarray(signs), 1, 3))


def unpack_kernels(packed: Packed, shape: tuple[int, int, int, int]) -> Signs:
    """The kernels (O, I, kh, kw) that were packed."""
    kernels, planes, *taps = shape
    return np.moveaxis(unpack_signs(packed, (kernels, *taps, planes)), 3, 1)
