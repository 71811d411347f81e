"""Warm restarts: cosines, each longer than the one before, number by number."""

import math

import pytest

from onebit.training.schedule import factor, stages
from training_runs import small_config

STEPS = 4  # of an epoch


@pytest.mark.parametrize("warmup", [0, 1])
@pytest.mark.parametrize("growth", [1, 2])
def test_every_cosine_is_as_long_as_it_is_said(growth, warmup):
    config = small_config(
        sched="restarts", epochs=20, restart_epochs=2, restart_factor=growth, warmup_epochs=warmup, lr=0.1
    )
    (stage,) = stages(config)
    found = [factor(config, stage, epoch, step, STEPS) for epoch in range(20) for step in range(STEPS)]
    expected = [(number + 1) / (warmup * STEPS + 1) for number in range(warmup * STEPS)]
    length = 2 * STEPS
    while len(expected) < len(found):
        expected += [(1 + math.cos(math.pi * step / length)) / 2 for step in range(length)]
        length *= growth
    assert found == pytest.approx(expected[: len(found)], rel=1e-12)
    assert found[warmup * STEPS] == found[(warmup + 2) * STEPS] == 1
