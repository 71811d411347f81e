"""parameter_groups."""

import math

import pytest
import torch
from torch import nn

import onebit
from loops import projections


def test_parameter_groups():
    net = onebit.models.wrn22(4, num_projections=2)
    groups = {g["name"]: g for g in onebit.parameter_groups(net, lr=0.2, weight_decay=5e-4)}
    assert list(groups) == ["kernels", "projections", "others"]
    assert groups["kernels"]["lr"] == groups["others"]["lr"] == 0.2
    assert groups["projections"]["lr"] == pytest.approx(0.02)
    assert groups["projections"]["weight_decay"] == 0.0
    assert groups["kernels"]["weight_decay"] == groups["others"]["weight_decay"] == 5e-4
    assert {id(p) for p in groups["kernels"]["params"]} == {id(layer.C) for layer in projections(net)}
    assert {id(p) for p in groups["projections"]["params"]} == {id(layer.W) for layer in projections(net)}
    everything = [id(p) for g in groups.values() for p in g["params"]]
    assert sorted(everything) == sorted(id(p) for p in net.parameters())
    torch.optim.SGD(list(groups.values()), momentum=0.9)


def test_parameter_groups_options():
    net = onebit.models.wrn22(4)
    net.stem.weight.requires_grad_(False)
    made = onebit.parameter_groups(
        net, 0.1, lr_w=0.5, weight_decay=1e-3, decay_kernels=False, decay_norm_and_bias=False
    )
    groups = {g["name"]: g for g in made}
    assert groups["projections"]["lr"] == 0.5
    assert groups["kernels"]["weight_decay"] == groups["vectors"]["weight_decay"] == 0.0
    assert all(p.ndim < 2 for p in groups["vectors"]["params"])
    assert all(p is not net.stem.weight for g in made for p in g["params"])
    for wrong in ({"lr": -1}, {"lr_w": math.nan}, {"weight_decay": -0.1}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
            onebit.parameter_groups(net, **wrong)
    with pytest.raises(ValueError, match="nothing to train"):
        onebit.parameter_groups(nn.ReLU())
