"""What people see of a run while it goes: a live display, plain lines where there is no terminal, TensorBoard."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol

from onebit.advice import install_extra
from onebit.console import LINE_SECONDS, counted, progress_bars, say, start
from onebit.errors import UserError


class Watcher(Protocol):
    """Who shows a run to people."""

    def stage(self, name: str, epoch: int, epochs: int, steps: int) -> None:
        """A stage begins, or goes on from `epoch`."""

    def step(self, epoch: int, step: int, loss: float, images_per_s: float) -> None:
        """An update was made."""

    def record(self, record: dict[str, Any]) -> None:
        """A record was written to the metrics."""

    def close(self) -> None:
        """Nothing more will come."""


class Watchers:
    """Several as one; none as one, too: what the processes have that do not speak."""

    def __init__(self, *watchers: Watcher) -> None:
        self._watchers = watchers

    def stage(self, name: str, epoch: int, epochs: int, steps: int) -> None:
        """See `Watcher`."""
        for watcher in self._watchers:
            watcher.stage(name, epoch, epochs, steps)

    def step(self, epoch: int, step: int, loss: float, images_per_s: float) -> None:
        """See `Watcher`."""
        for watcher in self._watchers:
            watcher.step(epoch, step, loss, images_per_s)

    def record(self, record: dict[str, Any]) -> None:
        """See `Watcher`."""
        for watcher in self._watchers:
            watcher.record(record)

    def close(self) -> None:
        """See `Watcher`."""
        for watcher in self._watchers:
            watcher.close()


def epoch_line(record: dict[str, Any], epochs: int) -> str:
    """A record of an epoch for people to read."""
    parts = [
        f"epoch {record['epoch']}/{epochs}",
        f"loss {record['loss_s']:.3f} + {record['loss_p']:.2g}",
        f"train {record['train_top1']:.1f} %",
    ]
    for key, name in (("held_out_top1", "held out"), ("test_top1", "test")):
        if key in record:
            parts.append(f"{name} {record[key]:.1f} %")
    if "flipped_kernels" in record:
        parts.append(f"flipped {100 * record['flipped_kernels']:.2f} %")
    parts.append(f"lr {record['lr']:.3g}")
    return "  ".join(parts)


def _plan_of(name: str, epochs: int, steps: int) -> str:
    return f"{name}: {counted(epochs, 'epoch')} of {counted(steps, 'update')}"


class PlainLines:
    """A line for each epoch, and one now and then in between."""

    def __init__(self) -> None:
        self._epochs = self._steps = 0
        self._spoken = time.monotonic()

    def stage(self, name: str, epoch: int, epochs: int, steps: int) -> None:
        """See `Watcher`."""
        self._epochs, self._steps = epochs, steps
        say(_plan_of(name, epochs, steps) + (f", from epoch {epoch + 1}" if epoch else ""))

    def step(self, epoch: int, step: int, loss: float, images_per_s: float) -> None:
        """See `Watcher`."""
        if time.monotonic() - self._spoken > LINE_SECONDS:
            where = f"epoch {epoch + 1}/{self._epochs}  update {step}/{self._steps}"
            say(f"{where}  loss {loss:.3f}  {images_per_s:.0f} images/s")
            self._spoken = time.monotonic()

    def record(self, record: dict[str, Any]) -> None:
        """See `Watcher`."""
        if record["kind"] == "epoch":
            say(epoch_line(record, self._epochs))
            self._spoken = time.monotonic()

    def close(self) -> None:
        """See `Watcher`."""


class LiveDisplay:
    """Two bars, the run and the epoch, under the lines of the epochs."""

    def __init__(self) -> None:
        self._progress = progress_bars()
        self._run = self._progress.add_task("run", note="updates", total=None)
        self._epoch = self._progress.add_task("epoch", note="", total=None)
        self._epochs = self._steps = 0
        start(self._progress)

    def stage(self, name: str, epoch: int, epochs: int, steps: int) -> None:
        """See `Watcher`."""
        self._epochs, self._steps = epochs, steps
        self._say(_plan_of(name, epochs, steps))
        self._progress.reset(self._run, total=epochs * steps, completed=epoch * steps, note="updates")

    def step(self, epoch: int, step: int, loss: float, images_per_s: float) -> None:
        """See `Watcher`."""
        note = f"loss {loss:.3f}  {images_per_s:.0f} images/s"
        self._progress.update(self._run, completed=epoch * self._steps + step)
        self._progress.update(
            self._epoch, description=f"epoch {epoch + 1}", completed=step, total=self._steps, note=note
        )

    def record(self, record: dict[str, Any]) -> None:
        """See `Watcher`."""
        if record["kind"] == "epoch":
            self._say(epoch_line(record, self._epochs))

    def close(self) -> None:
        """See `Watcher`."""
        self._progress.stop()

    def _say(self, line: str) -> None:
        self._progress.console.print(line, soft_wrap=True)


class TensorBoard:
    """Every number of every record, for TensorBoard to draw."""

    def __init__(self, folder: Path, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError(f"--tensorboard needs a package: {install_extra('tensorboard')}") from None
        # What a run that was interrupted wrote after its checkpoint is written again.
        self._writer = SummaryWriter(folder, purge_step=step + 1 if step else None)

    def stage(self, name: str, epoch: int, epochs: int, steps: int) -> None:
        """See `Watcher`."""

    def step(self, epoch: int, step: int, loss: float, images_per_s: float) -> None:
        """See `Watcher`."""

    def record(self, record: dict[str, Any]) -> None:
        """See `Watcher`."""
        for key, value in record.items():
            if isinstance(value, float):
                self._writer.add_scalar(f"{record['kind']}/{key}", value, record["step"])

    def close(self) -> None:
        """See `Watcher`."""
        self._writer.close()
