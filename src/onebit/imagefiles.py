"""Image files to the pixels that a net takes, in one way: for test images in training, for a packed net at work.

Nothing here needs torch; Pillow is imported when the first image is read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebit.errors import UserError
from onebit.paths import open_regular

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

SUFFIXES = {".jpeg", ".jpg", ".png", ".webp", ".bmp", ".ppm", ".gif", ".tif", ".tiff"}
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "PPM", "GIF", "TIFF")  # Pillow knows more, some of which start programs
MODES = {1: "L", 3: "RGB"}  # of Pillow, by channels


class BadImageError(ValueError):
    """Why a file is no image that can be taken."""


class Crop(NamedTuple):
    """Where in the image the part is that is taken, 0 to 1 (0.5: the middle), and whether it is mirrored."""

    top: float = 0.5
    left: float = 0.5
    flip: bool = False


def read_pixels(
    source: str | os.PathLike[str] | IO[bytes],
    shape: tuple[int, int, int],
    share: float = 1.0,
    crop: Crop = Crop(),  # noqa: B008 a tuple is no trap
) -> NDArray[np.uint8]:
    """Pixels (channels, height, width) of an image: a part of the proportions of `shape`, resized to it.

    share   how large the part is, of the largest that fits

    Only the part is resized, straight from the image: what is cropped away costs nothing. Raises BadImageError.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    channels, height, width = shape
    mode = mode_of(channels)
    try:
        with _opened(source) as content, Image.open(content, formats=FORMATS) as file:
            # Of a JPEG that is far too large a smaller version is decoded, still twice as large as needed, however
            # it is turned then.
            file.draft(mode, (2 * max(width, height),) * 2)
            ImageOps.exif_transpose(file, in_place=True)
            image = as_pixels(file, mode)
    except BadImageError:
        raise
    except UnidentifiedImageError:
        raise BadImageError("not an image of a known kind, or empty") from None
    except Exception as error:  # noqa: BLE001 a damaged image has many ways to say so
        raise BadImageError(" ".join(str(error).split()) or type(error).__name__) from None
    zoom = share * min(image.width / width, image.height / height)
    left, top = (image.width - zoom * width) * crop.left, (image.height - zoom * height) * crop.top
    right, bottom = left + zoom * width, top + zoom * height
    # Floats may round to a little outside of the image.
    box = (max(left, 0.0), max(top, 0.0), min(right, image.width), min(bottom, image.height))
    part = image.resize((width, height), Image.Resampling.BILINEAR, box=box)
    if crop.flip:
        part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = np.asarray(part).reshape(height, width, channels)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _opened(source: str | os.PathLike[str] | IO[bytes]) -> AbstractContextManager[IO[bytes]]:
    """The file, open; whoever gave us one that is open closes it."""
    if not isinstance(source, str | os.PathLike):
        return nullcontext(source)
    try:
        return open_regular(source)
    except FileNotFoundError:
        raise BadImageError("no such file") from None
    except OSError as error:
        raise BadImageError(error.strerror or str(error)) from None


def mode_of(channels: int) -> str:
    """Pillow's name for images of so many channels."""
    if channels not in MODES:
        raise UserError(f"the net takes images of {channels} channels; image files have 1 (grey) or 3 (colour)")
    return MODES[channels]


def as_pixels(image: Picture, mode: str) -> Picture:
    """The image in bytes of grey or of colour, whatever it was."""
    from PIL import Image

    sixteen = image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG")  # of older Pillows
    if sixteen:  # Pillow would cut off what is above 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in {"I", "F"}:
        raise BadImageError("its pixels have 32 bits, and what is black and what white is not said")
    if image.mode == "P" and "transparency" in image.info:  # else Pillow warns
        image = image.convert("RGBA")
    return image if image.mode == mode else image.convert(mode)


def standardised(pixels: NDArray[np.uint8], mean: Sequence[float], std: Sequence[float]) -> NDArray[np.float32]:
    """(pixel / 255 - mean) / std for each channel of (..., channels, height, width), in 32-bit floats."""
    centre, spread = (np.asarray(numbers, np.float32).reshape(-1, 1, 1) for numbers in (mean, std))
    made: Any = (pixels.astype(np.float32) / np.float32(255) - centre) / spread
    return np.asarray(made, np.float32)
