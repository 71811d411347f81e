"""The loop: epochs of updates, evaluated, logged and saved, from wherever the run stands to its end."""

from __future__ import annotations

import math
import signal
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from onebit.console import counted
from onebit.data.keyed import Stream, shuffled
from onebit.data.splits import DataSet, Pass, Rows
from onebit.errors import NotFiniteError, UserError
from onebit.training.config import Config
from onebit.training.evaluation import Accuracy, Feed, evaluate, reestimate_norms
from onebit.training.interrupts import Interrupts
from onebit.training.kernels import flipped, histograms, sign_bits
from onebit.training.learner import Learner, Outcome
from onebit.training.nets import (
    NetSpec,
    Weights,
    begin_from,
    build_trained,
    check_takes_images,
    pack_weights,
    read_weights,
    spec_of,
)
from onebit.training.pace import Pace
from onebit.training.processes import Processes
from onebit.training.runfolder import BEST, NUMBERS, TEXTS, WEIGHTS, RunFolder, summary_file
from onebit.training.schedule import Stage, factor, stages
from onebit.training.watching import Watcher, Watchers

LOG_STEPS = 50  # a record of every so many updates


class Interrupted(Exception):  # noqa: N818 not an error: the checkpoint is saved
    """The user wished the run to stop, and it is saved."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


@dataclass
class Position:
    """Where a run stands; with the weights and the optimizer's state all that it depends on."""

    stage: int = 0
    epoch: int = 0  # epochs of this stage that are done
    step: int = 0  # updates of the next one that are done
    total: int = 0  # updates of the whole run
    loss_s: float = 0.0  # sums over the epoch so far
    loss_p: float = 0.0
    correct: int = 0
    seen: int = 0
    seconds: float = 0.0  # spent in updates, in the epoch so far
    training_seconds: float = 0.0  # and in the whole run
    best: float = -1.0
    best_epoch: int = 0
    finished: bool = False


