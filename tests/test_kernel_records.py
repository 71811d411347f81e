"""What a run records of its kernels: which bits have turned, and how their numbers are spread."""

import numpy as np
import pytest
import torch

from onebit import ProjectionConv2d
from onebit.training.kernels import BINS, REACH, flipped, histograms, sign_bits


def test_kernels_and_matrices_that_have_turned():
    first, second = ProjectionConv2d(3, 4, 3), ProjectionConv2d(4, 8, 3, num_projections=2)
    net = torch.nn.Sequential(first, second)
    before = sign_bits(net)
    with torch.no_grad():
        for parameter, count in ((first.C, 5), (second.C, 7), (second.W, 3)):
            parameter.view(-1)[:count].mul_(-1)
    weights = first.C.numel() + second.C.numel()
    shares = {"flipped_kernels": 12 / weights, "flipped_projections": 3 / (first.W.numel() + second.W.numel())}
    assert flipped(before, net) == pytest.approx(shares)
    found = histograms(before, net)
    assert [layer["flipped"] for layer in found.values()] == [5 / first.C.numel(), 7 / second.C.numel()]


def test_every_kernel_is_in_the_histogram():
    """In units of their mean size; those that are beyond its ends, too."""
    layer = ProjectionConv2d(2, 4, 3)
    with torch.no_grad():
        layer.C.fill_(0.01)
        layer.C.view(-1)[:3] = torch.tensor([1.0, 0.9, -0.8])
        values = layer.C.detach().numpy().flatten()
    (found,) = histograms(sign_bits(torch.nn.Sequential(layer)), torch.nn.Sequential(layer)).values()
    a = float(np.abs(values).mean())
    assert found["a"] == pytest.approx(a)
    expected, _ = np.histogram(np.clip(values / a, -REACH, REACH), BINS, (-REACH, REACH))
    assert found["counts"] == expected.tolist()
    assert (found["counts"][0], found["counts"][-1], sum(found["counts"])) == (1, 2, values.size)
