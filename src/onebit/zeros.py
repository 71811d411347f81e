"""Where sums that are exactly 0 decide bits: there an engine must keep them exactly 0, however it computes them.

Images have backgrounds of zeros, and convolutions make zeros of them. The sign of 0 is +1; if rounding made it a
little less, the bits of whole regions would turn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onebit.graph import Array, Node


def zeros_decide(nodes: Sequence[Node]) -> set[str]:
    """The nodes for which a bit, sooner or later, depends on what they make of zeros.

    A shift in every channel takes zeros away from 0; then only a threshold straight behind it can lie just there.
    """
    readers: dict[str, list[Node]] = {}
    for node in nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    found: set[str] = set()
    for node in reversed(nodes):
        made = _made_of_zeros(node)
        stays = not np.all(made)
        for reader in readers.get(node.name, ()):
            if reader.op == "threshold":
                decides = bool(np.any(reader.tensors["thresholds"] == made))
            elif reader.op == "sign":
                decides = stays
            else:
                decides = stays and reader.name in found
            if decides:
                found.add(node.name)
    return found


def _made_of_zeros(node: Node) -> Array:
    """A number for each channel, or one for all."""
    shift = node.tensors.get("shift" if node.op == "affine" else "bias")
    return np.zeros(1, np.float32) if shift is None else shift
