"""One process or many: which of them this is, and what they tell each other."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn

from onebit.errors import UserError
from onebit.training.rendezvous import join_group


class Processes:
    """The processes that torchrun started, or this one alone; a context that ends their connection."""

    def __init__(self, device: str = "auto") -> None:
        self.rank, self.count = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.device = _device(device, int(os.environ.get("LOCAL_RANK", "0")))
        if self.count > 1:
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)
            join_group("nccl" if self.device.type == "cuda" else "gloo", self.rank, self.count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        # After an error the others may be in the middle of an exchange: to wait for them would be to hang.
        if self.count > 1 and kind is None:
            dist.destroy_process_group()

    @property
    def writes(self) -> bool:
        """Whether this is the one process that writes files and speaks."""
        return self.rank == 0

    def sums(self, *numbers: float) -> list[float]:
        """Each number, summed over the processes."""
        if self.count == 1:
            return [float(number) for number in numbers]
        together = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(together)
        return together.tolist()

    def union(self, names: set[str]) -> set[str]:
        """All names that some process has."""
        if self.count == 1:
            return names
        everyone: list[Any] = [None] * self.count
        dist.all_gather_object(everyone, sorted(names))
        return {name for own in everyone for name in own}

    def wait(self) -> None:
        """Until every process is here."""
        self.sums(0.0)

    def share_buffers(self, net: nn.Module) -> None:
        """Give every process the writer's buffers: each has seen other batches with its batch norms."""
        if self.count > 1:
            for buffer in net.buffers():
                dist.broadcast(buffer, 0)


def _device(name: str, local_rank: int) -> torch.device:
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    here = {"cpu"} if found is None else {"cpu", found.type}
    if name == "auto":
        name = "cpu" if found is None else found.type
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in here:
        raise UserError(f"--device {name}: here there is {' and '.join(sorted(here))}")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", local_rank)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"--device {device}: there are {torch.cuda.device_count()}; start no more processes than that"
        )
    return device
