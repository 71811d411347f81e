"""parameter_groups."""

import math

import pytest
import torch
from torch import nn

import onebit
from loops import projections
from onebit.methods import layer_of


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
    assert list(groups) == ["kernels", "projections", "others", "vectors"]
    assert [groups[name]["lr"] for name in groups] == [0.1, 0.5, 0.1, 0.1]
    assert groups["kernels"]["weight_decay"] == groups["vectors"]["weight_decay"] == 0.0
    assert all(p.ndim < 2 for p in groups["vectors"]["params"])
    assert all(p is not net.stem.weight for g in made for p in g["params"])
    standing = {g["name"]: g["lr"] for g in onebit.parameter_groups(net, lr=0.2, lr_w=0.0)}
    assert standing == {"kernels": 0.2, "projections": 0.0, "others": 0.2}  # 0 is a rate, not one that is left out
    for wrong in (
        {"lr": -1}, {"lr_w": math.nan}, {"weight_decay": -0.1}, {"kernel_rate": 0}, {"kernel_rate": math.inf},
        {"kernel_rate": "glorot"}, {"kernel_rate": True},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
            onebit.parameter_groups(net, **wrong)
    with pytest.raises(ValueError, match="nothing to train"):
        onebit.parameter_groups(nn.ReLU())


def test_a_rate_of_kernels_is_theirs_alone():
    net = onebit.models.wrn22(4, num_projections=2)
    plain = {g["name"]: g for g in onebit.parameter_groups(net, lr=0.2, weight_decay=5e-4)}
    fast = {g["name"]: g for g in onebit.parameter_groups(net, lr=0.2, weight_decay=5e-4, kernel_rate=8)}
    assert (fast["kernels"]["lr"], fast["kernels"]["weight_decay"]) == (1.6, 5e-4 / 8)
    for name in ("projections", "others"):
        assert (fast[name]["lr"], fast[name]["weight_decay"]) == (plain[name]["lr"], plain[name]["weight_decay"])
    members = [[list(map(id, group["params"])) for group in groups.values()] for groups in (plain, fast)]
    assert members[0] == members[1]


def test_the_authors_rates_are_those_of_each_layer():
    net = onebit.models.wrn22(16, method="bnn")
    groups = [g for g in onebit.parameter_groups(net, lr=0.5, kernel_rate="authors") if g["name"] == "kernels"]
    found = {id(p): g["lr"] for g in groups for p in g["params"]}
    layers = [layer for layer in net.modules() if isinstance(layer, onebit.rivals.BnnConv2d)]
    assert len(found) == len(layers) > 3
    for layer in layers:
        ins_and_outs = layer.in_channels + layer.out_channels
        assert found[id(layer.weight)] == pytest.approx(0.5 * math.sqrt(ins_and_outs * 9 / 1.5))
    assert len(groups) == len({(layer.in_channels, layer.out_channels) for layer in layers}) == 5
    plain = onebit.parameter_groups(onebit.models.wrn22(4), lr=0.5, kernel_rate="authors")
    assert [g["lr"] for g in plain] == [0.5, 0.05, 0.5]  # PCNN's authors know of no such factor


@pytest.mark.parametrize(
    ("method", "decays"), [("bnn", False), ("binaryconnect", False), ("pcnn", True), ("xnor", True)]
)
def test_kernels_decay_where_their_authors_let_them(method, decays):
    net = onebit.models.wrn22(2, method=method)
    (group,) = [g for g in onebit.parameter_groups(net, weight_decay=0.1) if g["name"] == "kernels"]
    assert group["weight_decay"] == (0.1 if decays else 0.0)
    for asked in (True, False):
        made = onebit.parameter_groups(net, weight_decay=0.1, decay_kernels=asked)
        (group,) = [g for g in made if g["name"] == "kernels"]
        assert group["weight_decay"] == (0.1 if asked else 0.0)


# A 1-bit 1x1 conv of one channel, W = 1/2, behind a float one, v = 1/4. For the input 2 it gives 2 v sgn(W), the
# loss. BinaryConnect passes the gradient straight through, so dL/dW = 2 v, and dL/dv = 2 sgn(W).


def tiny(method):
    net = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), layer_of(method)(1, 1, 1, bias=False))
    with torch.no_grad():
        net[0].weight.fill_(0.25)
        getattr(net[1], net[1].KERNEL).fill_(0.5)
    return net.double()


def step(net, optimizer):
    optimizer.zero_grad()
    net(torch.full((1, 1, 1, 1), 2.0, dtype=torch.float64)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("rate", [1, 4, 0.5])
def test_two_updates_by_hand(rate):
    """With momentum and decay: the steps of the loss are multiplied, those of decay are not."""
    lr, decay, momentum = 2**-6, 2**-3, 0.5
    net = tiny("binaryconnect")
    groups = onebit.parameter_groups(net, lr, weight_decay=decay, kernel_rate=rate, decay_kernels=True)
    optimizer = torch.optim.SGD(groups, momentum=momentum)
    onebit.discrete_backprop(net, optimizer)
    v, W, moved_v, moved_W = 0.25, 0.5, 0.0, 0.0
    for _ in range(2):
        step(net, optimizer)
        grad_v, grad_W = 2 * math.copysign(1, W), 2 * v
        moved_v = momentum * moved_v + lr * (grad_v + decay * v)
        moved_W = momentum * moved_W + lr * (rate * grad_W + decay * W)
        v, W = v - moved_v, min(max(W - moved_W, -1), 1)
        assert (net[0].weight.item(), net[1].weight.item()) == pytest.approx((v, W), rel=1e-15)


def test_eta_of_the_projection_loss_is_the_rate_of_the_kernels():
    """The eta of eta * delta in L_P is the rate with which the task's step moves the kernels."""
    moved = {}
    for rate in (1.0, 5.0):
        net = tiny("pcnn")
        optimizer = torch.optim.SGD(onebit.parameter_groups(net, lr=0.01, kernel_rate=rate))
        onebit.discrete_backprop(net, optimizer)
        step(net, optimizer)
        moved[rate] = net[1].C.grad.item()
    by_hand = {}
    for rate in moved:
        net = tiny("pcnn")
        net(torch.full((1, 1, 1, 1), 2.0, dtype=torch.float64)).sum().backward()
        onebit.add_projection_gradients(net, 0.01 * rate)
        by_hand[rate] = net[1].C.grad.item()
    assert moved == by_hand
    assert moved[1.0] != moved[5.0]
