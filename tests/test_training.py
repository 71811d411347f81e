"""Runs in this process: what they learn, what they keep, and how they go on."""

import json
import math
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import onebit
from data_files import image_folder
from onebit.data.catalog import load_data
from onebit.errors import UserError
from onebit.training.evaluation import evaluate
from onebit.training.interrupts import Interrupts
from onebit.training.learner import Learner
from onebit.training.loop import Interrupted, Loop, divide
from onebit.training.nets import build_trained, read_weights
from onebit.training.processes import Processes
from onebit.training.recipes import checked, read_recipe
from onebit.training.runfolder import RunFolder
from onebit.training.session import changed_keys, resumed_config, train
from training_runs import assert_same_run, call, records, small_config, small_flags, small_run


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def interrupt(monkeypatch, out, stop_at, **keys):
    """A run with a Ctrl-C that comes at update `stop_at`."""
    updates = []
    account = Loop._account

    def account_and_interrupt(self, pace, interrupts, epoch):
        updates.append(1)
        if len(updates) == stop_at:
            interrupts._receive(2, None)
        return account(self, pace, interrupts, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_account", account_and_interrupt)
        with pytest.raises(Interrupted):
            small_run(out, **keys)


def interrupted_run(monkeypatch, out, stop_at, **keys):
    """The same, and then --resume."""
    interrupt(monkeypatch, out, stop_at, **keys)
    return small_run(out, resume=True, **keys)


def test_a_run_learns_and_its_folder_says_so(tmp_path):
    summary = small_run(tmp_path, width=8, epochs=6, limit_images=1000, lr=0.05, hold_out=100)
    assert summary["test_top1"] > 50
    epochs = records(tmp_path, "epoch")
    assert len(epochs) == 6
    assert epochs[-1]["loss_s"] < epochs[0]["loss_s"] / 1.5
    for record in epochs:
        # How these are computed: test_run_numbers.py.
        assert {"loss_s", "loss_p", "train_top1", "lr", "lr_w", "images_per_s", "held_out_top1"} <= record.keys()
        assert 0 < record["flipped_kernels"] < 0.2
        assert 0 <= record["flipped_projections"] < 0.2
        assert record["loss_p"] > 0
    held = [record["held_out_top1"] for record in epochs]
    assert summary["best_held_out_top1"] == max(held) > held[0]
    assert summary["best_epoch"] == held.index(max(held)) + 1
    assert epochs[-1]["train_top1"] > epochs[0]["train_top1"] + 20
    assert [record["step"] for record in epochs] == [28 * n for n in range(1, 7)]  # of 900 images, 32 at a time
    assert (summary["updates"], summary["epochs"], summary["test_images"]) == (168, 6, 449)
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert checked(read_recipe(str(tmp_path / "config.toml"))).width == 8


def test_the_last_weights_are_those_that_were_tested(tmp_path):
    summary = small_run(tmp_path)
    net = build_trained(read_weights(tmp_path)).eval()
    data = load_data("digits")
    pixels = torch.from_numpy(data.test.images).float() / 255
    chosen = torch.from_numpy(_tested_rows(tmp_path))
    with torch.inference_mode():
        logits = net((pixels - data.mean[0]) / data.deviation[0])[chosen]
    labels = torch.from_numpy(data.test.labels)[chosen]
    assert 100 * (logits.argmax(1) == labels).float().mean().item() == pytest.approx(summary["test_top1"])
    top5 = (logits.topk(5).indices == labels[:, None]).any(1).float().mean().item()
    assert 100 * top5 == pytest.approx(summary["test_top5"])


def _tested_rows(out):
    with Processes("cpu") as processes:
        return Loop(small_config(), RunFolder(out / "none"), load_data("digits"), processes).test_rows


def test_held_out_images_are_not_trained_on(tmp_path):
    with Processes("cpu") as processes:
        loops = [
            Loop(
                small_config(limit_images=0, hold_out=h, seed=s),
                RunFolder(tmp_path),
                load_data("digits"),
                processes,
            )
            for h, s in (("auto", 0), ("auto", 7), (0, 0), (500, 0))
        ]
    for loop, held in zip(loops, (134, 134, 0, 500), strict=True):
        assert len(loop.held_rows) == held
        assert sorted([*loop.train_rows, *loop.held_rows]) == list(range(1348))
    assert loops[0].held_rows.tolist() == loops[1].held_rows.tolist()  # runs of other seeds compare


def test_a_limit_takes_images_from_everywhere():
    """Files come class by class: the first of them would be of one class."""
    data = SimpleNamespace(
        train=SimpleNamespace(labels=np.zeros(9000)), test=SimpleNamespace(labels=np.zeros(6000))
    )
    rows = [divide(small_config(limit_images=600, hold_out=200, seed=seed), data) for seed in (0, 1)]
    train, held, test = rows[0]
    assert not set(train) & set(held)
    for chosen, count, images in ((train, 400, 9000), (held, 200, 9000), (test, 600, 6000)):
        assert len(set(chosen)) == count
        per_third = np.bincount(chosen * 3 // images, minlength=3)
        assert np.abs(per_third - count / 3).max() < count / 6, per_third
    for one, other in zip(*rows, strict=True):
        assert one.tolist() == other.tolist()  # runs of other seeds compare


def test_without_held_out_images_there_is_no_best(tmp_path):
    summary = small_run(tmp_path, hold_out=0)
    assert summary["best_epoch"] is None
    assert not (tmp_path / "best.safetensors").exists()


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"channels_last": True, "width": 8},
        {"opt": "adamw", "lr": 0.01, "dropout": 0.3},
        {"projections": 2, "activation_bits": 1, "model_ema_decay": 0.9, "smoothing": 0.1, "clip_grad": 1.0},
        {"method": "float", "sched": "step", "milestones": (1,), "amp": "bfloat16"},
        {"method": "bwn", "kernel_rate": "authors", "activation_bits": 32},
        {"kernel_rate": 7.0, "decay_kernels": False},
    ],
    ids=lambda keys: "-".join(map(str, keys)) or "plain",
)
@pytest.mark.parametrize("stop_at", [2, 5, 7])  # 5 updates an epoch: in the middle, at the end, in the second
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, monkeypatch, keys, stop_at):
    small_run(tmp_path / "whole", **keys)
    interrupted_run(monkeypatch, tmp_path / "parts", stop_at, **keys)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_rate_of_kernels_reaches_the_update(tmp_path):
    """One update without decay: kernels move that many times as far, and all else as it would."""
    keys = {"epochs": 1, "batch_size": 160, "bn_batches": 0, "weight_decay": 0.0, "lam": 0.0, "sched": "step"}
    small_run(tmp_path / "0", **keys | {"lr": 1e-30, "lr_w": 0.0})
    for rate in ("1", "16"):
        small_run(tmp_path / rate, kernel_rate=rate, **keys)
    start, slow, fast = (read_weights(tmp_path / run).tensors for run in ("0", "1", "16"))
    kernels = {name for name in start if name.endswith(".C")}
    assert kernels
    for name in start:
        if name in kernels:
            moved = slow[name] - start[name]
            assert moved.any()
            assert (fast[name] - start[name]).allclose(16 * moved, rtol=1e-3, atol=1e-6), name
        else:
            assert fast[name].equal(slow[name]), name
    (record,) = records(tmp_path / "16", "epoch")
    assert (record["lr"], record["lr_w"]) == (0.1, pytest.approx(0.01))
    assert records(tmp_path / "1", "epoch")[0]["loss_s"] == record["loss_s"]


