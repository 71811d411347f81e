"""How good a net is, and the batch norms that it is evaluated with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onebit.data.splits import Batch, DataSet, Rows, Split
from onebit.errors import UserError
from onebit.training.processes import Processes


class Feed:
    """Brings batches of bytes to the device, as the numbers that a net takes: (pixel / 255 - mean) / deviation."""

    def __init__(self, mean: Sequence[float], deviation: Sequence[float], device: torch.device) -> None:
        self.device = device
        self.mean, self.deviation = (
            torch.tensor(values, dtype=torch.float32, device=device).reshape(-1, 1, 1)
            for values in (mean, deviation)
        )

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Images (n, channels, height, width) and labels."""
        images = batch.images.to(self.device).float().div_(255)
        return images.sub_(self.mean).div_(self.deviation), batch.labels.to(self.device)


class Accuracy(NamedTuple):
    """In percent; the loss is cross entropy."""

    top1: float
    top5: float
    loss: float
    images: int


def evaluate(
    net: nn.Module, split: Split, rows: Rows, batch_size: int, feed: Feed, processes: Processes
) -> Accuracy:
    """How good the net is on these rows, in eval mode; see `measure`."""
    net.eval()
    found = measure(net, split, rows, batch_size, feed, processes)
    net.train()
    return found


def measure(
    predict: Callable[[Tensor], Tensor],
    split: Split,
    rows: Rows,
    batch_size: int,
    feed: Feed,
    processes: Processes,
    seen: Callable[[int], object] | None = None,
) -> Accuracy:
    """How good the logits are that `predict` makes of images.

    Each process takes its share of the rows; the result is that of all. `seen` hears of every batch how many images
    it had.
    """
    mine = rows[processes.rank :: processes.count]
    batches = [mine[start : start + batch_size] for start in range(0, len(mine), batch_size)]
    totals = torch.zeros(4, dtype=torch.float64)
    with torch.inference_mode():
        for batch in split.batches(batches):
            images, labels = feed(batch)
            logits = predict(images).float()
            best = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
            loss = F.cross_entropy(logits, labels, reduction="sum")
            found = (best[:, 0].sum(), best.sum(), loss, torch.tensor(len(labels)))
            totals += torch.stack([number.cpu().double() for number in found])
            if seen is not None:
                seen(len(labels))
    first, five, loss_sum, count = processes.sums(*totals.tolist())
    if not count:
        raise UserError("none of the images to evaluate can be read")
    return Accuracy(100 * first / count, 100 * five / count, loss_sum / count, int(count))


def reestimate_norms(net: nn.Module, data: DataSet, batches: Sequence[Rows], feed: Feed) -> None:
    """Set the statistics of every batch norm to their mean over these training images, plain ones.

    Training leaves a moving average over weights that were still moving, and of augmented images; with signs
    behind it, a norm that is a little off turns bits. Every process does the same work, so that all end alike.
    """
    norms = [module for module in net.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]  # noqa: SLF001 the base of all
    norms = [norm for norm in norms if norm.track_running_stats]
    if not norms or not len(batches):
        return
    momenta = [norm.momentum for norm in norms]
    net.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a mean over all batches, each with the same weight
        norm.train()
    with torch.no_grad():
        for batch in data.train.batches(batches):
            net(feed(batch)[0])
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    net.train()
