"""The engine itself, as its peers are run."""

from __future__ import annotations

import numpy as np

from onebit.peers.runner import Runner, Ways
from onebit.runnable import Floats, Runnable


def ways(net: Runnable) -> Ways:
    """A net that is loaded, for images of either layout."""
    return {"channels first": lambda: Runner(net), "channels last": lambda: Runner(net, by_pixels)}


def by_pixels(images: Floats) -> Floats:
    """The same images, which lie in memory pixel by pixel."""
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
