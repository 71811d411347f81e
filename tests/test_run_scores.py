"""Scores that a run tells: of which images, and in which of its stages; what it keeps, and when."""

import json
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data_files import cifar10_binary
from onebit.errors import UserError
from onebit.training import loop, pace
from onebit.training.config import Config
from onebit.training.evaluation import Accuracy
from onebit.training.learner import Learner, Outcome
from onebit.training.loop import Loop, divide
from onebit.training.nets import read_weights
from onebit.training.session import changed_keys
from training_runs import records, small_config, small_run

TWO_STAGES = {"activation_bits": 1, "two_stage": True, "epochs": 1, "stage2_epochs": 2}


def test_each_score_is_of_its_own_images(tmp_path, monkeypatch):
    held_out, test = Accuracy(60.0, 90.0, 0.5, 40), Accuracy(50.0, 80.0, 0.75, 200)
    monkeypatch.setattr(
        Loop, "_evaluate", lambda self, net, split, rows: test if split is self.data.test else held_out
    )
    small_run(tmp_path, epochs=1, test_every=1)
    (epoch,), (final,) = records(tmp_path, "epoch"), records(tmp_path, "final")
    of_test = {"test_top1": 50.0, "test_top5": 80.0, "test_loss": 0.75}
    assert epoch.items() >= (of_test | {"held_out_top1": 60, "held_out_top5": 90, "held_out_loss": 0.5}).items()
    assert final.items() >= of_test.items()
    summary = json.loads((tmp_path / "summary.json").read_text())
    expected = {"held_out_top1": 60.0, "best_held_out_top1": 60.0, "best_epoch": 1, "test_images": 200}
    assert summary.items() >= (of_test | expected).items()


def test_weights_that_are_kept_say_their_stage(tmp_path):
    small_run(tmp_path, keep_every=1, **TWO_STAGES)
    kept = {path.name: read_weights(path).spec.net.activation_bits for path in tmp_path.glob("*epoch*.safetensors")}
    of_second = {f"stage2-epoch000{epoch}.safetensors": 1 for epoch in (1, 2)}
    assert kept == {"stage1-epoch0001.safetensors": 32} | of_second


def test_a_run_that_stops_in_its_second_stage_names_the_epoch_of_that(tmp_path, monkeypatch):
    def explode(config, stage, epoch, step, steps):
        return 1e25 if (stage.activation_bits, epoch, step) == (1, 1, 4) else 0.1

    monkeypatch.setattr(loop, "factor", explode)
    with pytest.raises(UserError, match=r"stopped at step 15 \(epoch 2, .* the last checkpoint is whole"):
        small_run(tmp_path, **TWO_STAGES)


@pytest.mark.parametrize(
    ("images", "limit", "held"), [(1348, 0, 134), (60_000, 0, 5000), (49_999, 0, 4999), (60_000, 1000, 100)]
)
def test_a_tenth_is_held_out_and_never_more_than_5000(images, limit, held):
    data = SimpleNamespace(train=SimpleNamespace(labels=np.zeros(images)), test=SimpleNamespace(labels=np.zeros(9)))
    train, held_out, _ = divide(small_config(hold_out="auto", limit_images=limit), data)
    assert (len(train), len(held_out)) == ((limit or images) - held, held)


def test_every_ten_minutes_a_run_is_saved(tmp_path, monkeypatch):
    """By a clock that goes on by four minutes at every look."""
    minutes, saves, save = iter(range(0, 10_000, 4)), [], Loop._save

    def noting(self, files=None):
        saves.append(self.position.step)
        save(self, files)

    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: 60 * next(minutes)))
    monkeypatch.setattr(Loop, "_save", noting)
    small_run(tmp_path, epochs=1)
    assert saves == [3, 0, 0], "within the epoch, at its end, at the end of the run"


