"""What discrete_backprop and add_projection_gradients refuse, and that a refusal changes nothing."""

import copy
import gc
import math
import weakref

import pytest
import torch
from torch.nn.utils import prune

import onebit
from loops import ETA, expected_gradients, loss_of, projections, sgd


def test_by_hand_beside_the_hook_is_an_error(net, batch):
    optimizer = sgd(net)
    attached = onebit.discrete_backprop(net, optimizer)
    loss_of(net, batch).backward()
    with pytest.raises(RuntimeError, match="attached to an optimizer of this model.*use either"):
        onebit.add_projection_gradients(net, ETA)
    attached.remove()
    onebit.add_projection_gradients(net, ETA)


def test_by_hand_and_then_the_hook_in_one_step_is_an_error(net, batch):
    loss_of(net, batch).backward()
    onebit.add_projection_gradients(net, ETA)
    optimizer = sgd(net)
    onebit.discrete_backprop(net, optimizer)
    before = [p.detach().clone() for p in net.parameters()]
    with pytest.raises(RuntimeError, match=r"2: its gradients hold L_P already.*either discrete_backprop or"):
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))
    optimizer.zero_grad()
    loss_of(net, batch).backward()
    optimizer.step()  # and zero_grad mends it


def test_by_hand_twice_is_an_error(net, batch):
    loss_of(net, batch).backward()
    onebit.add_projection_gradients(net, ETA)
    with pytest.raises(RuntimeError, match="hold L_P already"):
        onebit.add_projection_gradients(net, ETA)


def test_a_step_without_zero_grad_is_an_error(net, batch):
    optimizer = sgd(net)
    onebit.discrete_backprop(net, optimizer)
    loss_of(net, batch).backward()
    optimizer.step()
    loss_of(net, batch).backward()
    with pytest.raises(RuntimeError, match="zero_grad"):
        optimizer.step()


def test_attaching_twice_is_an_error_until_removed(net, batch):
    optimizer = sgd(net)
    attached = onebit.discrete_backprop(net, optimizer)
    with pytest.raises(RuntimeError, match="attached to this optimizer already"):
        onebit.discrete_backprop(net, optimizer)
    attached.remove()
    loss_of(net, batch).backward()
    task = [p.grad.clone() for p in net.parameters()]
    optimizer.step()
    assert all(torch.equal(p.grad, g) for p, g in zip(net.parameters(), task, strict=True))
    onebit.discrete_backprop(net, optimizer)


def test_attachment_dies_with_its_optimizer(net):
    optimizer = sgd(net)
    gone = weakref.ref(optimizer)
    onebit.discrete_backprop(net, optimizer)
    del optimizer
    gc.collect()
    assert gone() is None


def test_an_optimizer_of_another_model_is_refused(net):
    with pytest.raises(ValueError, match="make it after binarize"):
        onebit.discrete_backprop(net, sgd(copy.deepcopy(net)))


def test_a_gradient_without_delta_is_an_error(net, batch):
    loss_of(net, batch).backward(inputs=list(net.parameters()))
    with pytest.raises(RuntimeError, match="left no delta"):
        onebit.add_projection_gradients(net, ETA)


def test_non_finite_gradients_stop_before_the_step(net, batch):
    optimizer = sgd(net)
    onebit.discrete_backprop(net, optimizer)
    before = copy.deepcopy(net.state_dict())
    (loss_of(net, batch) * math.inf).backward()
    with pytest.raises(ValueError, match=r"gradient at the quantised kernels of 2 holds .* non-finite"):
        optimizer.step()
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())


def test_arguments_in_the_wrong_order(net):
    with pytest.raises(ValueError, match="not SGD and Sequential"):
        onebit.discrete_backprop(sgd(net), net)


def test_C_and_W_belong_in_one_optimizer(net):
    kernels = [layer.C for layer in projections(net)]
    with pytest.raises(ValueError, match="holds C of 2 but not its W"):
        onebit.discrete_backprop(net, torch.optim.SGD(kernels, ETA))


def test_a_pruned_C_is_refused(net, batch):
    prune.random_unstructured(net[2], "C", 0.5)
    loss_of(net, batch).backward()
    with pytest.raises(RuntimeError, match="2: C is parametrized or pruned"):
        onebit.add_projection_gradients(net, ETA)
    lam, net[2].lam = net[2].lam, 0.0
    assert onebit.add_projection_gradients(net, ETA) > 0, "of the other layer: this one has no L_P now"
    net[2].lam = lam
    net.double()
    prune.remove(net[2], "C")
    net.zero_grad()
    _, expected = expected_gradients(net, batch)
    loss_of(net, batch).backward()
    onebit.add_projection_gradients(net, ETA)
    # the Parameter that prune.remove makes comes last in the order of registration
    assert sorted(float(p.grad.abs().sum()) for p in net.parameters()) == pytest.approx(
        sorted(float(g.abs().sum()) for g in expected)
    )


@pytest.mark.parametrize("eta", [-0.1, math.nan, math.inf])
def test_a_bad_eta_is_named(net, batch, eta):
    loss_of(net, batch).backward()
    with pytest.raises(ValueError, match=f"eta={eta}"):
        onebit.add_projection_gradients(net, eta)


@pytest.mark.parametrize("group", [None, "Auto"])
def test_a_bad_process_group_is_named(net, batch, group):
    loss_of(net, batch).backward()
    with pytest.raises(ValueError, match=f"process_group={group!r}"):
        onebit.add_projection_gradients(net, ETA, process_group=group)


def test_compiled_autograd_is_refused(net, batch):
    loss_of(net, batch).backward()
    with torch._dynamo.config.patch(compiled_autograd=True), pytest.raises(RuntimeError, match="compiled_autograd"):
        onebit.add_projection_gradients(net, ETA)


def test_a_W_that_is_frozen_need_not_be_in_the_optimizer(net, batch):
    for layer in projections(net):
        layer.W.requires_grad_(requires_grad=False)
    before = [(layer.C.detach().clone(), layer.W.detach().clone()) for layer in projections(net)]
    optimizer = torch.optim.SGD([layer.C for layer in projections(net)], lr=ETA)
    attached = onebit.discrete_backprop(net, optimizer)
    loss_of(net, batch).backward()
    optimizer.step()
    assert attached.projection_loss > 0
    for layer, (C, W) in zip(projections(net), before, strict=True):
        assert not torch.equal(layer.C, C)
        assert torch.equal(layer.W, W)


def test_layers_without_a_loss_of_their_own_may_be_asked_for_it():
    """Beside the hook, too: there is nothing that could be added twice."""
    layer = onebit.rivals.BnnConv2d(2, 2, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)  # the hook lives as long as this
    onebit.discrete_backprop(layer, optimizer)
    layer(torch.randn(1, 2, 4, 4)).sum().backward()
    before = layer.weight.grad.clone()
    assert onebit.add_projection_gradients(layer, ETA) == 0
    assert torch.equal(layer.weight.grad, before)
