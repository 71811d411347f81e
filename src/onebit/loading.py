"""`onebit.load`: a model file, ready to run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from onebit.errors import UserError
from onebit.modelfile import read_model
from onebit.reference import Reference


def load(path: str | Path, *, engine: Literal["reference"] = "reference") -> Reference:
    """A net from a .onebit file, to be called with images: `logits = onebit.load("net.onebit")(images)`.

    images   float32, (N, channels, height, width), prepared as `net.model.preprocessing` says
    engine   'reference': the NumPy interpreter, exact and slow

    Needs no torch. A file that is not sound raises `onebit.ModelFileError`.
    """
    if engine != "reference":
        raise UserError(f"engine={engine!r}: use 'reference'")
    return Reference(read_model(path))