def test_the_environment_of_a_run_is_what_it_ran_in(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/bin/onebit", "train", "--width", "2"])
    monkeypatch.setattr(os, "cpu_count", lambda: 77)
    small_run(tmp_path, epochs=1, threads=1)
    told = json.loads((tmp_path / "environment.json").read_text())
    expected = {"command": sys.argv, "threads": 1, "cores": 77, "processes": 1, "device": "cpu"}
    assert told.items() >= expected.items()


def test_what_may_be_another_when_a_run_goes_on():
    """Where things are and what is shown of them; nothing that changes what comes of it."""
    free = {
        "data_dir": "/d", "teacher": "/t", "initial_checkpoint": "/i", "workers": 0, "on_bad_image": "skip",
        "device": "cpu", "threads": 2, "test_every": 3, "checkpoint_minutes": 1, "checkpoint_steps": 4,
        "keep_every": 2, "tensorboard": True,
    }  # fmt: skip
    assert changed_keys(Config(), Config(**free)) == []
    kept = {
        "amp": "bfloat16", "seed": 1, "hold_out": 0, "channels_last": True, "sync_bn": True, "bn_batches": 1,
        "smoothing": 0.1, "limit_images": 5, "image_size": 32, "batch_size": 64, "distill_weight": 0.1,
    }  # fmt: skip
    assert sorted(changed_keys(Config(), Config(**kept))) == sorted(kept)


def test_a_teacher_of_images_of_another_size(tmp_path):
    small_run(tmp_path / "teacher", epochs=1, method="float")
    cifar10_binary(tmp_path / "data", count=100)
    keys = {"data": "cifar10", "data_dir": str(tmp_path / "data"), "teacher": str(tmp_path / "teacher")}
    told = r"its net is for 10 classes of images \(1, 8, 8\), the data has 10 of \(3, 32, 32\)"
    with pytest.raises(UserError, match=told):
        small_run(tmp_path / "run", epochs=1, **keys)
    assert not (tmp_path / "run").exists()


def test_how_fast_it_goes_is_told_evenly(monkeypatch):
    """Nine parts of what was told before and one of the newest; of the images since the last look."""
    now = SimpleNamespace(seconds=5.0)
    monkeypatch.setattr(pace, "time", SimpleNamespace(perf_counter=lambda: now.seconds))
    outcome = Outcome(*map(torch.tensor, (1.0, 0.5, 3)))
    for device, updates in (("cpu", 1), ("cuda", 20)):
        told = pace.Pace(torch.device(device))
        for images, seconds, speed in ((40, 2, 20), (120, 2, 0.9 * 20 + 0.1 * 60)):
            for update in range(updates):
                assert not told.is_due(), f"{device}: after {update} updates"
                told.add(outcome, images // updates)
            assert told.is_due()
            now.seconds += seconds
            assert told.take() == [[1.0, 0.5, 3.0]] * updates
            assert (told.images, told.seconds, told.images_per_s) == (images, seconds, pytest.approx(speed))


@pytest.mark.parametrize("held", [40, 41])
def test_all_images_can_not_be_held_out(held):
    data = SimpleNamespace(train=SimpleNamespace(labels=np.zeros(40)), test=SimpleNamespace(labels=np.zeros(9)))
    with pytest.raises(UserError, match=f"--hold-out {held}: there are only 40 training images"):
        divide(small_config(hold_out=held, limit_images=0), data)


def test_the_time_of_training_is_that_of_all_epochs(tmp_path):
    summary = small_run(tmp_path, epochs=3)
    epochs = records(tmp_path, "epoch")
    seconds = np.cumsum([160 / epoch["images_per_s"] for epoch in epochs])  # of 160 images each
    assert [epoch["training_seconds"] for epoch in epochs] == pytest.approx(seconds)
    assert summary["training_seconds"] == round(epochs[-1]["training_seconds"], 1)


def test_a_teacher_does_not_learn(tmp_path, monkeypatch):
    """Its norms go by what they have seen, and see nothing new."""
    small_run(tmp_path / "teacher", epochs=1, method="float")
    before, teachers, update = read_weights(tmp_path / "teacher").tensors, [], Learner.update

    def noting(self, *words):
        teachers.append(self.teacher)
        return update(self, *words)

    monkeypatch.setattr(Learner, "update", noting)
    small_run(tmp_path / "run", epochs=1, teacher=str(tmp_path / "teacher"))
    assert not any(module.training for module in teachers[-1].modules())
    assert not any(parameter.requires_grad for parameter in teachers[-1].parameters())
    assert all(tensor.equal(before[name]) for name, tensor in teachers[-1].state_dict().items())