class Loop:
    """A run of a config in a folder."""

    def __init__(self, config: Config, folder: RunFolder, data: DataSet, processes: Processes) -> None:
        self.config, self.folder, self.data, self.processes = config, folder, data, processes
        self.train_rows, self.held_rows, self.test_rows = divide(config, data)
        self.steps = len(self.train_rows) // config.batch_size
        if config.batch_size % processes.count:
            raise UserError(f"--batch-size {config.batch_size}: {processes.count} processes can't share it equally")
        self.stages = stages(config)
        self.feed = Feed(data.mean, data.deviation, processes.device)
        self.position = Position()
        self.signs: dict[str, torch.Tensor] = {}
        self.watcher: Watcher = Watchers()
        self.probe: torch.Tensor | None = None  # the images of the last update
        self.teacher = self._teacher()
        self.spec, self.learner = self._fresh(self.stages[0], None)

    def resume(self) -> None:
        """Go to the last checkpoint of the folder."""
        weights, tensors, numbers = self.folder.load()
        try:
            self.position = TypeAdapter(Position).validate_python(numbers["position"])
            stage = self.stages[max(self.position.stage, 0)]
            self.data.skipped.update(map(str, numbers["skipped"]))
        except (KeyError, TypeError, IndexError, ValidationError):
            raise UserError(f"{self.folder.path}: its state is not one that this version writes") from None
        if not (
            self.position.stage >= 0 <= self.position.epoch <= stage.epochs and 0 <= self.position.step < self.steps
        ):
            raise UserError(f"{self.folder.path}: its state is of a run with other data, epochs or batches")
        if self.position.stage:
            self.spec, self.learner = self._fresh(self.stages[self.position.stage], None)
        if weights.spec != self.spec:
            was, now = weights.spec, self.spec
            known = counted(was.num_classes, "class")
            raise UserError(
                f"{self.folder.path}: its net is {was.summary()} for {known} of {was.data}; "
                f"config and data ask for {now.summary()} for {now.num_classes} of {now.data}, or have other names"
            )
        begun = self.position.epoch > 0 or self.position.step > 0
        self.learner.load_state(weights.tensors, tensors, numbers, has_learned=begun)
        self.signs = {name.removeprefix("signs/"): t for name, t in tensors.items() if name.startswith("signs/")}
        expected = {name: bits.shape for name, bits in sign_bits(self.learner.net).items()}
        if {name: bits.shape for name, bits in self.signs.items()} != expected:
            raise UserError(f"{self.folder.path}: its state lacks the signs of the kernels")
        if self.processes.writes:
            self.folder.forget_after(self.position.total, self.position.finished)

    def run(self, watcher: Watcher) -> dict[str, Any]:
        """To the end; the summary."""
        self.watcher = watcher
        with Interrupts(patient=self.processes.count > 1) as interrupts:
            for number in range(self.position.stage, len(self.stages)):
                stage = self.stages[number]
                if number > self.position.stage:
                    self._insert_signs(number)
                if self.position.epoch < stage.epochs:
                    self.watcher.stage(self.spec.summary(), self.position.epoch, stage.epochs, self.steps)
                for epoch in range(self.position.epoch, stage.epochs):
                    self._epoch(stage, epoch, interrupts)
        return self._finish()

    def _fresh(self, stage: Stage, weights: Weights | None) -> tuple[NetSpec, Learner]:
        spec = spec_of(self.config, self.data, stage.activation_bits)
        torch.manual_seed(self.config.seed)
        net = spec.build()
        check_takes_images(net, spec)
        if weights is not None:
            begin_from(net, spec, weights, "the first stage")
        elif self.config.initial_checkpoint and not self.folder.has_checkpoint():
            path = self.config.initial_checkpoint
            begin_from(net, spec, read_weights(path), path)
        return spec, Learner(net, self.config, stage, self.processes, self.teacher)

    def _teacher(self) -> nn.Module | None:
        if self.config.teacher is None:
            return None
        weights = read_weights(self.config.teacher)
        if (weights.spec.num_classes, weights.spec.image_shape) != (self.data.num_classes, self.data.image_shape):
            raise UserError(
                f"--teacher {self.config.teacher}: its net is for {counted(weights.spec.num_classes, 'class')} "
                f"of images {weights.spec.image_shape}, "
                f"the data has {self.data.num_classes} of {self.data.image_shape}"
            )
        teacher = build_trained(weights).to(self.processes.device)
        return teacher.eval().requires_grad_(requires_grad=False)

    def _insert_signs(self, number: int) -> None:
        """The second stage begins with the weights that the first ended with, and a new optimizer."""
        first = Weights(self.spec, self.learner.evaluated.state_dict())
        self.spec, self.learner = self._fresh(self.stages[number], first)
        self.position.stage, self.position.epoch = number, 0
        self.position.best, self.position.best_epoch = -1.0, 0

    def _epoch(self, stage: Stage, epoch: int, interrupts: Interrupts) -> None:
        at, config = self.position, self.config
        if at.step == 0:
            self.signs = sign_bits(self.learner.net)
        if at.total == 0:
            self._log_kernels(epoch - 1)
        # Each stage draws anew: its epochs are counted on from those of the stages before.
        drawn = sum(earlier.epochs for earlier in self.stages[: at.stage]) + epoch
        order = shuffled(Stream.ORDER, config.seed, drawn, self.train_rows)
        batches = self._shares(order[: self.steps * config.batch_size])[at.step :]
        pace = Pace(self.processes.device)
        saved, stop = time.monotonic(), 0
        for batch in self.data.train.batches(batches, Pass(config.seed, drawn)):
            images, labels = self.feed(batch)
            self.probe = images
            lr_factor = factor(config, stage, epoch, at.step, self.steps)
            outcome = self._update(images, labels, lr_factor, drawn)
            at.step += 1
            at.total += 1
            pace.add(outcome, len(labels))
            at_end = at.step == self.steps
            at_mark = bool(config.checkpoint_steps) and at.step % config.checkpoint_steps == 0
            if not (pace.is_due() or at_mark or at_end):
                continue
            stop = self._account(pace, interrupts, epoch)
            is_late = config.checkpoint_minutes and time.monotonic() - saved > 60 * config.checkpoint_minutes
            if not at_end and (stop or at_mark or is_late):
                self._save()
                saved = time.monotonic()
                if stop:
                    raise Interrupted(stop)
        self._end_epoch(epoch, stage)
        if stop:
            raise Interrupted(stop)

    def _shares(self, order: Rows) -> list[Rows]:
        """The part of each batch that is this process's."""
        part = self.config.batch_size // self.processes.count
        return list(order.reshape(-1, self.processes.count, part)[:, self.processes.rank])

    def _update(self, images: torch.Tensor, labels: torch.Tensor, lr_factor: float, drawn: int) -> Outcome:
        try:
            return self.learner.update(images, labels, lr_factor, drawn, self.position.step)
        except NotFiniteError as error:
            raise self._not_finite(self.position.total + 1, str(error)) from None
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):  # batch norm's words
                raise
            raise UserError(f"--batch-size {self.config.batch_size}: too few images for batch norm") from None

    def _account(self, pace: Pace, interrupts: Interrupts, epoch: int) -> int:
        """Look at the numbers of the updates since the last look; return the signal on which all agree to stop."""
        at = self.position
        outcomes = pace.take()
        for back, (loss_s, loss_p, _) in enumerate(outcomes):
            if not math.isfinite(loss_s + loss_p):
                raise self._not_finite(at.total - len(outcomes) + back + 1, f"the loss is {loss_s + loss_p}")
        totals = [sum(numbers) for numbers in zip(*outcomes, strict=True)]
        # One exchange for all: a process that stopped alone would leave the others waiting for its gradients.
        *totals, seen, wishes = self.processes.sums(*totals, pace.images, interrupts.received > 0)
        loss_s, loss_p = (total / len(outcomes) / self.processes.count for total in totals[:2])
        at.loss_s += totals[0] / self.processes.count
        at.loss_p += totals[1] / self.processes.count
        at.correct += int(totals[2])
        at.seen += int(seen)
        at.seconds += pace.seconds
        at.training_seconds += pace.seconds
        if not math.isfinite(at.loss_s + at.loss_p):
            raise self._not_finite(at.total, "the loss is not finite")
        speed = pace.images_per_s * self.processes.count
        self.watcher.step(epoch, at.step, loss_s, speed)
        if any((at.total - back) % LOG_STEPS == 0 for back in range(len(outcomes))):
            self._log("step", epoch, loss_s=loss_s, loss_p=loss_p, **self.learner.rates(), images_per_s=speed)
        return (interrupts.received or signal.SIGTERM) if wishes else 0

    def _not_finite(self, step: int, what: str) -> UserError:
        rate = self.learner.rates()["lr"]
        epoch = -(-step // self.steps) - sum(stage.epochs for stage in self.stages[: self.position.stage])
        kept = "the last checkpoint is whole" if self.folder.has_checkpoint() else "nothing was saved yet"
        return UserError(
            f"stopped at step {step} (epoch {epoch}, learning rate {rate:g}): {what}; {kept}. "
            f"Use a smaller --lr or a longer --warmup-epochs"
        )

    def _end_epoch(self, epoch: int, stage: Stage) -> None:
        at, config = self.position, self.config
        net = self.learner.evaluated
        self.processes.share_buffers(net)
        self._check_sound()
        kept: dict[str, bytes] = {}
        record: dict[str, Any] = {
            "loss_s": at.loss_s / self.steps,
            "loss_p": at.loss_p / self.steps,
            "train_top1": 100 * at.correct / at.seen,
            **self.learner.rates(),
            **flipped(self.signs, self.learner.net),
            "images_per_s": at.seen / at.seconds,
        }
        if len(self.held_rows):
            held = self._evaluate(net, self.data.train, self.held_rows)
            record |= {"held_out_top1": held.top1, "held_out_top5": held.top5, "held_out_loss": held.loss}
            if held.top1 > at.best:
                at.best, at.best_epoch = held.top1, epoch + 1
                kept[BEST] = pack_weights(net, self.spec)
        if config.test_every and (epoch + 1) % config.test_every == 0:
            test = self._evaluate(net, self.data.test, self.test_rows)
            record |= {"test_top1": test.top1, "test_top5": test.top5, "test_loss": test.loss}
        self._log_kernels(epoch)
        self._log("epoch", epoch, **record, training_seconds=at.training_seconds)
        at.epoch, at.step = epoch + 1, 0
        at.loss_s = at.loss_p = at.seconds = 0.0
        at.correct = at.seen = 0
        if config.keep_every and (epoch + 1) % config.keep_every == 0:
            prefix = f"stage{at.stage + 1}-" if len(self.stages) > 1 else ""
            kept[f"{prefix}epoch{epoch + 1:04d}.safetensors"] = pack_weights(net, self.spec)
        if len(self.stages) > 1 and at.stage == 0 and at.epoch == stage.epochs:
            kept["stage1.safetensors"] = pack_weights(net, self.spec)
        self._save(kept)

    def _evaluate(self, net: nn.Module, split: Any, rows: Rows) -> Accuracy:
        part = self.config.batch_size // self.processes.count
        return evaluate(net, split, rows, part, self.feed, self.processes)

    def _log(self, kind: str, epoch: int, **numbers: Any) -> None:
        at = self.position
        record = {"kind": kind, "stage": at.stage + 1, "epoch": epoch + 1, "step": at.total, **numbers}
        if self.processes.writes:
            self.folder.log(record)
        self.watcher.record(record)

    def _log_kernels(self, epoch: int) -> None:
        if self.signs and self.processes.writes:  # a float net has no kernels that become bits
            self._log("kernels", epoch, layers=histograms(self.signs, self.learner.net))

    def _save(self, files: dict[str, bytes] | None = None) -> None:
        skipped = self.processes.union(self.data.skipped) if self.position.step == 0 else self.data.skipped
        if not self.processes.writes:
            return
        self._check_sound()
        tensors, numbers = self.learner.state()
        tensors |= {f"signs/{name}": bits for name, bits in self.signs.items()}
        numbers |= {"position": asdict(self.position), "skipped": sorted(skipped)}
        weights = {WEIGHTS: pack_weights(self.learner.evaluated, self.spec)}
        self.folder.save(weights | (files or {}), tensors, numbers)

    def _check_sound(self) -> None:
        """Refuse to evaluate or to keep a net that the last update has destroyed."""
        if self.probe is not None and not self.learner.is_sound(self.probe):
            raise self._not_finite(self.position.total, "the net's outputs are no longer finite")

    def _finish(self) -> dict[str, Any]:
        """Batch norms anew, the test images, the summary."""
        kept = self.folder.summary()
        if self.position.finished and kept is not None and kept.keys() >= TEXTS | NUMBERS:
            return kept
        at, config = self.position, self.config
        net = self.learner.evaluated
        order = shuffled(Stream.ORDER, config.seed, 0, self.train_rows)
        part = config.batch_size // self.processes.count  # what a process has memory for
        chosen = order[: min(config.bn_batches, self.steps) * config.batch_size]
        reestimate_norms(net, self.data, list(chosen.reshape(-1, part)), self.feed)
        test = self._evaluate(net, self.data.test, self.test_rows)
        held = self._evaluate(net, self.data.train, self.held_rows) if len(self.held_rows) else None
        at.finished = True
        scores = {"test_top1": test.top1, "test_top5": test.top5, "test_loss": test.loss}
        self._log("final", self.stages[-1].epochs - 1, **scores)
        summary = {
            "net": self.spec.summary(),
            "data": config.data,
            "seed": config.seed,
            "epochs": sum(stage.epochs for stage in self.stages),
            "updates": at.total,
            **scores,
            "test_images": test.images,
            "held_out_top1": None if held is None else held.top1,
            "best_held_out_top1": at.best if len(self.held_rows) else None,
            "best_epoch": at.best_epoch or None,
            "training_seconds": round(at.training_seconds, 1),
            "skipped_images": len(self.processes.union(self.data.skipped)),
        }
        self._save(summary_file(summary))
        return summary


def divide(config: Config, data: DataSet) -> tuple[Rows, Rows, Rows]:
    """Rows to train on, held out, and to test on; the same whatever the seed."""
    order = shuffled(Stream.HELD_OUT, 0, 0, np.arange(len(data.train.labels)))
    test = np.arange(len(data.test.labels))
    if config.limit_images:
        order = order[: config.limit_images]
        test = shuffled(Stream.SUBSET, 0, 0, test)[: config.limit_images]
    held = min(5000, len(order) // 10) if config.hold_out == "auto" else config.hold_out
    if held >= len(order):
        raise UserError(f"--hold-out {held}: there are only {len(order)} training images")
    if len(order) - held < config.batch_size:
        raise UserError(f"--batch-size {config.batch_size}: there are only {len(order) - held} training images")
    return np.sort(order[held:]), np.sort(order[:held]), np.sort(test)
