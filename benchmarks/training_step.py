"""What the projection costs in training: steps of WRN-22 with and without it, taken in turns in one run.

    python benchmarks/training_step.py                # i = 16, batch 128, CIFAR-sized images
    python benchmarks/training_step.py --rounds 5 --batch 32

A step is forward, loss, backward, and the optimizer's step with its hook, eager. Each round times every net
once, and a ratio is the median over the rounds of the ratio within a round: a slow moment of the machine then
falls on both sides. For J = 4 the projection's own work (quantising the kernels, Eq. 17 and 21, L_P) is also
timed alone, as a third contestant of the same rounds.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch

import onebit
from rivals import make_step


def make_own_work(num_projections: int) -> Callable[[], float]:
    """A function that does a step's projection work without the convolutions and returns its seconds."""
    torch.manual_seed(0)
    net = onebit.models.wrn22(16, num_projections)
    layers = [layer for layer in net.modules() if isinstance(layer, onebit.ProjectionConv2d)]
    gradients = [torch.randn_like(layer.quantized_weight()) for layer in layers]

    def work() -> float:
        start = time.perf_counter()
        net.zero_grad()
        torch.autograd.backward([layer.quantized_weight() for layer in layers], gradients)
        onebit.add_projection_gradients(net, eta=0.1)
        return time.perf_counter() - start

    return work


def compare(title: str, steps: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Time all steps in turns, print medians and ratios to the first, return the ratios of each round."""
    for step in steps.values():
        step()  # the first step allocates
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(step())
    base = times[next(iter(times))]
    ratios = {name: [t / b for t, b in zip(taken, base, strict=True)] for name, taken in times.items()}
    print(f"\n{title}")
    for name, taken in times.items():
        ratio = ratios[name]
        print(
            f"  {name:<24} {1e3 * statistics.median(taken):8.1f} ms   "
            f"x {statistics.median(ratio):.3f}  ({min(ratio):.3f} to {max(ratio):.3f})"
        )
    return ratios


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    batch, rounds = arguments.batch, arguments.rounds
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}, batch {batch}")

    nets = {"nn.Conv2d": ("float", 32), "PCNN J=1 W1A32": ("pcnn", 32), "PCNN J=1 W1A1": ("pcnn", 1)}
    compare(
        "WRN-22, i = 16: a training step",
        {name: make_step(batch, method, {"activation_bits": bits}) for name, (method, bits) in nets.items()},
        rounds,
    )
    nets = {"nn.Conv2d": ("float", 32), "PCNN J=4 W1A32": ("pcnn", 32)}
    steps = {
        name: make_step(batch, method, {"activation_bits": bits, "num_projections": 4})
        for name, (method, bits) in nets.items()
    }
    ratios = compare(
        "WRN-22, i = 16, J = 4 (tensors 64 wide): a training step",
        steps | {"the projection alone": make_own_work(4)},
        max(3, rounds // 2),
    )
    pcnn = ratios["PCNN J=4 W1A32"]
    alone = statistics.median(a / p for a, p in zip(ratios["the projection alone"], pcnn, strict=True))
    extra = statistics.median(1 - 1 / p for p in pcnn)
    print(
        f"  of the step at J = 4: {100 * alone:.1f} % is the projection, timed alone; {100 * extra:.1f} % is what"
    )
    print("  the step takes more than with nn.Conv2d")


if __name__ == "__main__":
    main()
