"""The numbers of a run, computed by hand: losses and scores, bits that turn, rates, order, what is best."""

import json
from itertools import chain

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from data_files import cifar10_binary, cifar100
from onebit.data.catalog import load_data
from onebit.data.keyed import Stream, shuffled
from onebit.data.splits import ArraySplit, Pass
from onebit.training.evaluation import Accuracy
from onebit.training.learner import Learner
from onebit.training.loop import Loop
from onebit.training.nets import read_weights
from onebit.training.watching import TensorBoard
from training_runs import records, small_run


def losses(logits, labels):
    """Cross entropy of each image, in NumPy."""
    logits = logits.double().numpy()
    return np.log(np.exp(logits).sum(axis=1)) - logits[range(len(labels)), labels]


def test_the_records_of_epochs(tmp_path, monkeypatch):
    """From what the net said of every training image, and from the weights that every epoch left."""
    said = []
    update = Learner.update

    def spied(self, images, labels, *rest):
        hook = self.net.register_forward_hook(lambda _, __, logits: said.append((logits.detach().clone(), labels)))
        outcome = update(self, images, labels, *rest)
        hook.remove()
        said[-1] += (float(outcome.loss_p),)
        return outcome

    monkeypatch.setattr(Learner, "update", spied)
    rates = {"sched": "step", "milestones": (1,), "decay_rate": 0.5, "warmup_epochs": 0}
    # Of 170 rows an epoch sees 160, 5 batches of 32.
    small_run(tmp_path, epochs=3, keep_every=1, limit_images=210, lr=0.05, lr_w=0.02, **rates)
    epochs = records(tmp_path, "epoch")
    assert len(epochs) == 3
    assert len(said) == 3 * 5
    weights = [load_file(tmp_path / f"epoch{number:04d}.safetensors") for number in (1, 2, 3)]
    for number, epoch in enumerate(epochs):
        ours = said[5 * number : 5 * number + 5]
        assert epoch["loss_s"] == pytest.approx(np.mean([losses(*each[:2]).mean() for each in ours]), rel=1e-5)
        assert epoch["loss_p"] == pytest.approx(np.mean([each[2] for each in ours]), rel=1e-5)
        right = sum(int((logits.argmax(1) == labels).sum()) for logits, labels, _ in ours)
        assert epoch["train_top1"] == pytest.approx(100 * right / 160)
        assert (epoch["lr"], epoch["lr_w"]) == pytest.approx((0.05, 0.02) if number < 1 else (0.025, 0.01))
        assert (epoch["epoch"], epoch["step"], epoch["stage"]) == (number + 1, 5 * number + 5, 1)
        if number:
            before, now = weights[number - 1 : number + 1]
            for kind, name in (("kernels", ".C"), ("projections", ".W")):
                learned = [key for key in now if key.endswith(name)]
                turned = sum(int(((before[key] >= 0) != (now[key] >= 0)).sum()) for key in learned)
                assert epoch[f"flipped_{kind}"] == turned / sum(now[key].numel() for key in learned)
    assert epochs[1]["flipped_kernels"] > 0
    assert len({epoch["train_top1"] for epoch in epochs}) > 1


def trained_order(monkeypatch, out, **keys):
    """The rows of each update, and what their augmentation was drawn of."""
    seen = []
    batches = ArraySplit.batches

    def spied(self, rows, augmented=None):
        if augmented is not None:
            seen.append((augmented, [chosen.tolist() for chosen in rows]))
        return batches(self, rows, augmented)

    with monkeypatch.context() as patch:
        patch.setattr(ArraySplit, "batches", spied)
        small_run(out, **keys)
    return seen


def test_the_order_of_images_is_that_of_the_seed(tmp_path, monkeypatch):
    first, again, other = (
        trained_order(monkeypatch, tmp_path / str(number), seed=seed, epochs=2)
        for number, seed in enumerate((3, 3, 4))
    )
    assert first == again
    everything = sorted(chain.from_iterable(first[0][1]))
    assert len(set(everything)) == 160
    orders = []
    for seed, run in ((3, first), (4, other)):
        for epoch, (augmented, rows) in enumerate(run):
            assert augmented == (seed, epoch)
            order = [*chain.from_iterable(rows)]
            assert sorted(order) == everything
            assert order == shuffled(Stream.ORDER, seed, epoch, np.array(everything)).tolist()
            orders.append(order)
    assert len({tuple(order) for order in orders}) == 4


