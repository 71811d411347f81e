"""The learning rate as a function of how far the run is, with no state of its own."""

from __future__ import annotations

import math
from typing import NamedTuple

from onebit.training.config import Config


class Stage(NamedTuple):
    """A run has one stage, or two: first with 32-bit inputs, then with signs."""

    activation_bits: int | None  # None: the method's own
    epochs: int
    lr: float
    lr_w: float
    milestones: tuple[float, ...]


def stages(config: Config) -> list[Stage]:
    """The stages of a run. The second begins from half the learning rate, as the paper has it."""
    lr_w = config.lr / 10 if config.lr_w is None else config.lr_w
    only = Stage(config.activation_bits, config.epochs, config.lr, lr_w, tuple(map(float, config.milestones)))
    if not config.two_stage:
        return [only]
    lr = config.lr / 2 if config.stage2_lr is None else config.stage2_lr
    epochs = config.stage2_epochs or config.epochs
    milestones = tuple(milestone * epochs / config.epochs for milestone in config.milestones)
    return [only._replace(activation_bits=32), Stage(1, epochs, lr, lr_w * lr / config.lr, milestones)]


def factor(config: Config, stage: Stage, epoch: int, step: int, steps: int) -> float:
    """By what the learning rates are multiplied for update `step` (from 0) of the `steps` of an epoch (from 0)."""
    warm = min(config.warmup_epochs, stage.epochs / 2) * steps
    done = epoch * steps + step
    if done < warm:
        return (done + 1) / (warm + 1)
    if config.sched == "cosine":
        whole = stage.epochs * steps
        return 0.5 * (1 + math.cos(math.pi * (done - warm) / (whole - warm)))
    if config.sched == "restarts":
        since, length = done - warm, float(config.restart_epochs * steps)
        while since >= length:
            since, length = since - length, length * config.restart_factor
        return 0.5 * (1 + math.cos(math.pi * since / length))
    return float(config.decay_rate ** sum(epoch >= milestone for milestone in stage.milestones))
