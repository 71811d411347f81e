"""Pictures of binary kernels: a small square for each plane of each kernel, white for +1 and black for -1."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onebit.errors import UserError
from onebit.graph import Array
from onebit.modelfile import Model
from onebit.paths import shortened, write_whole
from onebit.weights import one_bit_layers, signs_of

SHOWN = 32  # kernels and planes of a layer, rows and columns of a kernel; all would be too large to look at
TAP = 6  # pixels
GREY = 128
LEGEND = f"white +1, black -1; a row for each kernel, a column for each input channel, the first {SHOWN} of each"


def draw_kernels(model: Model, folder: Path) -> list[Path]:
    """A PNG for each 1-bit convolution, named for it; a row for each kernel, a column for each plane."""
    from PIL import Image

    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: a file; the pictures need a folder")
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    drawn: dict[str, bytes] = {}  # by the first layer that has these kernels
    for node, first in one_bit_layers(model):
        # A file's text must not choose folders.
        plain = re.sub(r"[^\w.-]", "_", node.name).lstrip(".") or "layer"
        files.append(folder / f"{len(files):02d}-{shortened(plain)}.png")
        if first not in drawn:
            content = io.BytesIO()
            Image.fromarray(kernel_grid(signs_of(model, node))).save(content, "png")
            drawn[first] = content.getvalue()
        write_whole(files[-1], drawn[first])
    return files


def kernel_grid(weight: Array, shown: int = SHOWN, tap: int = TAP) -> NDArray[np.uint8]:
    """The pixels: kernels (out, planes, kh, kw) from -1 (black) to +1, the first of them; grey lines between.

    Of kernels that are larger than `SHOWN` a corner, since one may have a million taps.
    """
    weight = weight[:shown, :shown, :SHOWN, :SHOWN]
    tiles = (
        np.rint(127.5 * (weight.astype(np.float32) + 1)).astype(np.uint8).repeat(tap, axis=2).repeat(tap, axis=3)
    )
    tiles = np.pad(tiles, ((0, 0), (0, 0), (1, 0), (1, 0)), constant_values=GREY)
    out, planes, height, width = tiles.shape
    grid = tiles.transpose(0, 2, 1, 3).reshape(out * height, planes * width)
    return np.pad(grid, ((0, 1), (0, 1)), constant_values=GREY)
