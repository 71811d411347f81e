"""One process of tests/test_distributed.py: trains a small net in each of the modes and saves its weights.

python distributed_worker.py FOLDER RANK WORLD_SIZE MODE...
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import onebit
from onebit.methods import layer_of

STEPS, BATCH = 5, 8


def make_rival_net(method):
    """A net with weights at which the step's clip and centring do something."""
    torch.manual_seed(3)
    net = make_net(32)
    layer_class = layer_of(method)
    for place in (2, 4):
        old = net[place]
        net[place] = layer_class(old.in_channels, old.out_channels, 3, dtype=torch.float64)
        with torch.no_grad():
            getattr(net[place], layer_class.KERNEL).mul_(6)
    return net


def make_net(activation_bits):
    torch.manual_seed(3)
    # With a bias: as many +a as -a sum to 0 but for rounding, and the next sign would depend on the batch
    options = {"num_projections": 2, "lam": 0.05, "activation_bits": activation_bits, "bias": True}
    options["dtype"] = torch.float64
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, dtype=torch.float64),
        nn.Tanh(),
        onebit.ProjectionConv2d(4, 6, 3, **options),
        nn.Tanh(),
        onebit.ProjectionConv2d(6, 4, 3, **options),
        nn.Flatten(),
        nn.Linear(4, 3, dtype=torch.float64),
    )


class SometimesUsed(nn.Module):
    """A net with a layer that only the first process's forward pass uses."""

    def __init__(self):
        super().__init__()
        self.body = make_net(32)
        self.extra = onebit.ProjectionConv2d(2, 2, 3, padding=1, lam=0.05, dtype=torch.float64)

    def forward(self, x, use_extra):
        return self.body(self.extra(x) if use_extra else x)


def main(folder, rank, world_size, mode):
    if mode.startswith("rival-"):
        net = make_rival_net(mode.removeprefix("rival-"))
    else:
        net = SometimesUsed() if mode.startswith("unused") else make_net(1 if mode == "w1a1" else 32)
    model = net
    own = [dist.new_group([each]) for each in range(world_size)][rank] if "own_group" in mode else None
    if mode == "ddp_of_own_group":
        model = DistributedDataParallel(net, process_group=own)
    elif world_size > 1 and mode not in {"local", "own_group"}:
        model = DistributedDataParallel(
            net, find_unused_parameters=mode.startswith("unused"), gradient_as_bucket_view="bucket_view" in mode
        )
    groups = onebit.parameter_groups(model, lr=0.2, weight_decay=0.01)
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    if mode == "unwrapped":
        onebit.discrete_backprop(net, optimizer)
    elif mode == "unwrapped_group":
        onebit.discrete_backprop(net, optimizer, process_group=dist.group.WORLD if world_size > 1 else "auto")
    elif mode in {"local", "own_group"}:
        onebit.discrete_backprop(net, optimizer, process_group=own or "local")
    elif mode != "by_hand":
        onebit.discrete_backprop(model, optimizer)
    generator = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        images = torch.randn(BATCH, 2, 7, 7, dtype=torch.float64, generator=generator)
        labels = torch.randint(0, 3, (BATCH,), generator=generator)
        mine = slice(rank * BATCH // world_size, (rank + 1) * BATCH // world_size)
        images, labels = images[mine], labels[mine]
        if mode.startswith("unused"):
            outputs = model(images, rank == 0)
            loss = nn.functional.cross_entropy(outputs, labels)
        elif mode == "no_sync" and world_size > 1:
            half = len(images) // 2
            with model.no_sync():
                (nn.functional.cross_entropy(model(images[:half]), labels[:half]) / 2).backward()
            loss = nn.functional.cross_entropy(model(images[half:]), labels[half:]) / 2
        else:
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        if mode == "by_hand":
            onebit.add_projection_gradients(model, eta=0.2)
        optimizer.step()
        optimizer.zero_grad()
    torch.save(net.state_dict(), f"{folder}/{mode}.{rank}-of-{world_size}")


if __name__ == "__main__":
    where, number, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{where}/rendezvous", rank=number, world_size=count)
    for each in sys.argv[4:]:
        main(where, number, count, each)
    dist.destroy_process_group()
    os._exit(0)  # why: see onebit.commands.entry_point
