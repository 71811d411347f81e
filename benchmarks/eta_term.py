"""What eta delta, the step back in L_P (Eq. 8), adds to gradients: `python benchmarks/eta_term.py`.

A WRN-22 learns the digits of the package, at the paper's learning rate. Before every tenth update it takes, over
all 1-bit layers, the norm of each part of the gradients of C and W: the task's, L_P's, and what of L_P's eta delta
makes (the gradient with the eta of the update, less that with eta = 0). It prints the means.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import onebit
from onebit import projection as pj
from onebit.data.digits import load_digits
from onebit.layers import ProjectionConv2d

BATCH = 64
LR = 0.1  # the paper's


def parts_of(net: nn.Module, eta: float) -> dict[tuple[str, str], float]:
    """Norms of the parts of C's and W's gradients, after backward() and before L_P joins."""
    squares: dict[tuple[str, str], float] = defaultdict(float)
    for layer in net.modules():
        if not isinstance(layer, ProjectionConv2d):
            continue
        kept = layer._delta.read()  # noqa: SLF001 as `joining` reads it
        if kept is None:
            raise RuntimeError("the backward pass left no delta")
        delta = pj.separate(kept, layer.num_projections)
        how = (layer.C.detach(), layer.W.detach(), layer.lam)
        _, with_eta = pj.projection_gradients(delta, *how, eta, layer.projection)
        _, without = pj.projection_gradients(delta, *how, 0.0, layer.projection)
        for name in ("C", "W"):
            of_loss = getattr(with_eta, name)
            parts = {
                "task": getattr(layer, name).grad,
                "L_P": of_loss,
                "eta delta": of_loss - getattr(without, name),
            }
            for part, gradient in parts.items():
                squares[name, part] += float(gradient.double().square().sum())
    return {key: math.sqrt(value) for key, value in squares.items()}


def main() -> None:
    """Train, measure, print the means over the measured updates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--projections", type=int, default=1)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    images, truth = map(torch.from_numpy, load_digits()[0])
    net = onebit.models.wrn22(arguments.width, arguments.projections, in_channels=1)
    optimizer = torch.optim.SGD(onebit.parameter_groups(net, lr=LR), momentum=0.9, nesterov=True)
    onebit.discrete_backprop(net, optimizer)
    found = []
    for update in range(arguments.updates):
        rows = torch.randint(len(truth), (BATCH,))
        optimizer.zero_grad()
        F.cross_entropy(net(images[rows]), truth[rows]).backward()
        if update % 10 == 0:
            found.append(parts_of(net, LR))
        optimizer.step()
    print(f"{'':2}{'task':>12}{'L_P':>12}{'eta delta':>12}{'/ task':>12}{'/ L_P':>12}")
    for name in ("C", "W"):
        task, of_loss, of_eta = (
            float(np.mean([each[name, part] for each in found])) for part in ("task", "L_P", "eta delta")
        )
        numbers = "".join(f"{n:12.3g}" for n in (task, of_loss, of_eta, of_eta / task, of_eta / of_loss))
        print(f"{name:2}{numbers}")


if __name__ == "__main__":
    main()
