"""How far two programs make the same of the same images."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from onebit.runnable import Floats

CLOSE = 1e-4  # of the largest output


class Agreement(NamedTuple):
    """Of outputs with those of the judge.

    difference    the largest, over the largest output
    images        how many there are
    close         how many of them differ by less than `CLOSE`
    same_argmax   share of outputs (of pixels, if images come out) whose largest channel is the same
    border_only   they differ, but not inside of images
    """

    difference: float
    images: int
    close: int
    same_argmax: float
    border_only: bool


def compare(found: Floats, expected: Floats) -> Agreement:
    """How two outputs of the same net agree."""
    if found.shape != expected.shape:
        raise ValueError(f"outputs of shape {found.shape}, not {expected.shape}")
    finite = np.abs(expected[np.isfinite(expected)])
    largest = finite.max(initial=0.0) or 1.0  # outputs may all be 0
    with np.errstate(invalid="ignore"):  # of two infinities, which are told apart below
        error = np.abs(found - expected) / largest
    error[(found == expected) | (np.isnan(found) & np.isnan(expected))] = 0
    error = np.nan_to_num(error, nan=np.inf, posinf=np.inf)
    same = float((found.argmax(axis=1) == expected.argmax(axis=1)).mean())
    close = int((error.reshape(len(error), -1).max(axis=1) < CLOSE).sum())
    inside = error[:, :, 1:-1, 1:-1] if error.ndim == 4 else error
    border_only = bool(inside.max(initial=0.0) < CLOSE <= error.max())
    return Agreement(float(error.max()), len(error), close, same, border_only)


def draw_images(count: int, shape: tuple[int, int, int], seed: int = 0) -> Floats:
    """Large patches under some noise. Of noise alone a net makes nearly the same outputs for every image."""
    generator = np.random.default_rng(seed)
    channels, height, width = shape
    patches = generator.standard_normal((count, channels, 4, 4), np.float32)
    rows, columns = (np.arange(side) * 4 // side for side in (height, width))
    images: Floats = generator.standard_normal((count, *shape), np.float32)
    images *= np.float32(0.3)
    planes = images.reshape(-1, height, width)
    for place, patch in enumerate(patches.reshape(-1, 4, 4)):  # one at a time, for images may be very large
        planes[place] += patch[rows][:, columns]
    return images
