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


def test_each_stage_has_a_warm_up_and_a_cosine_of_its_own_length():
    keys = {"two_stage": True, "activation_bits": 1, "sched": "cosine", "warmup_epochs": 2}
    for epochs, second, warm in ((8, 2, 4), (2, 8, 8)):
        config = small_config(**keys, epochs=epochs, stage2_epochs=second)
        rates = [factor(config, stages(config)[1], step // 4, step % 4, 4) for step in range(4 * second)]
        assert rates[:warm] == pytest.approx([(step + 1) / (warm + 1) for step in range(warm)])
        falling = 4 * second - warm
        assert rates[warm:] == pytest.approx(
            [(1 + math.cos(math.pi * step / falling)) / 2 for step in range(falling)]
        )
