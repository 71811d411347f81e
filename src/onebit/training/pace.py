"""Outcomes of updates on their way to being numbers, and how fast they come."""

from __future__ import annotations

import time

import torch

from onebit.training.learner import Outcome


class Pace:
    """Gathers the outcomes of updates, which on an accelerator are not worth waiting for one by one."""

    def __init__(self, device: torch.device) -> None:
        self.every = 1 if device.type == "cpu" else 20
        self.outcomes: list[Outcome] = []
        self.images, self.images_per_s, self.seconds = 0, 0.0, 0.0  # of the last look
        self._waiting = 0
        self.begun = time.perf_counter()

    def add(self, outcome: Outcome, images: int) -> None:
        """One more update."""
        self.outcomes.append(outcome)
        self._waiting += images

    def is_due(self) -> bool:
        """Whether it is time to look at them."""
        return len(self.outcomes) >= self.every

    def take(self) -> list[list[float]]:
        """The numbers (L_S, L_P, correct) of each update since the last call."""
        numbers: list[list[float]] = torch.stack(
            [torch.stack([t.float() for t in o]) for o in self.outcomes]
        ).tolist()
        now = time.perf_counter()
        self.seconds = now - self.begun
        self.images, self._waiting = self._waiting, 0
        speed = self.images / self.seconds
        self.images_per_s = 0.9 * self.images_per_s + 0.1 * speed if self.images_per_s else speed
        self.outcomes, self.begun = [], now
        return numbers
