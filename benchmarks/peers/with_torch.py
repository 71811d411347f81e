"""PyTorch, eager and as a frozen graph."""

from __future__ import annotations

from onebit.modelfile import read_model
from onebit.peers import torch_net

from .runner import Job, Ways


def fp32(job: Job) -> Ways:
    """The net in 32-bit floats."""
    return torch_net.ways(read_model(job.file), job.images[: job.batch], job.threads)
