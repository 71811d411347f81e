"""What a sample becomes depends on seed, epoch and its row, and on nothing else."""

import numpy as np
import pytest

from data_files import image_folder
from onebit.data.catalog import load_data
from onebit.data.keyed import Stream, draw, shuffled
from onebit.data.splits import ArraySplit, Pass, _crops


def split(count=40, side=32, pad=4, padding="reflect", flip=True):
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (count, 3, side, side), dtype=np.uint8)
    return ArraySplit(images, np.arange(count), pad, padding, flip)


def augmented(data, rows, seed=0, epoch=0):
    return next(iter(data.batches([np.array(rows)], Pass(seed, epoch)))).images.numpy()


@pytest.mark.parametrize(("padding", "mode"), [("reflect", "reflect"), ("edge", "edge")])
@pytest.mark.parametrize(("side", "pad", "flip"), [(32, 4, True), (8, 1, False), (5, 2, True)])
def test_each_result_is_a_crop_of_the_padded_image(padding, mode, side, pad, flip):
    """Judged by NumPy's own padding and by trying all crops."""
    data = split(30, side, pad, padding, flip)
    seen = set()
    for row, found in enumerate(augmented(data, np.arange(30))):
        padded = np.pad(data.images[row], ((0, 0), (pad, pad), (pad, pad)), mode=mode)
        candidates = {}
        for top in range(2 * pad + 1):
            for left in range(2 * pad + 1):
                crop = padded[:, top : top + side, left : left + side]
                candidates[top, left, False] = crop
                if flip:
                    candidates[top, left, True] = crop[:, :, ::-1]
        matches = [key for key, crop in candidates.items() if np.array_equal(crop, found)]
        assert matches, f"row {row} is no crop"
        seen.update(matches)
    assert len(seen) > 5


def test_all_crops_and_both_flips_are_equally_frequent():
    rows = np.arange(81_000)
    top = draw(Stream.TOP, 3, 7, rows) % np.uint64(9)
    left = draw(Stream.LEFT, 3, 7, rows) % np.uint64(9)
    flip = draw(Stream.FLIP, 3, 7, rows) % np.uint64(2)
    cells = np.bincount((top * np.uint64(9) + left).astype(np.int64), minlength=81)
    assert len(cells) == 81
    assert abs(cells - 1000).max() < 160  # 5 deviations
    assert abs(int(flip.sum()) - 40_500) < 720
    for one, other in ((top, left), (top, flip), (left, flip)):
        assert abs(np.corrcoef(one.astype(float), other.astype(float))[0, 1]) < 0.018


def drawn_for_arrays(chosen):
    """Which of many images are mirrored: without padding there is nothing else to draw."""
    data = split(400, 6, 0)
    found = next(iter(data.batches([np.arange(400)], chosen))).images.numpy()
    mirrored = (found == data.images[..., ::-1]).all(axis=(1, 2, 3))
    assert (mirrored | (found == data.images).all(axis=(1, 2, 3))).all()
    return mirrored


def drawn_for_folders(what):
    return lambda chosen: np.array([getattr(crop, what) for crop in _crops(np.arange(400), chosen)])


@pytest.mark.parametrize(
    "drawn",
    [drawn_for_arrays, *map(drawn_for_folders, ("flip", "top", "left"))],
    ids=["mirrored", "flip", "top", "left"],
)
def test_half_of_the_images_and_others_in_each_epoch(drawn):
    first = drawn(Pass(0, 0)) < 0.5
    assert 140 < first.sum() < 260  # 6 deviations
    for other in (Pass(0, 1), Pass(1, 0)):
        assert 140 < (first != (drawn(other) < 0.5)).sum() < 260
    assert np.array_equal(first, drawn(Pass(0, 0)) < 0.5)


def test_crops_and_flips_of_files_are_drawn_apart():
    related = np.corrcoef(np.array(_crops(np.arange(4000), Pass(0, 0)), float).T)
    assert np.abs(related - np.eye(3)).max() < 0.08  # 5 deviations


def test_a_sample_does_not_depend_on_its_batch():
    data = split()
    whole = augmented(data, np.arange(40), 5, 2)
    order = np.random.default_rng(0).permutation(40)
    for part in np.array_split(order, 7):
        assert np.array_equal(augmented(data, part, 5, 2), whole[part])


def test_seed_and_epoch_change_it():
    data = split()
    first = augmented(data, np.arange(40), 0, 0)
    assert not np.array_equal(first, augmented(data, np.arange(40), 0, 1))
    assert not np.array_equal(first, augmented(data, np.arange(40), 1, 0))


def test_order_is_a_permutation_and_new_in_each_epoch():
    rows = np.arange(1000) * 3
    orders = [shuffled(Stream.ORDER, 0, epoch, rows) for epoch in range(5)]
    for order in orders:
        assert np.array_equal(np.sort(order), rows)
    assert all((a == b).mean() < 0.02 for i, a in enumerate(orders) for b in orders[:i])
    assert (orders[0] == rows).mean() < 0.02


def test_numbers_stay_what_they_are():
    """A run that is resumed with a later version draws the same: these numbers may not change."""
    assert draw(Stream.ORDER, 0, 0, [0, 1]).tolist() == GOLDEN[0]
    assert draw(Stream.FLIP, 2**63 - 1, 199, 1_281_166).tolist() == GOLDEN[1]


GOLDEN = ([2391539541053276776, 3048674281419798293], [13626656253620129213])


@pytest.mark.parametrize("workers", [1, 2])
def test_folders_are_the_same_whatever_the_number_of_workers(tmp_path, workers):
    image_folder(tmp_path, train=6)
    rows = [np.arange(9), np.arange(9, 18)]
    alone, several = (load_data("imagenet", str(tmp_path), image_size=16, workers=w) for w in (0, workers))
    for epoch in (0, 1):
        pairs = zip(
            alone.train.batches(rows, Pass(0, epoch)), several.train.batches(rows, Pass(0, epoch)), strict=True
        )
        for one, other in pairs:
            assert one.images.equal(other.images)
            assert one.labels.equal(other.labels)
    plain = next(iter(alone.train.batches(rows[:1]))).images
    assert not plain.equal(next(iter(alone.train.batches(rows[:1], Pass(0, 0)))).images)
