"""Images to the pixels that a net takes, in one way: for test images in training, for a packed net at work.

Nothing here needs torch; Pillow is imported when the first image is read, or resized. docs/format.md says how an
image is resized, to the bit ("Preprocessing").
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

from onebit.errors import UserError
from onebit.paths import open_regular, user_path

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

SUFFIXES = {".jpeg", ".jpg", ".png", ".webp", ".bmp", ".ppm", ".gif", ".tif", ".tiff"}
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "PPM", "GIF", "TIFF")  # Pillow knows more, some of which start programs
MODES = {1: "L", 3: "RGB"}  # of Pillow, by channels
MADE_UINT8 = {  # what makes pixels of other numbers, by their type or its kind
    "uint16": "; of 16 bits, (x >> 8).astype(numpy.uint8)",
    "f": "; of 0 to 1, (x * 255).round().astype(numpy.uint8)",
    "i": "; of 0 to 255, x.astype(numpy.uint8)",
    "u": "; of 0 to 255, x.astype(numpy.uint8)",
}
GREY = (19595, 38470, 7471)  # of red, green and blue, of 65536: as Pillow makes colours grey

# A path, an open file or the bytes of an image file; pixels of uint8, (height, width) or (height, width, 1 or 3);
# an image of Pillow's.
Source: TypeAlias = Union[
    str, "os.PathLike[str]", IO[bytes], bytes, bytearray, memoryview, NDArray[np.uint8], "Picture"
]


class BadImageError(UserError):
    """Why something is no image that can be taken."""


class Crop(NamedTuple):
    """Where in the image the part is that is taken, 0 to 1 (0.5: the middle), and whether it is mirrored."""

    top: float = 0.5
    left: float = 0.5
    flip: bool = False


def read_pixels(
    source: Source,
    shape: tuple[int, int, int],
    share: float = 1.0,
    crop: Crop = Crop(),  # noqa: B008 a tuple is no trap
) -> NDArray[np.uint8]:
    """Pixels (channels, height, width) of an image: a part of the proportions of `shape`, resized to it.

    share   how large the part is, of the largest that fits

    Only the part is resized, straight from the image. An array that is to be taken as it stands needs no Pillow.
    Raises BadImageError.
    """
    channels, height, width = shape
    mode = mode_of(channels)
    if isinstance(source, np.ndarray):
        source = _coloured(_pixels_of(source), channels)
        if source.shape[:2] == (height, width) and share == 1 and not crop.flip:
            return np.array(source.reshape(height, width, channels).transpose(2, 0, 1), order="C")
    from PIL import Image

    image = _picture(source, mode, 2 * max(width, height))
    if not image.width * image.height:
        raise _nothing_in(image.width, image.height)
    zoom = share * min(image.width / width, image.height / height)
    left, top = (image.width - zoom * width) * crop.left, (image.height - zoom * height) * crop.top
    right, bottom = left + zoom * width, top + zoom * height
    # Floats may round to a little outside of the image.
    left, top, right, bottom = max(left, 0.0), max(top, 0.0), min(right, image.width), min(bottom, image.height)
    # One side after the other, in two calls: in one, versions of Pillow differ in which comes first, and in bits.
    across = image.resize((width, image.height), Image.Resampling.BILINEAR, (left, 0, right, image.height))
    part = across.resize((width, height), Image.Resampling.BILINEAR, (0, top, width, bottom))
    if crop.flip:
        part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = np.asarray(part).reshape(height, width, channels)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _picture(source: Source, mode: str, enough: int) -> Picture:
    """The whole image in this mode, turned as its EXIF says. Of a large JPEG file smaller versions are `enough`."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    if isinstance(source, np.ndarray):
        return Image.fromarray(np.ascontiguousarray(source))
    try:
        if isinstance(source, Image.Image):
            return as_pixels(ImageOps.exif_transpose(source), mode)
        with _opened(source) as content, Image.open(content, formats=FORMATS) as file:
            # Of a JPEG that is far too large a smaller version is decoded, still twice as large as needed, however
            # it is turned then.
            file.draft(mode, (enough, enough))
            ImageOps.exif_transpose(file, in_place=True)
            return as_pixels(file, mode)
    except UnidentifiedImageError:
        raise BadImageError("not an image of a known kind, or empty") from None
    except BadImageError:
        raise
    except FileNotFoundError:
        raise BadImageError("no such file") from None
    except IsADirectoryError:
        raise BadImageError("a folder, not a file") from None
    except Exception as error:  # noqa: BLE001 a damaged image has many ways to say so
        said = getattr(error, "strerror", None) or str(error)
        raise BadImageError(" ".join(said.split()) or type(error).__name__) from None


def _opened(source: Any) -> AbstractContextManager[IO[bytes]]:
    """The source, open; whoever gave us one that is open closes it. Raises BadImageError."""
    if isinstance(source, bytes | bytearray | memoryview):
        return io.BytesIO(source)
    if isinstance(source, io.TextIOBase):
        raise BadImageError("it is open as text: open it as bytes, with 'rb'")
    if source == "":  # a Path makes the folder that we are in of it
        raise BadImageError("an empty text is no name of a file")
    if isinstance(source, str | os.PathLike):
        return open_regular(user_path(source))
    if hasattr(source, "read"):
        return nullcontext(source)
    how = ": use x.numpy(), of (height, width, channels)" if hasattr(source, "numpy") else ""
    kinds = "a path, bytes, an open file, an array or an image of Pillow's"
    raise BadImageError(f"{kinds} is expected, not {type(source).__name__}{how}")


def _pixels_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The array, (height, width) or (height, width, 3); raises BadImageError if it is no image."""
    if array.dtype != np.uint8:
        how = MADE_UINT8.get(array.dtype.name, MADE_UINT8.get(array.dtype.kind, ""))
        raise BadImageError(f"pixels must be uint8, from 0 to 255, not {array.dtype}{how}")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim != 2 and not (array.ndim == 3 and array.shape[2] == 3):
        if array.ndim == 3 and array.shape[2] == 4:
            how = ": leave the fourth channel out with x[:, :, :3]"
        else:
            how = ": x.transpose(1, 2, 0) makes it so" if array.ndim == 3 and array.shape[0] in MODES else ""
        raise BadImageError(
            f"an image must be (height, width), grey, or (height, width, 3), RGB, not {array.shape}{how}"
        )
    if not array.size:
        raise _nothing_in(array.shape[1], array.shape[0])
    return array


def _nothing_in(width: int, height: int) -> BadImageError:
    return BadImageError(f"it has {width} x {height} pixels: there is nothing in it")


def _coloured(pixels: NDArray[np.uint8], channels: int) -> NDArray[np.uint8]:
    """The pixels as (height, width) for one channel, (height, width, 3) for three; as Pillow does it."""
    if channels == 3 and pixels.ndim == 2:
        return np.repeat(pixels[:, :, None], 3, axis=2)
    if channels == 1 and pixels.ndim == 3:
        return ((pixels.astype(np.uint32) @ np.array(GREY, np.uint32) + 0x8000) >> 16).astype(np.uint8)
    return pixels


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
    made: NDArray[np.float32] = pixels.astype(np.float32)  # and no second one of its size: it may be very large
    made /= np.float32(255)
    made -= centre
    made /= spread
    return made