def test_each_stage_has_its_own_order_and_its_own_best(tmp_path, monkeypatch):
    """With signs the net begins anew: what was best without them is not what the run is for."""
    scores = iter([70.0, 80.0, 30.0, 40.0, 40.0, 35.0, 55.0, 33.0])
    monkeypatch.setattr(Loop, "_evaluate", lambda *_: Accuracy(next(scores), 99.0, 1.0, 40))
    options = {"epochs": 2, "stage2_epochs": 4, "two_stage": True, "activation_bits": 1}
    seen = trained_order(monkeypatch, tmp_path, **options)
    assert [augmented.epoch for augmented, _ in seen] == [0, 1, 2, 3, 4, 5]
    assert len({str(rows) for _, rows in seen}) == 6
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["best_held_out_top1"], summary["best_epoch"]) == (40.0, 2)
    assert (summary["test_top1"], summary["held_out_top1"]) == (55.0, 33.0)
    assert read_weights(tmp_path, "best").spec.net.activation_bits == 1
    assert [record["held_out_top1"] for record in records(tmp_path, "epoch")] == [70, 80, 30, 40, 40, 35]
    assert [record["stage"] for record in records(tmp_path, "epoch")] == [1, 1, 2, 2, 2, 2]


def shifts(images, pad, mode):
    """Every crop of the padded images, by (top, left)."""
    height, width = images.shape[2:]
    padded = np.pad(images, ((0, 0), (0, 0), (pad, pad), (pad, pad)), mode=mode)
    places = [(top, left) for top in range(2 * pad + 1) for left in range(2 * pad + 1)]
    return np.stack([padded[:, :, top : top + height, left : left + width] for top, left in places])


def how_seen(split, pad, mode, seed=0):
    """Of each image: which crop it was, and whether it was mirrored."""
    rows = np.arange(len(split.labels))
    ((images, _),) = split.batches([rows], Pass(seed, 0))
    crops = shifts(split.images, pad, mode)
    plain = (crops == images.numpy()).all(axis=(2, 3, 4))
    mirrored = (crops[..., ::-1] == images.numpy()).all(axis=(2, 3, 4))
    assert (plain | mirrored).any(axis=0).all(), "an image that is no crop"
    return plain, mirrored


def test_digits_are_never_mirrored():
    plain, mirrored = how_seen(load_data("digits").train, 1, "edge")
    assert plain.any(axis=0).all()
    assert not mirrored.any(axis=0).all()
    assert plain.any(axis=1).all(), "every crop comes"


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_is_mirrored_half_of_the_time(tmp_path, name):
    if name == "cifar10":
        cifar10_binary(tmp_path, count=40)
    else:
        cifar100(tmp_path, "binary")
    data = load_data(name, str(tmp_path))
    plain, mirrored = how_seen(data.train, 4, "reflect")
    assert ((plain.sum(axis=0) + mirrored.sum(axis=0)) == 1).all()
    assert 0.3 < mirrored.any(axis=0).mean() < 0.7
    again = how_seen(data.train, 4, "reflect", seed=1)
    assert not np.array_equal(mirrored.any(axis=0), again[1].any(axis=0))
    rows = np.arange(5)
    ((images, labels),) = data.train.batches([rows])
    assert torch.equal(images, torch.from_numpy(data.train.images[rows])), "plain where nothing is augmented"
    assert labels.tolist() == data.train.labels[rows].tolist()


def test_tensorboard_keeps_the_step_of_the_checkpoint(tmp_path):
    """A run that goes on after step 2 draws anew what came after it, and only that."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for since, values in ((0, (1.0, 2.0, 3.0)), (2, (30.0, 40.0))):
        board = TensorBoard(tmp_path, since)
        for step, value in enumerate(values, start=since + 1):
            board.record({"kind": "epoch", "step": step, "loss_s": value})
        board.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    drawn = [(event.step, event.value) for event in events.Scalars("epoch/loss_s")]
    assert drawn == [(1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0)]