def test_with_adam_the_authors_rate_is_one(tmp_path):
    keys = {"epochs": 1, "method": "bwn", "opt": "adamw", "lr": 0.01}
    small_run(tmp_path / "plain", **keys)
    small_run(tmp_path / "authors", kernel_rate="authors", **keys)
    small_run(tmp_path / "ten", kernel_rate=10.0, **keys)
    assert_same_run(tmp_path / "plain", tmp_path / "authors")
    ten, plain = (read_weights(tmp_path / name).tensors for name in ("ten", "plain"))
    assert not all(ten[name].equal(plain[name]) for name in plain)


@pytest.mark.parametrize(("method", "decays"), [("bnn", False), ("pcnn", True)])
def test_decay_of_kernels_reaches_the_update(tmp_path, method, decays):
    """As the method's authors have it, or as it is asked for."""
    keys = {"method": method, "epochs": 1, "weight_decay": 0.1}
    small_run(tmp_path / "usual", **keys)
    for asked in (True, False):
        small_run(tmp_path / str(asked), decay_kernels=asked, **keys)
    assert_same_run(tmp_path / "usual", tmp_path / str(decays))
    usual, other = (read_weights(tmp_path / name).tensors for name in ("usual", str(not decays)))
    name = next(name for name in usual if name.endswith((".C", "conv1.weight")))
    assert not usual[name].equal(other[name])


