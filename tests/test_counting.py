"""What nets take, counted: cases by hand."""

import pytest
import torch
from torch import nn

import onebit
from onebit.counting import bits_of
from onebit.exporting.exporter import count_parameters
from onebit.rivals import BnnConv2d, BwnConv2d, ModulatedConv2d


def test_levels_that_are_given_are_stored_and_those_of_a_are_not():
    for J in (1, 2):
        given = onebit.ProjectionConv2d(4, 4, 3, num_projections=J, levels=(-1.0, 0.0, 0.5, 2.0, 3.0))
        assert onebit.storage(given)[1:] == (3 * 4 * 4 * 9, 5)
    own = onebit.ProjectionConv2d(4, 4, 3, levels=5, scale="kernel")
    assert onebit.storage(own)[1:] == (3 * 4 * 4 * 9, 4)


def test_kernels_are_stored_once_whatever_is_made_of_them():
    for K in (1, 3):
        mcn = ModulatedConv2d(4, 6, 3, num_projections=K, bias=True)
        assert onebit.storage(mcn)[1:] == (6 // K * 4 * 9, K * 9 + 6)


def test_a_bias_that_layers_share_counts_once():
    net = nn.Sequential(*(BnnConv2d(4, 4, 1, bias=True) for _ in range(3)))
    net[2].bias = net[0].bias
    assert onebit.storage(net) == (3 * 16 + 2 * 4, 3 * 16, 2 * 4)


def test_the_bits_of_a_net_are_those_of_its_widest_layers():
    net = nn.Sequential(BnnConv2d(4, 4, 1), BwnConv2d(4, 4, 1), onebit.ProjectionConv2d(4, 4, 1, levels=9))
    assert bits_of(net) == (4, 32)
    assert bits_of(net[:1]) == (1, 1)


def test_what_the_file_tells_of_the_net_in_float():
    """Convolutions and linear layers with their biases, norms; of a 1-bit layer the conv in its place, no PReLU."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.PReLU(4),
        onebit.ProjectionConv2d(4, 6, (3, 2), groups=2, num_projections=3, bias=True),
        onebit.ProjectionConv2d(6, 6, 1), nn.Linear(6, 2),
    )  # fmt: skip
    first, last = 4 * 3 * 9 + 4, 6 * 2 + 2
    assert count_parameters(net) == (first + 2 * 4 + 6 * (2 * 6 + 1) + 6 * 6 + last, first + last)
    net[4].C = nn.Parameter(torch.zeros(6, 6, 1, 1))
    assert count_parameters(nn.Sequential(net, net[0])) == count_parameters(net), "what stands twice counts once"


def test_a_tied_weight_counts_once():
    net = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1))
    net[1].weight = net[0].weight
    assert count_parameters(net) == (16 + 8, 16 + 8)


@pytest.mark.parametrize(("name", "meant"), [("XNOR", "xnor"), ("PCNN", "pcnn"), ("Bi-Real", "bireal")])
def test_a_method_in_capitals_is_guessed(name, meant):
    with pytest.raises(ValueError, match=f"method='{name}': did you mean '{meant}'"):
        onebit.binarize(nn.Conv2d(1, 1, 1), name)
