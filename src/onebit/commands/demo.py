"""`onebit demo`: a 1-bit net and its float twin, trained side by side on real images."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from onebit.data.digits import Images, load_digits
from onebit.errors import UserError

if TYPE_CHECKING:
    from rich.progress import Progress
    from torch import Tensor, nn

HELP = "train a small 1-bit net and its float twin on handwritten digits and compare them"
EXAMPLES = """examples:
  onebit demo                    both nets, in under a minute
  onebit demo --projections 2    two projections from each kernel: half as many kernels, the same tensors
  onebit demo --seed 1 --quiet   another start, and the table only
"""

TENSOR_WIDTH = 16
BATCH = 128


class Outcome(NamedTuple):
    """A row of the table."""

    name: str
    accuracy: float  # in percent
    kernel_bits: int  # of the 3x3 convolutions behind the stem
    seconds: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training images (default: 20)")
    parser.add_argument("--projections", type=int, default=1, metavar="J", help="projections J (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random (default: 0)")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def run(arguments: argparse.Namespace) -> int:
    """Train both nets, print the table."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table

    if arguments.epochs < 1:
        raise UserError(f"--epochs {arguments.epochs}: use at least 1")
    if arguments.projections < 1 or TENSOR_WIDTH % arguments.projections:
        raise UserError(f"--projections {arguments.projections}: use 1, 2, 4, 8 or 16")
    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs  loss {task.fields[loss]}"),
        TimeElapsedColumn(),
    )
    train, test = load_digits()
    errors = Console(stderr=True)
    with Progress(*columns, console=errors, disable=arguments.quiet or not errors.is_terminal) as progress:
        rows = [
            _train("float twin", "float", 1, train, test, arguments, progress),
            _train("1-bit (PCNN-22)", "pcnn", arguments.projections, train, test, arguments, progress),
        ]

    twin, one_bit = rows
    table = Table(
        title=f"handwritten digits, 8 x 8 pixels: {len(train.labels)} to train, {len(test.labels)} to test"
    )
    for heading in ("net", "test accuracy", "bits of its 3x3 kernels", "trained in"):
        table.add_column(heading, justify="left" if heading == "net" else "right")
    for row in rows:
        table.add_row(row.name, f"{row.accuracy:.1f} %", f"{row.kernel_bits:,}", f"{row.seconds:.0f} s")
    Console().print(table)
    Console(soft_wrap=True).print(
        f"The 1-bit net: {one_bit.accuracy - twin.accuracy:+.1f} points against its float twin, "
        f"{twin.kernel_bits / one_bit.kernel_bits:.0f} times fewer bits of kernels.\n"
        f"(One test image is {100 / len(test.labels):.1f} points: "
        f"a difference of one or two points is within chance.)"
    )
    return 0


def _train(
    name: str,
    method: str,
    projections: int,
    train: Images,
    test: Images,
    arguments: argparse.Namespace,
    progress: Progress,
) -> Outcome:
    import torch
    import torch.nn.functional as F

    import onebit

    # Images of 8 x 8 pixels make small steps: a second thread gains little, and on a busy machine threads that
    # wait for each other lose much.
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    images, labels = (torch.from_numpy(array) for array in train)
    net = onebit.models.wrn22(TENSOR_WIDTH // projections, projections, method, in_channels=1)
    groups = onebit.parameter_groups(net, lr=0.1, weight_decay=5e-4)
    optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True)
    onebit.discrete_backprop(net, optimizer)
    steps = arguments.epochs * (len(images) // BATCH)
    peaks = [group["lr"] for group in groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peaks, total_steps=steps)

    start = time.perf_counter()
    bar = progress.add_task(name, total=arguments.epochs, loss="-")
    for epoch in range(1, arguments.epochs + 1):
        net.train()
        for rows in torch.randperm(len(images)).split(BATCH):
            if len(rows) < BATCH:
                continue
            loss = F.cross_entropy(net(_shifted(images[rows])), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        progress.update(bar, advance=1, loss=f"{loss.item():.3f}")
        if progress.disable and not arguments.quiet and (epoch == 1 or epoch % 5 == 0):  # no terminal
            print(f"{name}: epoch {epoch} of {arguments.epochs}, loss {loss.item():.3f}", file=sys.stderr)  # noqa: T201
    return Outcome(
        name, _accuracy(net, *map(torch.from_numpy, test)), _kernel_bits(net), time.perf_counter() - start
    )


def _shifted(images: Tensor) -> Tensor:
    """Each image moved by up to a pixel: the same digit, written elsewhere."""
    import torch
    import torch.nn.functional as F

    side = images.shape[-1]
    padded = F.pad(images, (1, 1, 1, 1), value=float(images.min()))  # the paper's white
    shifts = torch.randint(0, 3, (len(images), 2)).tolist()
    return torch.stack([p[:, y : y + side, x : x + side] for p, (y, x) in zip(padded, shifts, strict=True)])


def _accuracy(net: nn.Module, images: Tensor, labels: Tensor) -> float:
    import torch

    net.eval()
    with torch.inference_mode():
        return float(100 * (net(images).argmax(dim=1) == labels).float().mean())


def _kernel_bits(net: nn.Module) -> int:
    """One bit for each entry of C and W, 32 for each float; the stem aside, which stays in float."""
    import onebit

    layers = [module for module in net.modules() if isinstance(module, onebit.ProjectionConv2d)]
    if layers:
        return sum(layer.C.numel() + layer.W.numel() for layer in layers)
    kernels = {name: p for name, p in net.named_parameters() if p.ndim == 4 and p.shape[-1] == 3}
    return sum(32 * p.numel() for name, p in kernels.items() if not name.startswith("stem"))
