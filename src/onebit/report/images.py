"""Arrays as pictures inside a page: PNG files in data addresses."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onebit.graph import Array
from onebit.report.text import escape

GAP = 1  # pixels between the parts of a strip
BLUE = (9, 105, 218)


def picture(pixels: NDArray[np.uint8], text: str, *, scale: float | None = None) -> str:
    """An image (height, width), or (height, width, 2: grey, opacity), or (height, width, 3); `scale`: its size in
    the page, in screen pixels for each of its own (None: as wide as there is room).
    """
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    data = base64.b64encode(file.getvalue()).decode()
    size = "100%" if scale is None else f"{scale * pixels.shape[1]:.0f}px"
    return (
        f'<img alt="{escape(text)}" title="{escape(text)}" style="width:{size}" src="data:image/png;base64,{data}">'
    )


def strip(maps: Sequence[Array], *, signs: bool = False) -> NDArray[np.uint8]:
    """Maps (height, width) side by side, each from its least number, black, to its largest; blue between."""
    tiles = []
    for each in maps:
        low, high = (-1.0, 1.0) if signs else (float(each.min()), float(each.max()))
        tile = np.zeros(each.shape) if high <= low else (each - low) / (high - low)
        grey = np.repeat((255 * tile).astype(np.uint8)[:, :, None], 3, axis=2)
        tiles += [grey, np.full((len(grey), GAP, 3), BLUE, np.uint8)]
    return np.concatenate(tiles[:-1], axis=1)


def shares(rows: Array) -> NDArray[np.uint8]:
    """Numbers of 0 to 1 (height, width) as opacity of one grey, which is seen on white and on black."""
    opacity = (255 * np.clip(rows, 0, 1)).astype(np.uint8)
    return np.stack([np.full_like(opacity, 128), opacity], axis=2)