def test_a_run_of_before_goes_on_as_it_began(tmp_path, monkeypatch):
    """Its config decays the kernels of BNN and knows no rate of kernels."""
    interrupt(monkeypatch, tmp_path / "old", 5, method="bnn", decay_kernels=True)
    config = tmp_path / "old" / "config.toml"
    lines = [line for line in config.read_text().splitlines() if not line.startswith("kernel_rate")]
    config.write_text("\n".join(lines))
    with pytest.raises(UserError, match="--decay-kernels False: the run in .* began with True"):
        resumed_config(tmp_path / "old", small_config(method="bnn"), {})
    config = resumed_config(tmp_path / "old", None, {})
    assert (config.kernel_rate, config.decay_kernels) == (1.0, True)
    train(config, tmp_path / "old", resume=True, quiet=True)
    small_run(tmp_path / "whole", method="bnn", decay_kernels=True)
    assert_same_run(tmp_path / "whole", tmp_path / "old")
    # For PCNN, whose authors decay C, nothing has changed.
    assert not changed_keys(small_config(decay_kernels=True), small_config())


def test_best_is_chosen_on_held_out_images_and_the_first_of_equals(tmp_path):
    """Judged anew from the weights that every epoch left."""
    small_run(tmp_path, epochs=4, keep_every=1, hold_out=40, width=4, lr=0.03)
    with Processes("cpu") as processes:
        config = small_config(epochs=4, hold_out=40, width=4)
        loop = Loop(config, RunFolder(tmp_path / "none"), load_data("digits"), processes)
        scores = [
            evaluate(
                build_trained(read_weights(tmp_path / f"epoch{epoch:04d}.safetensors")),
                loop.data.train,
                loop.held_rows,
                32,
                loop.feed,
                processes,
            ).top1
            for epoch in range(1, 5)
        ]
    assert len(set(scores)) > 1
    best = scores.index(max(scores)) + 1
    kept = load_file(tmp_path / "best.safetensors")
    assert all(t.equal(kept[n]) for n, t in load_file(tmp_path / f"epoch{best:04d}.safetensors").items())
    assert json.loads((tmp_path / "summary.json").read_text())["best_epoch"] == best


def test_time_makes_checkpoints_too(tmp_path, monkeypatch):
    saves = []
    save = Loop._save
    monkeypatch.setattr(
        Loop, "_save", lambda self, files=None: (saves.append(self.position.step), save(self, files))
    )
    small_run(tmp_path / "a", epochs=1, checkpoint_minutes=1e-9)
    assert saves == [1, 2, 3, 4, 0, 0]  # after each update, at the end of the epoch, at the end
    saves.clear()
    small_run(tmp_path / "b", epochs=1, checkpoint_minutes=0)
    assert saves == [0, 0]


def test_images_that_were_skipped_are_counted_over_interruptions(tmp_path, monkeypatch):
    image_folder(tmp_path / "images", classes=2, train=40, test=9)
    (tmp_path / "images" / "train" / "n00000000" / "train_3.JPEG").write_bytes(b"")
    (tmp_path / "images" / "val" / "n00000001" / "val_8.JPEG").write_bytes(b"")  # alone in its last batch
    keys = {"data": "imagefolder", "data_dir": str(tmp_path / "images"), "image_size": 16, "workers": 0, "width": 1}
    keys |= {"batch_size": 17, "limit_images": 0, "hold_out": 0, "on_bad_image": "skip"}
    summary = interrupted_run(monkeypatch, tmp_path / "run", 4, **keys)
    assert summary["skipped_images"] == 2
    assert summary["test_images"] == 17


