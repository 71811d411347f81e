"""The order in which a run takes its images: by seed and epoch, counted on from one stage to the next."""

import numpy as np
import pytest

from onebit.data.splits import ArraySplit
from training_runs import small_run


@pytest.fixture
def orders(monkeypatch, tmp_path):
    """Runs, and what each epoch took, a row of images for each batch."""

    def of(name, **keys):
        taken = []
        batches = ArraySplit.batches

        def noted(split, rows, augmented=None):
            if augmented is not None:
                taken.append((tuple(augmented), np.stack(rows)))
            return batches(split, rows, augmented)

        with monkeypatch.context() as patch:
            patch.setattr(ArraySplit, "batches", noted)
            small_run(tmp_path / name, **keys)
        return taken

    return of


def test_every_epoch_and_every_seed_has_an_order_of_its_own(orders):
    first, again, other = orders("a", seed=1), orders("b", seed=1), orders("c", seed=2)
    assert [augmented for augmented, _ in first + other] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    epochs = [rows for _, rows in (*first, *other)]
    assert all(np.array_equal(one, two) for (_, one), (_, two) in zip(first, again, strict=True))
    for number, rows in enumerate(epochs):
        assert rows.shape == (5, 32)
        assert len(np.unique(rows)) == 5 * 32
        assert not any(np.array_equal(rows, before) for before in epochs[:number])


def test_a_second_stage_goes_on_with_epochs_that_were_not_drawn(orders):
    taken = orders("a", two_stage=True, activation_bits=1, epochs=1, stage2_epochs=2)
    assert [augmented for augmented, _ in taken] == [(0, 0), (0, 1), (0, 2)]
    assert not np.array_equal(taken[0][1], taken[1][1])
