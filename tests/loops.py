"""A small net and what its gradients must be, for the tests of training loops."""

import copy

import torch
from torch import nn

import oracle
from onebit import ProjectionConv2d

LAM, ETA = 0.05, 0.3


def small_net(activation_bits=32, **options):
    """Two projection layers, no batch statistics, float64."""
    options = {"lam": LAM, "num_projections": 2, "activation_bits": activation_bits} | options
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.Tanh(),
        ProjectionConv2d(4, 6, 3, **options),
        nn.Tanh(),
        ProjectionConv2d(6, 4, 2, **options),
        nn.Flatten(),
        nn.LazyLinear(3),
    ).double()


def loss_of(net, batch):
    return nn.functional.cross_entropy(net(batch[0]), batch[1])


def projections(net):
    return [layer for layer in net.modules() if isinstance(layer, ProjectionConv2d)]


def expected_gradients(net, batch, eta=ETA, clip=None):
    """L_S by autograd on a copy, with delta = dL_S/dD; L_P by the oracle's loops on top of it."""
    twin = copy.deepcopy(net)
    loss_of(twin, batch).backward()
    deltas = [layer._delta.read().numpy() for layer in projections(twin)]
    if clip is not None:
        nn.utils.clip_grad_norm_(twin.parameters(), clip)
    total = 0.0
    for layer, delta in zip(projections(twin), deltas, strict=True):
        C, W, how = layer.C.detach().numpy(), layer.W.detach().numpy(), layer.projection
        own = eta if layer.eta is None else layer.eta
        shaped = delta.reshape(C.shape[0], W.shape[0], *C.shape[1:])
        loss, grad_C, grad_W = oracle.projection_gradients(
            shaped, C, W, layer.lam, own, how.levels, how.scale, how.forward_w
        )
        total += loss
        layer.C.grad += torch.from_numpy(grad_C)
        layer.W.grad += torch.from_numpy(grad_W)
    return total, [p.grad for p in twin.parameters()]


def assert_gradients(net, expected, rtol=1e-10):
    for (name, p), gradient in zip(net.named_parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=rtol, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}")


def sgd(net, lr=ETA, **options):
    return torch.optim.SGD(net.parameters(), lr=lr, **options)