def test_stages_draw_their_own_images(tmp_path, monkeypatch):
    drawn = []
    update = Learner.update

    def noting(self, images, labels, lr_factor, epoch, step):
        drawn.append(images.clone())
        return update(self, images, labels, lr_factor, epoch, step)

    monkeypatch.setattr(Learner, "update", noting)
    small_run(tmp_path, activation_bits=1, two_stage=True, epochs=1)
    assert len(drawn) == 10
    assert not any(first.equal(second) for first in drawn[:5] for second in drawn[5:])


@pytest.mark.parametrize("stop_at", [3, 10])
def test_two_stages_in_one_run(tmp_path, monkeypatch, stop_at):
    """First W1A32, then with signs from half the learning rate; and it can be interrupted anywhere."""
    keys = {"activation_bits": 1, "two_stage": True, "sched": "step", "milestones": (1,), "decay_rate": 0.5}
    small_run(tmp_path / "whole", **keys)
    epochs = records(tmp_path / "whole", "epoch")
    assert [(r["stage"], r["epoch"], r["lr"]) for r in epochs] == [
        (1, 1, 0.1), (1, 2, 0.05), (2, 1, 0.05), (2, 2, 0.025),
    ]  # fmt: skip
    assert [r["lr_w"] for r in epochs] == pytest.approx([0.01, 0.005, 0.005, 0.0025])
    assert read_weights(tmp_path / "whole" / "stage1.safetensors").spec.net.activation_bits == 32
    assert read_weights(tmp_path / "whole").spec.net.activation_bits == 1
    interrupted_run(monkeypatch, tmp_path / "parts", stop_at, **keys)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_the_second_stage_begins_with_the_first_ones_weights(tmp_path, decay):
    """With those that are kept of it: their running mean, if there is one."""
    keys = {"activation_bits": 1, "epochs": 1, "model_ema_decay": decay}
    small_run(tmp_path / "two", two_stage=True, stage2_lr=1e-30, lr_w=0.0, bn_batches=0, weight_decay=0.0, **keys)
    first, last = (load_file(tmp_path / "two" / f"{name}.safetensors") for name in ("stage1", "last"))
    for name, tensor in first.items():
        if not name.endswith(("running_mean", "running_var", "num_batches_tracked")):
            assert tensor.equal(last[name]), name


