"""What a worker is asked to do; and, by its side, what it has to offer."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from onebit.peers.runner import CannotRunError, Runner, Ways
from onebit.runnable import Floats

__all__ = ["INT8_FILES", "CannotRunError", "Floats", "Job", "Runner", "Ways"]
# What the quantiser of ONNX Runtime leaves in the folder of a case, for OpenVINO, too: by what they have in 8 bits.
INT8_FILES = {"convolutions only": "int8-convolutions.onnx", "every operation": "int8-all.onnx"}


class Job(NamedTuple):
    """What a peer is asked to run.

    file     the .onebit file
    images   (N, channels, height, width), N a multiple of batch; for calibration, too
    folder   for files that one worker leaves to others, or to the next run
    engine   of onebit: None for its own choice
    threads  of a call
    """

    file: Path
    batch: int
    images: Floats
    folder: Path
    engine: str | None = None
    threads: int = 1
