"""What each method costs in training: steps of WRN-22 with every method, taken in turns in one run.

    python benchmarks/rivals.py                                 # i = 16, batch 128, CIFAR-sized images
    python benchmarks/rivals.py --rounds 5 --methods bnn,abc
    python benchmarks/rivals.py --channels-last --markdown

A step is forward, loss, backward, and the optimizer's step with its hooks, eager. Each round times every net once
(in an order that turns from round to round), and a ratio is the median over the rounds of the ratio to the float
net within a round. With M or N bases, and with K planes of the same tensor width, ABC-Net and MCN still do one
convolution of the float net's size, so the float net is their own conv work too.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import onebit
from onebit.methods import METHODS

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{method: (method, {}) for method in METHODS},
    "pcnn W1A1": ("pcnn", {"activation_bits": 1}),
    "pcnn J=4": ("pcnn", {"width": 4, "num_projections": 4}),
    "mcn K=4": ("mcn", {"width": 4, "num_projections": 4}),
    "abc M=3 N=3": ("abc", {"weight_bases": 3, "activation_bases": 3}),
    "xnor with K": ("xnor", {"scale_map": True}),
}


def make_step(batch: int, method: str, options: dict[str, Any], channels_last: bool = False) -> Callable[[], float]:
    """A function that takes one training step and returns its seconds."""
    torch.manual_seed(0)
    net = onebit.models.wrn22(**{"width": 16, "method": method, **options})
    layout = torch.channels_last if channels_last else torch.contiguous_format
    net.to(memory_format=layout)  # type: ignore[call-overload]
    groups = onebit.parameter_groups(net, lr=0.1, weight_decay=5e-4)
    optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True)
    onebit.discrete_backprop(net, optimizer)
    images = torch.randn(batch, 3, 32, 32).contiguous(memory_format=layout)
    labels = torch.randint(0, 10, (batch,))

    def step() -> float:
        start = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(net(images), labels).backward()
        optimizer.step()
        return time.perf_counter() - start

    return step


def measure(steps: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every step in every round."""
    for step in steps.values():
        step()  # the first step allocates
    names = list(steps)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            times[name].append(steps[name]())
    return times


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--methods", help="some of them, with commas (default: all and their variants)")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    chosen = arguments.methods.split(",") if arguments.methods else list(VARIANTS)
    chosen = ["float", *(name for name in chosen if name != "float")]
    layout = "channels_last" if arguments.channels_last else "contiguous"
    print(f"WRN-22, i = 16, batch {arguments.batch}, {layout}, {arguments.rounds} rounds;")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}\n")
    steps = {name: make_step(arguments.batch, *VARIANTS[name], arguments.channels_last) for name in chosen}
    times = measure(steps, arguments.rounds)
    if arguments.markdown:
        print("| method | ms a step | times the float step |\n|---|---:|---:|")
    for name, taken in times.items():
        ratios = [t / base for t, base in zip(taken, times["float"], strict=True)]
        ms, ratio = 1e3 * statistics.median(taken), statistics.median(ratios)
        if arguments.markdown:
            print(f"| {name} | {ms:.0f} | {ratio:.2f} |")
        else:
            print(f"  {name:<16} {ms:8.1f} ms   x {ratio:.3f}  ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
