"""`--budget cpu` and `smoke`: what becomes of a recipe, of the second stage and of short schedules, too."""

import pytest

from onebit.training.recipes import resolve


@pytest.fixture
def recipe(tmp_path):
    """A recipe of one's own, by its keys."""

    def written(**keys):
        file = tmp_path / "mine.toml"
        file.write_text("".join(f"{key} = {value}\n" for key, value in keys.items()))
        return str(file)

    return written


@pytest.mark.parametrize(("asked", "taken"), [(256, 64), (64, 64), (16, 16)])
def test_batches_of_the_smallest_budget_are_never_larger_than_asked(recipe, asked, taken):
    assert resolve(recipe(batch_size=asked), "smoke", {}).batch_size == taken


TWO_STAGES = {"two_stage": "true", "activation_bits": 1}


@pytest.mark.parametrize(("budget", "stages"), [("paper", (60, 50)), ("cpu", (6, 5)), ("smoke", (1, None))])
def test_a_second_stage_is_as_much_shorter_as_the_first(recipe, budget, stages):
    config = resolve(recipe(epochs=60, stage2_epochs=50, **TWO_STAGES), budget, {})
    assert (config.epochs, config.stage2_epochs) == stages


def test_no_part_of_a_schedule_is_nothing(recipe):
    """A tenth of few epochs would be none of them."""
    config = resolve(recipe(epochs=6, stage2_epochs=9, milestones=[2, 4, 18], **TWO_STAGES), "cpu", {})
    assert (config.epochs, config.stage2_epochs, config.milestones) == (2, 2, (1, 2))
    assert config.warmup_epochs == pytest.approx(0.2), "a tenth of the epochs, where that is less than one"
