"""The preprocessing of docs/format.md, written from its words in NumPy: the same pixels as ours, to the bit."""

import io
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from onebit.imagefiles import read_pixels

ONE = 1 << 22  # a weight of 1


def box_of(width, height, columns, rows, crop):
    """Left, top, right, bottom of the part that is taken."""
    zoom = crop * min(width / columns, height / rows)
    left, top = (width - zoom * columns) * 0.5, (height - zoom * rows) * 0.5
    right, bottom = left + zoom * columns, top + zoom * rows
    return max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height))


def weights_of(first, last, size, count):
    """Along one side of `size` pixels: for each of `count` new pixels the first old one, and whole weights."""
    first, last = np.float32(first), np.float32(last)
    step = float(last - first) / count
    reach = max(step, 1.0)
    for place in range(count):
        centre = float(first) + (place + 0.5) * step
        begin, end = max(0, math.trunc(centre - reach + 0.5)), min(size, math.trunc(centre + reach + 0.5))
        # Multiplied by 1 / reach, not divided by reach: that is one rounding more.
        weights = [max(0.0, 1.0 - abs((at - centre + 0.5) * (1.0 / reach))) for at in range(begin, end)]
        total = 0.0
        for weight in weights:
            total += weight
        yield begin, [math.floor(weight / total * ONE + 0.5) for weight in weights]


def along_rows(pixels, spans):
    """(rows, columns, channels) to (rows, new columns, channels)."""
    made = []
    for begin, weights in spans:
        part = pixels[:, begin : begin + len(weights)].astype(np.int64)
        sums = np.tensordot(part, np.array(weights, np.int64), axes=((1,), (0,)))
        made.append(np.clip((sums + ONE // 2) >> 22, 0, 255).astype(np.uint8))
    return np.stack(made, axis=1)


def resized(pixels, shape, crop=1.0):
    """(height, width, channels) to (channels, rows, columns) as the document says."""
    height, width, _ = pixels.shape
    _, rows, columns = shape
    left, top, right, bottom = box_of(width, height, columns, rows, crop)
    across = along_rows(pixels, weights_of(left, right, width, columns))
    down = along_rows(across.transpose(1, 0, 2), weights_of(top, bottom, height, rows))
    return down.transpose(2, 1, 0)


def noise(height, width, channels, seed=0):
    """Of 0 and 255 alone, where every rounding shows, and of all between."""
    rng = np.random.default_rng(seed)
    hard = rng.integers(0, 2, (height, width, channels), np.uint8) * 255
    return np.where(rng.random((height, width, 1)) < 0.5, hard, rng.integers(0, 256, hard.shape, np.uint8))


def assert_same(pixels, shape, crop):
    picture = pixels if shape[0] == 3 else pixels[:, :, 0]
    np.testing.assert_array_equal(read_pixels(picture, shape, crop), resized(pixels, shape, crop), strict=True)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("crop", [1.0, 0.875, 1 / 3])
@pytest.mark.parametrize(
    ("size", "to"),
    [
        ((64, 64), (64, 64)), ((64, 64), (32, 32)), ((31, 47), (64, 64)), ((480, 641), (224, 224)),
        ((97, 53), (13, 7)), ((19, 3), (3, 1)), ((45, 24), (10, 26)),
        ((1, 1), (9, 5)), ((1, 300), (1, 7)), ((300, 1), (7, 3)), ((2, 3), (301, 5)), ((999, 10), (8, 8)),
        ((127, 128), (128, 127)), ((5, 5), (4, 4)),
    ],
    ids=str,
)  # fmt: skip
def test_sizes(size, to, crop, channels):
    assert_same(noise(*size, channels), (channels, *to), crop)


@settings(max_examples=150, deadline=None)
@given(
    size=st.tuples(st.integers(1, 150), st.integers(1, 150)),
    to=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    crop=st.one_of(st.just(1.0), st.floats(0.01, 1.0)),
    seed=st.integers(0, 1000),
)
def test_any_sizes(size, to, crop, seed):
    assert_same(noise(*size, 1, seed), (1, *to), crop)


def test_white_stays_white():
    for width in range(1, 400, 7):
        pixels = np.full((5, width, 1), 255, np.uint8)
        assert resized(pixels, (1, 3, 41)).min() >= 254
        assert_same(pixels, (1, 3, 41), 1.0)


def test_grey_of_colours():
    """The document's formula, on every sum that rounding could decide."""
    red, green, blue = noise(300, 200, 3).transpose(2, 0, 1).astype(np.int64)
    grey = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    pixels = np.stack([red, green, blue], axis=2).astype(np.uint8)
    np.testing.assert_array_equal(read_pixels(pixels, (1, 300, 200))[0], grey)


@pytest.mark.parametrize(
    ("size", "smaller"), [((127, 300), 1), ((128, 400), 2), ((255, 256), 2), ((256, 700), 4), ((600, 513), 8)]
)
def test_large_jpegs_are_decoded_smaller(size, smaller):
    """By the largest of 8, 4, 2 that leaves both sides at least twice as long as the net's longer one, 32 here."""
    stream = io.BytesIO()
    Image.fromarray(noise(*size, 3)).save(stream, "JPEG")
    with Image.open(stream) as file:
        assert file.size == size[::-1]
        file.draft("RGB", (size[1] // smaller, size[0] // smaller))
        pixels = np.asarray(file.convert("RGB"))
    assert pixels.shape == (-(-size[0] // smaller), -(-size[1] // smaller), 3)
    np.testing.assert_array_equal(read_pixels(stream.getvalue(), (3, 32, 20)), resized(pixels, (3, 32, 20)))
