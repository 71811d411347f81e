"""Updates of a net without batch statistics, by one process or several: torchrun ... training_worker.py OUT"""

import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

import onebit
from onebit.data.catalog import load_data
from onebit.data.keyed import Stream, shuffled
from onebit.data.splits import Pass
from onebit.training.evaluation import Feed
from onebit.training.learner import Learner
from onebit.training.loop import Loop
from onebit.training.processes import Processes
from onebit.training.runfolder import RunFolder
from onebit.training.schedule import stages
from training_runs import small_config

config = small_config(batch_size=32, clip_grad=1.0)
with Processes("cpu") as processes:
    data = load_data("digits")
    loop = Loop(config, RunFolder(Path(sys.argv[1] + "-none")), data, processes)
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.ReLU(),
        onebit.ProjectionConv2d(8, 8, 3, padding=1, num_projections=2, lam=1e-2),
        torch.nn.GroupNorm(2, 8),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(512, 10),
    )
    learner = Learner(net, config, stages(config)[0], processes, None)
    feed = Feed(data.mean, data.deviation, processes.device)
    order = shuffled(Stream.ORDER, 0, 0, loop.train_rows)[: 4 * config.batch_size]
    losses = []
    for step, batch in enumerate(data.train.batches(loop._shares(order), Pass(0, 0))):
        outcome = learner.update(*feed(batch), 1.0, 0, step)
        losses.append(processes.sums(float(outcome.loss_s))[0] / processes.count)
    if processes.writes:
        save_file(net.state_dict() | {"losses": torch.tensor(losses)}, sys.argv[1])
os._exit(0)  # why: see onebit.commands.entry_point