@pytest.mark.parametrize(("model", "projections"), [("wrn22", 1), ("wrn22", 2), ("resnet18", 2), ("vgg16", 1)])
def test_from_a_float_checkpoint(tmp_path, model, projections):
    """Kernels, norms, stem and classifier are taken over; only what the float net does not have is new."""
    image = {"data": "digits"} if model != "vgg16" else {}
    if model == "vgg16":
        image_folder(tmp_path / "images", classes=2, train=20, test=10)
        image = {"data": "imagefolder", "data_dir": str(tmp_path / "images"), "image_size": 32, "workers": 0}
        image |= {"batch_size": 8, "hold_out": 0, "limit_images": 0}
    keys = {"model": model, "epochs": 1, **image}
    small_run(tmp_path / "float", method="float", **(keys | {"width": 4}))
    start = load_file(tmp_path / "float" / "last.safetensors")
    keys |= {"lr": 1e-30, "lr_w": 0.0, "weight_decay": 0.0, "bn_batches": 0}
    small_run(
        tmp_path / "one-bit",
        **(keys | {"width": 4 // projections, "projections": projections}),
        initial_checkpoint=str(tmp_path / "float"),
    )
    net = build_trained(read_weights(tmp_path / "one-bit"))
    stem = next(module for module in net.modules() if isinstance(module, torch.nn.Conv2d))
    assert any(stem.weight.equal(tensor) for tensor in start.values())
    layers = [m for m in net.modules() if isinstance(m, onebit.ProjectionConv2d)]
    kernels = [t for name, t in start.items() if t.ndim == 4 and t.shape[-1] == 3]
    assert len(layers) >= 12
    for layer in layers:
        assert any(k.shape[1:] == layer.C.shape[1:] and k[::projections].equal(layer.C) for k in kernels)
    norms = sum(isinstance(m, torch.nn.BatchNorm2d) for m in net.modules())
    taken = [m for m in net.modules() if isinstance(m, torch.nn.BatchNorm2d) and any(
        t.shape == m.weight.shape and t.equal(m.weight) for t in start.values())]  # fmt: skip
    assert len(taken) == norms


def test_a_checkpoint_of_another_net_is_refused(tmp_path):
    small_run(tmp_path / "a", epochs=1)
    with pytest.raises(UserError, match="has stem.weight as"):
        small_run(tmp_path / "b", width=3, initial_checkpoint=str(tmp_path / "a"))
    with pytest.raises(UserError, match="needs"):
        small_run(tmp_path / "b", model="wrn40", initial_checkpoint=str(tmp_path / "a"))
    assert not (tmp_path / "b").exists()


def test_a_teacher_is_listened_to(tmp_path):
    """With all the weight on the teacher, labels do not matter: the loss falls towards the teacher's outputs."""
    small_run(tmp_path / "teacher", method="float", width=4, epochs=3)
    keys = {"teacher": str(tmp_path / "teacher"), "epochs": 2, "width": 4}
    small_run(tmp_path / "a", distill_weight=1.0, **keys)
    small_run(tmp_path / "b", distill_weight=1.0, smoothing=0.5, **keys)  # labels have no part in it
    small_run(tmp_path / "c", distill_weight=0.5, **keys)
    losses = [[r["loss_s"] for r in records(tmp_path / name, "epoch")] for name in "abc"]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]
    assert losses[0][-1] < losses[0][0]
    small_run(tmp_path / "same", method="float", initial_checkpoint=str(tmp_path / "teacher"), distill_weight=1.0,
              lr=1e-30, weight_decay=0.0, **keys)  # fmt: skip
    # a student that is the teacher: the loss is what train and eval mode of its norms differ by
    assert records(tmp_path / "same", "epoch")[0]["loss_s"] < losses[0][0] / 4


def test_ema_keeps_the_mean(tmp_path):
    small_run(tmp_path / "ema", model_ema_decay=0.5, bn_batches=0)
    mean, state = (load_file(tmp_path / "ema" / name) for name in ("last.safetensors", "last.state.safetensors"))
    raw = {name.removeprefix("net/"): t for name, t in state.items() if name.startswith("net/")}
    assert raw.keys() == mean.keys()
    small_run(tmp_path / "plain", bn_batches=0)
    plain = load_file(tmp_path / "plain" / "last.safetensors")
    assert all(raw[name].equal(plain[name]) for name in plain)  # the mean changes nothing in training
    assert not mean["stem.weight"].equal(raw["stem.weight"])
    assert (mean["stem.weight"] - raw["stem.weight"]).abs().max() < 0.1


def test_every_nth_epoch_is_kept_on_request(tmp_path):
    small_run(tmp_path, epochs=3, keep_every=2, test_every=3)
    assert sorted(path.name for path in tmp_path.glob("epoch*")) == ["epoch0002.safetensors"]
    assert ["test_top1" in r for r in records(tmp_path, "epoch")] == [False, False, True]


def test_tensorboard_gets_the_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    small_run(tmp_path, tensorboard=True)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    drawn = [(event.step, event.value) for event in events.Scalars("epoch/loss_s")]
    assert drawn == [(r["step"], pytest.approx(r["loss_s"])) for r in records(tmp_path, "epoch")]


def test_norms_are_estimated_anew_from_plain_images(tmp_path):
    """Judged by PyTorch's own statistics over the same images at once."""
    small_run(tmp_path, epochs=1, bn_batches=4)
    weights = read_weights(tmp_path)
    net = build_trained(weights)
    with Processes("cpu") as processes:
        loop = Loop(small_config(epochs=1), RunFolder(tmp_path / "x"), load_data("digits"), processes)
    from onebit.data.keyed import Stream, shuffled

    order = shuffled(Stream.ORDER, 0, 0, loop.train_rows)[: 4 * 32]
    data = loop.data
    images = (torch.from_numpy(data.train.images[order]).float() / 255 - data.mean[0]) / data.deviation[0]
    seen = []
    first = net.blocks[0].norm1
    first.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        net.eval()(images)
    batches = seen[0].reshape(4, 32, *seen[0].shape[1:])
    torch.testing.assert_close(first.running_mean, batches.mean(dim=(0, 1, 3, 4)))
    torch.testing.assert_close(first.running_var, batches.transpose(1, 2).reshape(4, 2, -1).var(2).mean(0))


def test_an_infinite_loss_stops_the_run_and_names_the_step(tmp_path):
    with pytest.raises(
        UserError, match=r"stopped at step \d+ \(epoch \d, learning rate 1e\+30\).*nothing was saved"
    ):
        small_run(tmp_path / "a", lr=1e30)
    small_run(tmp_path / "b", epochs=1)
    assert not (tmp_path / "a" / "last.safetensors").exists()


@pytest.mark.parametrize("method", ["pcnn", "float"])
def test_a_net_that_the_last_update_of_an_epoch_destroys(tmp_path, monkeypatch, method):
    """It is neither evaluated nor kept."""
    monkeypatch.setattr("onebit.training.loop.factor", lambda c, s, epoch, step, n: 1e25 if step == 4 else 0.1)
    with pytest.raises(UserError, match=r"stopped at step 5 \(epoch 1, "):
        small_run(tmp_path, method=method)
    assert not (tmp_path / "last.safetensors").exists()
    assert [record["kind"] for record in records(tmp_path)] == (
        ["kernels"] if method == "pcnn" else []
    )  # at the start
    monkeypatch.undo()
    assert small_run(tmp_path, method=method, lr=0.05)["updates"] == 10  # there was nothing to resume: begun anew
    assert len(records(tmp_path, "epoch")) == 2


@pytest.mark.parametrize("method", ["pcnn", "float"])
def test_the_last_good_checkpoint_is_kept_when_the_loss_becomes_infinite(tmp_path, monkeypatch, method):
    """A learning rate that explodes in the second epoch, with a checkpoint after each update."""
    keys = {"method": method, "checkpoint_steps": 1}
    with monkeypatch.context() as patch:
        patch.setattr("onebit.training.loop.factor", lambda config, stage, epoch, step, steps: 1e30**epoch)
        with pytest.raises(UserError, match=r"stopped at step [678] \(epoch 2, .*the last checkpoint is whole"):
            small_run(tmp_path, **keys)
    assert all(bool(t.isfinite().all()) for t in read_weights(tmp_path).tensors.values())
    assert small_run(tmp_path, resume=True, **keys)["updates"] == 10  # without the explosion it goes on


def test_a_run_folder_is_not_written_twice(tmp_path):
    small_run(tmp_path, epochs=1)
    with pytest.raises(UserError, match="holds a run already: --resume"):
        small_run(tmp_path, epochs=1)


def test_resume_of_a_finished_run_is_its_summary(tmp_path):
    first = small_run(tmp_path, epochs=1)
    before = (tmp_path / "last.safetensors").stat().st_mtime_ns
    assert small_run(tmp_path, epochs=1, resume=True) == first
    assert (tmp_path / "last.safetensors").stat().st_mtime_ns == before
    assert len(records(tmp_path, "final")) == 1


def test_channels_last_where_pytorch_would_crash(tmp_path):
    with pytest.raises(UserError, match="--channels-last"):
        small_run(tmp_path, width=4, channels_last=True)


def test_a_state_and_weights_that_do_not_belong_together(tmp_path):
    small_run(tmp_path / "a", epochs=1)
    small_run(tmp_path / "b", epochs=1, seed=1)
    (tmp_path / "a" / "last.safetensors").write_bytes((tmp_path / "b" / "last.safetensors").read_bytes())
    with pytest.raises(
        UserError, match="last.safetensors is not the file that last.state.safetensors was saved with"
    ):
        small_run(tmp_path / "a", epochs=1, resume=True)


def test_weights_without_their_state_are_not_overwritten(tmp_path):
    small_run(tmp_path, epochs=1)
    (tmp_path / "last.state.safetensors").unlink()
    with pytest.raises(UserError, match="has weights but not the state beside them"):
        small_run(tmp_path, epochs=1, resume=True)


def test_a_lost_summary_is_made_anew(tmp_path):
    first = small_run(tmp_path, epochs=1)
    (tmp_path / "summary.json").write_text("garbage")
    again = small_run(tmp_path, epochs=1, resume=True)
    assert again["test_top1"] == first["test_top1"]


@pytest.mark.parametrize("name", ["last.safetensors", "last.state.safetensors"])
@pytest.mark.parametrize("content", [b"", b"garbage" * 9, b"\xff" * 100, None])
def test_a_spoilt_checkpoint_is_one_line(tmp_path, name, content):
    small_run(tmp_path, epochs=1)
    file = tmp_path / name
    file.write_bytes(file.read_bytes()[:-5] if content is None else content)
    with pytest.raises(UserError, match=name):
        small_run(tmp_path, epochs=1, resume=True)


def test_a_weights_file_that_lies_about_its_net(tmp_path):
    """Its description is checked against what it holds before memory is taken for it."""
    small_run(tmp_path, epochs=1)
    file = tmp_path / "last.safetensors"
    tensors = load_file(file)
    with safe_open(file, "pt") as opened:
        spec = json.loads(opened.metadata()["onebit"])
    for change, what in (
        ({"num_classes": 3, "class_names": ["a", "b", "c"]}, "does not hold the net that it describes"),
        ({"num_classes": 1 << 20}, "wrong at its beginning"),
        ({"mean": []}, "wrong at its beginning"),
        ({"num_classes": 1 << 40}, "wrong at num_classes"),
        ({"net": spec["net"] | {"model": "__class__"}}, "wrong at net.model"),
        ({"net": spec["net"] | {"width": 4000}}, "does not hold the net"),
        ({"net": spec["net"] | {"surprise": 1}}, "wrong at net"),
        ({"surprise": 1}, "wrong at surprise"),
    ):
        save_file(tensors, file, {"onebit": json.dumps(spec | change)})
        with pytest.raises(UserError, match=what):
            read_weights(tmp_path)
    save_file(tensors, file, {"onebit": "{"})
    with pytest.raises(UserError, match="wrong at its beginning"):
        read_weights(tmp_path)
    save_file(tensors, file)
    with pytest.raises(UserError, match="says nothing about its net"):
        read_weights(tmp_path)


def test_fp16_needs_its_scaler(tmp_path):
    small_run(tmp_path, amp="float16")
    with safe_open(tmp_path / "last.state.safetensors", "pt") as state:
        assert json.loads(state.metadata()["onebit"])["scaler"]["scale"] > 1
    assert math.isfinite(records(tmp_path, "epoch")[-1]["loss_s"])


def test_interrupts_are_kept_and_the_second_one_counts():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with Interrupts() as interrupts:
            assert not interrupts.received
            signal.raise_signal(signal.SIGINT)
            assert interrupts.received == signal.SIGINT
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_second_sigterm_does_not_end_a_save():
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.received == signal.SIGTERM


def test_a_folder_of_other_files_is_left_alone(tmp_path, capsys):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"a cat")
    code, _, err = call(capsys, "train", *small_flags(), "--out", str(tmp_path / "photos"))
    assert code == 2
    assert err.endswith("photos: a folder with other files in it: let --out be a new one\n")
    assert [file.name for file in (tmp_path / "photos").iterdir()] == ["cat.jpg"]
    (tmp_path / "empty").mkdir()
    assert call(capsys, "train", *small_flags(epochs=1), "--out", str(tmp_path / "empty"), "--quiet")[0] == 0
