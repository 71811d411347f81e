"""Handwritten digits that come with the package: 1797 real images of 8 x 8 pixels, by 13 writers.

From "Optical Recognition of Handwritten Digits", Alpaydin and Kaynak 1998, CC BY 4.0 (see NOTICE).
"""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

TEST_SHARE = 1 / 4


class Images(NamedTuple):
    """Images (N, 1, 8, 8) in float32 and labels (N,) in int64."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]


class Pixels(NamedTuple):
    """Images (N, 1, 8, 8) in bytes, 0 to 240, and labels (N,) in int64."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def load_digit_pixels() -> tuple[Pixels, Pixels]:
    """Training and test images; the published grey values, 0 to 16, are spread over a byte.

    The test images are the last quarter in the published order. Unshuffled on purpose: several images are by
    the same hand, and a random split would put near copies of test images into the training set.
    """
    with resources.files("onebit.data").joinpath("digits.npz").open("rb") as file, np.load(file) as kept:
        images, labels = kept["images"].astype(np.uint8)[:, None] * 15, kept["labels"].astype(np.int64)
    first_test = len(labels) - round(len(labels) * TEST_SHARE)
    return Pixels(images[:first_test], labels[:first_test]), Pixels(images[first_test:], labels[first_test:])


def load_digits() -> tuple[Images, Images]:
    """Training and test images, standardised with the training images' mean and deviation."""
    train, test = load_digit_pixels()
    pixels = train.images.astype(np.float32)
    mean, deviation = pixels.mean(), pixels.std()
    return Images((pixels - mean) / deviation, train.labels), Images((test.images - mean) / deviation, test.labels)
