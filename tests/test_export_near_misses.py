"""Operations that look like ones of the table and compute something else: refused, and never taken for those."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import onebit

MISSES = {
    "div floor": (lambda x: torch.div(x, 2, rounding_mode="floor"), "only division by a number or a constant"),
    "div trunc": (lambda x: torch.div(x, 2, rounding_mode="trunc"), "only division by a number or a constant"),
    "cube": (lambda x: x**3, "only squares can be"),
    "root": (lambda x: x.abs() ** 0.5, "only squares can be"),
    "elu": (lambda x: F.elu(x, 0.5), "only alpha = 1 can be"),
    "celu": (lambda x: F.celu(x, 0.5), "not supported"),
    "softmax of rows": (lambda x: F.softmax(x, 2), "dim=2: only dim=1 can be"),
    "softmax of columns": (lambda x: F.softmax(x, -1), "dim=-1: only dim=1 can be"),
    "crop": (lambda x: F.pad(x, (-1, 0, 1, 1)), "it crops; only padding can be"),
    "steps": (lambda x: x[:, ::2], "only channels can be taken, without steps"),
    "rows": (lambda x: x.split(2, 2)[0], "dim=2: only channels"),
    "columns": (lambda x: x.chunk(2, -1)[1], "dim=-1: only channels"),
    "rsub": (lambda x: torch.rsub(x, 3, alpha=2), "only a number or a constant less a value"),
    "mean of rows": (lambda x: x.mean(2), "only the mean over height and width"),
    "statistics of the batch": (
        lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4), training=True),
        "running statistics, in eval mode",
    ),
    "no statistics": (nn.BatchNorm2d(4, track_running_stats=False), "running statistics, in eval mode"),
    "linear over columns": (lambda x: F.linear(x, torch.ones(2, 6)), "flatten first"),
}


class Behind(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.conv, self.function = nn.Conv2d(3, 4, 1), function

    def forward(self, x):
        return self.function(self.conv(x))


@pytest.mark.parametrize("case", MISSES)
def test_it_is_refused(case, tmp_path):
    function, words = MISSES[case]
    with pytest.raises(onebit.ExportError, match=words):
        onebit.export(Behind(function).eval(), tmp_path / "net.onebit", torch.zeros(1, 3, 6, 6))
    assert not list(tmp_path.iterdir())
