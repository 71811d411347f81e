"""Every row of the exporter's table: a small net with that operation agrees with PyTorch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import onebit
from onebit.exporting.rules import TABLE

CONSTANT = torch.linspace(-1, 2, 6).view(6, 1, 1)
CASES = {
    "conv2d": lambda m, x: F.conv2d(x, m.weight, m.bias, (2, 1), (1, 2), (2, 1), 3),
    "conv2d same": lambda m, x: F.conv2d(x, m.weight[:, :, :, :2], padding="same", dilation=(1, 3), groups=3),
    "linear": lambda m, x: F.linear(x.flatten(1), m.matrix, m.bias[:4]),
    "batch_norm": lambda m, x: F.batch_norm(x, m.bias, m.bias.abs() + 0.1, m.bias * 2, None, eps=0.3),
    "batch_norm 1d": lambda m, x: m.norm(x.mean((2, 3))),
    "relu": lambda m, x: F.relu(x),
    "relu_": lambda m, x: F.relu(x + 0, inplace=True),
    "relu6": lambda m, x: F.relu6(4 * x),
    "hardtanh": lambda m, x: F.hardtanh(x, -0.3, 0.7),
    "hardtanh without end": lambda m, x: F.hardtanh(x, -0.3, float("inf")),
    "clamp": lambda m, x: x.clamp(max=0.4),
    "clamp_min": lambda m, x: torch.clamp_min(x, -0.2),
    "clamp_max": lambda m, x: torch.clamp_max(x, 0.3),
    "prelu": lambda m, x: F.prelu(x, m.bias),
    "leaky_relu": lambda m, x: F.leaky_relu(x, 0.3),
    "elu": lambda m, x: F.elu(x),
    "sigmoid": lambda m, x: torch.sigmoid(x),
    "hardsigmoid": lambda m, x: F.hardsigmoid(3 * x),
    "hardswish": lambda m, x: F.hardswish(3 * x),
    "silu": lambda m, x: F.silu(x),
    "tanh": lambda m, x: torch.tanh(x),
    "abs": lambda m, x: x.abs(),
    "softmax": lambda m, x: F.softmax(x, 1),
    "softmax of features": lambda m, x: F.softmax(x.flatten(1), -1),
    "max_pool2d": lambda m, x: F.max_pool2d(x, 3, 2, 1),
    "avg_pool2d": lambda m, x: F.avg_pool2d(x, (2, 3), 1, 1, count_include_pad=False),
    "max_pool2d with holes": lambda m, x: F.max_pool2d(x, 2, 3, 0, (2, 1), ceil_mode=True),
    "avg_pool2d with padding": lambda m, x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "avg_pool2d without stride": lambda m, x: F.avg_pool2d(x, (3, 2)),
    "adaptive_avg_pool2d": lambda m, x: F.adaptive_avg_pool2d(x, (3, None)),
    "mean": lambda m, x: x.mean((-1, -2), keepdim=True),
    "mean without sides": lambda m, x: x.mean([2, 3]),
    "flatten": lambda m, x: x.flatten(1),
    "view": lambda m, x: x.view(x.shape[0], -1),
    "view of halves": lambda m, x: x.view(-1, 3, 14, 5),
    "reshape": lambda m, x: x.reshape(x.shape[0], 6 * 7 * 5),
    "squeeze": lambda m, x: F.adaptive_avg_pool2d(x, 1).squeeze(-1).squeeze(-1),
    "unsqueeze": lambda m, x: x * x.mean((2, 3))[:, :, None, None],
    "zeros_like": lambda m, x: torch.cat([x, torch.zeros_like(x)], 1),
    "cat": lambda m, x: torch.cat([x, -x, x[:, 1:2]], 1),
    "split": lambda m, x: torch.sub(*x.split(3, 1)),
    "split_with_sizes": lambda m, x: x.split([1, 2, 3], 1)[2],
    "chunk": lambda m, x: x.chunk(2, 1)[1],
    "slice": lambda m, x: x[:, 2:-1],
    "slice from far below": lambda m, x: x[:, -100:4],
    "pad": lambda m, x: F.pad(x, (1, 2)),
    "constant_pad_nd": lambda m, x: F.pad(x, (1, 2, 3, 0)),
    "reflection_pad2d": lambda m, x: F.pad(x, (1, 2, 3, 0), mode="reflect"),
    "replication_pad2d": lambda m, x: F.pad(x, (1, 2, 3, 0), mode="replicate"),
    "_pad_circular": lambda m, x: F.pad(x, (1, 2, 3, 0), mode="circular"),
    "add": lambda m, x: x + torch.tanh(x),
    "add alpha": lambda m, x: torch.add(x, torch.tanh(x), alpha=-0.3),
    "add number": lambda m, x: 2 + x,
    "add constant": lambda m, x: torch.add(x, CONSTANT, alpha=3),
    "add_": lambda m, x: (x * 1).add_(x),
    "sub": lambda m, x: x - torch.tanh(x),
    "sub constant": lambda m, x: x - CONSTANT,
    "rsub": lambda m, x: 3 - x,
    "constant less": lambda m, x: CONSTANT - x,
    "mul": lambda m, x: x * torch.sigmoid(x),
    "mul constant": lambda m, x: CONSTANT * x * 3,
    "div": lambda m, x: x / 4,
    "div constant": lambda m, x: x / (CONSTANT + 3),
    "neg": lambda m, x: -x,
    "pow": lambda m, x: x**2,
    "dropout": lambda m, x: F.dropout(x, 0.5, m.training),
    "feature_dropout": lambda m, x: F.dropout2d(x, 0.5, m.training),
    "clone": lambda m, x: x.clone().contiguous().detach(),
    "to": lambda m, x: x.float().to(torch.float32).type_as(x),
    "layer": lambda m, x: m.layer(x),
}


class Net(nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.first = nn.Conv2d(3, 6, 1)
        self.weight, self.bias = nn.Parameter(torch.randn(6, 2, 3, 3)), nn.Parameter(torch.randn(6))
        self.matrix, self.norm = nn.Parameter(torch.randn(4, 210)), nn.BatchNorm1d(6, eps=0.2)
        self.layer = onebit.ProjectionConv2d(6, 4, 3, num_projections=2)

    def forward(self, x):
        return self.function(self, self.first(x))


@pytest.mark.parametrize("case", CASES)
def test_rule(case, tmp_path):
    net, x = Net(CASES[case]).eval(), torch.randn(2, 3, 7, 5, generator=torch.Generator().manual_seed(1))
    onebit.export(net, tmp_path / "net.onebit", x[:1])
    with torch.no_grad():
        expected = net(x).numpy()
    found = onebit.load(tmp_path / "net.onebit")(x.numpy())
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_every_rule_has_a_case():
    """By the operation's name; those that torch itself puts in the place of another are told in the table."""
    told = {name.removeprefix("aten.").removeprefix("onebit.") for name, entry in TABLE.items() if entry.written}
    assert told <= {case.split()[0] for case in CASES}, told - {case.split()[0] for case in CASES}
