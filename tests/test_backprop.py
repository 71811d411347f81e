"""After discrete_backprop or add_projection_gradients, .grad is that of L_S + L_P: in every kind of loop."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import onebit
import oracle
from loops import ETA, LAM, assert_gradients, expected_gradients, loss_of, projections, sgd, small_net
from onebit import ProjectionConv2d


def test_by_hand(net, batch):
    total, expected = expected_gradients(net, batch)
    loss_of(net, batch).backward()
    loss_p = onebit.add_projection_gradients(net, ETA)
    assert float(loss_p) == pytest.approx(total, rel=1e-12)
    assert not loss_p.requires_grad
    assert_gradients(net, expected)


@given(
    st.sampled_from([1, 32]),
    st.sampled_from([1, 2]),
    st.sampled_from([2, 3]),
    st.sampled_from(["layer", "kernel"]),
    st.sampled_from(["elementwise", "mean"]),
    st.sampled_from([None, "normal"]),
    st.sampled_from([None, 0.0, 2.0]),
    st.integers(0, 2**31),
)
def test_by_hand_with_every_option(activation_bits, J, levels, scale, forward_w, w_init, eta, seed):
    torch.manual_seed(seed)
    net = small_net(
        activation_bits, num_projections=J, levels=levels, scale=scale, forward_w=forward_w, w_init=w_init, eta=eta
    )
    batch = torch.randn(2, 2, 7, 7, dtype=torch.float64), torch.randint(0, 3, (2,))
    net(batch[0])
    total, expected = expected_gradients(net, batch)
    loss_of(net, batch).backward()
    assert float(onebit.add_projection_gradients(net, ETA)) == pytest.approx(total, rel=1e-9)
    assert_gradients(net, expected, rtol=1e-7)


def test_without_eta_delta(batch):
    """eta = 0: L_P and its gradients are those of no delta, whatever the learning rate; the task's stay."""
    net = small_net(eta=0.0)
    net(batch[0])
    copied = copy.deepcopy(net)
    loss_of(copied, batch).backward()
    loss_of(net, batch).backward()
    loss_p = onebit.add_projection_gradients(net, ETA)
    total = 0.0
    for layer, twin in zip(projections(net), projections(copied), strict=True):
        C, W = layer.C.detach().numpy(), layer.W.detach().numpy()
        nothing = np.zeros((C.shape[0], W.shape[0], *C.shape[1:]))
        loss, grad_C, grad_W = oracle.projection_gradients(nothing, C, W, LAM, 7.0)
        total += loss
        np.testing.assert_allclose(layer.C.grad - twin.C.grad, grad_C, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(layer.W.grad - twin.W.grad, grad_W, rtol=1e-9, atol=1e-12)
    assert float(loss_p) == pytest.approx(total, rel=1e-12)


def test_at_the_step(net, batch):
    total, expected = expected_gradients(net, batch)
    before = [p.detach().clone() for p in net.parameters()]
    optimizer = sgd(net)
    attached = onebit.discrete_backprop(net, optimizer)
    loss_of(net, batch).backward()
    optimizer.step()
    assert float(attached.projection_loss) == pytest.approx(total, rel=1e-12)
    for p, start, gradient in zip(net.parameters(), before, expected, strict=True):
        torch.testing.assert_close(p.detach(), start - ETA * gradient, rtol=1e-10, atol=1e-12)


def test_with_a_closure(net, batch):
    total, expected = expected_gradients(net, batch)
    loss_s = loss_of(net, batch).item()
    for as_keyword in (False, True):
        trained = copy.deepcopy(net)
        optimizer = sgd(trained)
        onebit.discrete_backprop(trained, optimizer)

        def closure(trained=trained, optimizer=optimizer):
            optimizer.zero_grad()
            loss = loss_of(trained, batch)
            loss.backward()
            return loss

        returned = optimizer.step(closure=closure) if as_keyword else optimizer.step(closure)
        assert returned.item() == pytest.approx(loss_s + total, rel=1e-12)
        assert_gradients(trained, expected)


def test_a_closure_may_return_nothing(net, batch):
    _, expected = expected_gradients(net, batch)
    optimizer = sgd(net)
    attached = onebit.discrete_backprop(net, optimizer)
    assert optimizer.step(lambda: loss_of(net, batch).backward()) is None
    assert attached.projection_loss > 0
    assert_gradients(net, expected)


def test_lbfgs_sees_the_whole_loss_at_every_call_of_its_closure(net, batch):
    """Each call drops, computes and joins anew: loss and gradients are those of L_S + L_P where the net is then."""
    seen = []

    class Watched(torch.optim.LBFGS):
        def step(self, closure):
            def watched():
                loss = closure()
                seen.append((float(loss.detach()), copy.deepcopy(net), [p.grad.clone() for p in net.parameters()]))
                return loss

            return super().step(watched)

    optimizer = Watched(net.parameters(), lr=0.05, max_iter=5)
    onebit.discrete_backprop(net, optimizer)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(net, batch)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert len(seen) > 2
    assert len({loss for loss, _, _ in seen}) == len(seen)
    for loss, then, gradients in seen:
        total, expected = expected_gradients(then, batch, eta=0.05)
        assert total > 0
        assert loss == pytest.approx(loss_of(then, batch).item() + total, rel=1e-10)
        for found, gradient in zip(gradients, expected, strict=True):
            torch.testing.assert_close(found, gradient, rtol=1e-9, atol=1e-12)


def test_with_several_groups(net, batch):
    """eta is the learning rate of the group that holds this layer's C."""
    first, second = projections(net)
    rest = [p for p in net.parameters() if p is not first.C and p is not second.C]
    groups = [{"params": [first.C], "lr": 0.5}, {"params": [second.C], "lr": 0.02}, {"params": rest, "lr": 0.9}]
    _, at_half = expected_gradients(net, batch, eta=0.5)
    _, at_small = expected_gradients(net, batch, eta=0.02)
    names = [name for name, _ in net.named_parameters()]
    optimizer = torch.optim.SGD(groups)
    onebit.discrete_backprop(net, optimizer)
    loss_of(net, batch).backward()
    optimizer.step()
    torch.testing.assert_close(first.C.grad, at_half[names.index("2.C")])
    torch.testing.assert_close(first.W.grad, at_half[names.index("2.W")])
    torch.testing.assert_close(second.C.grad, at_small[names.index("4.C")])
    torch.testing.assert_close(second.W.grad, at_small[names.index("4.W")])


def test_with_an_optimizer_for_each_layer(net, batch):
    _, expected = expected_gradients(net, batch)
    first, second = projections(net)
    one, two = (torch.optim.SGD([layer.C, layer.W], ETA) for layer in (first, second))
    onebit.discrete_backprop(net, one)
    onebit.discrete_backprop(net, two)
    loss_of(net, batch).backward()
    one.step()
    two.step()
    assert_gradients(net, expected)


def test_eta_follows_the_schedule(net, batch):
    optimizer = sgd(net, lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    attached = onebit.discrete_backprop(net, optimizer)
    for _ in range(3):
        total, _ = expected_gradients(net, batch, eta=optimizer.param_groups[0]["lr"])
        optimizer.zero_grad()
        loss_of(net, batch).backward()
        optimizer.step()
        schedule.step()
        assert float(attached.projection_loss) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_two_micro_batches_are_one_batch(net, batch, set_to_none):
    whole, halves = copy.deepcopy(net), copy.deepcopy(net)
    images, labels = batch
    for trained, parts in ((whole, [slice(0, 6)]), (halves, [slice(0, 3), slice(3, 6)])):
        optimizer = sgd(trained, momentum=0.9, weight_decay=0.01)
        onebit.discrete_backprop(trained, optimizer)
        for _ in range(5):
            optimizer.zero_grad(set_to_none=set_to_none)
            for part in parts:
                (loss_of(trained, (images[part], labels[part])) / len(parts)).backward()
            optimizer.step()
    for p, q in zip(whole.parameters(), halves.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-11, atol=1e-13)


def test_clipping_is_of_the_task_alone(net, batch):
    _, expected = expected_gradients(net, batch, clip=1e-2)
    optimizer = sgd(net)
    onebit.discrete_backprop(net, optimizer)
    loss_of(net, batch).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1e-2)
    optimizer.step()
    assert_gradients(net, expected)


def test_compiled_net(net, batch):
    torch._dynamo.reset()
    _, expected = expected_gradients(net, batch)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    optimizer = sgd(net)
    onebit.discrete_backprop(compiled, optimizer)
    loss_of(compiled, batch).backward()
    optimizer.step()
    assert_gradients(net, expected)


def test_frozen_parts(net, batch):
    """A frozen C takes no part; a frozen W is not moved, but its L_P still moves C."""
    first, second = projections(net)
    first.C.requires_grad_(False)
    second.W.requires_grad_(False)
    twin = copy.deepcopy(net)
    loss_of(twin, batch).backward()
    delta = projections(twin)[1]._delta.read().numpy()
    C, W = second.C.detach().numpy(), second.W.detach().numpy()
    shaped = delta.reshape(C.shape[0], W.shape[0], *C.shape[1:])
    _, grad_C, _ = oracle.projection_gradients(shaped, C, W, LAM, ETA)
    loss_of(net, batch).backward()
    task_W = first.W.grad.clone()
    onebit.add_projection_gradients(net, ETA)
    assert first.C.grad is None
    assert torch.equal(first.W.grad, task_W)
    assert second.W.grad is None
    torch.testing.assert_close(second.C.grad, projections(twin)[1].C.grad + torch.from_numpy(grad_C))


def test_tied_kernels_get_both_layers_losses(batch):
    net = small_net()
    net.add_module("6", nn.Identity())
    first = net[2]
    net[4] = ProjectionConv2d(4, 6, 3, num_projections=2, lam=LAM, dtype=torch.float64)
    net[4].C = first.C
    net[3] = nn.Sequential(nn.Tanh(), nn.Conv2d(6, 4, 1, dtype=torch.float64))
    net[5] = nn.Sequential(nn.Flatten(), nn.LazyLinear(3, dtype=torch.float64))
    net(batch[0])
    loss_of(net, batch).backward()
    deltas = [layer._delta.read().numpy().reshape(3, 2, 4, 3, 3) for layer in (first, net[4])]
    task = first.C.grad.clone()
    onebit.add_projection_gradients(net, ETA)
    parts = [
        oracle.projection_gradients(d, first.C.detach().numpy(), layer.W.detach().numpy(), LAM, ETA)[1]
        for d, layer in zip(deltas, (first, net[4]), strict=True)
    ]
    torch.testing.assert_close(first.C.grad, task + torch.from_numpy(parts[0] + parts[1]))


def test_a_discarded_backward_leaves_nothing(net, batch):
    other = torch.randn_like(batch[0]), batch[1]
    _, expected = expected_gradients(net, batch)
    optimizer = sgd(net)
    onebit.discrete_backprop(net, optimizer)
    loss_of(net, other).backward()
    optimizer.zero_grad()
    loss_of(net, batch).backward()
    optimizer.step()
    assert_gradients(net, expected)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_second_step_by_hand(net, batch, set_to_none):
    """What was joined is forgotten with the gradient, however it is dropped."""
    for _ in range(2):
        net.zero_grad(set_to_none=set_to_none)
        total, expected = expected_gradients(net, batch)
        loss_of(net, batch).backward()
        assert float(onebit.add_projection_gradients(net, ETA)) == pytest.approx(total, rel=1e-12)
        assert_gradients(net, expected)


def test_a_model_without_projection_layers_is_left_alone():
    model = nn.Linear(2, 1)
    optimizer = sgd(model)
    attached = onebit.discrete_backprop(model, optimizer)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert float(attached.projection_loss) == 0.0


def test_a_step_before_any_backward_does_nothing(net):
    optimizer = sgd(net)
    onebit.discrete_backprop(net, optimizer)
    before = copy.deepcopy(net.state_dict())
    optimizer.step()
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())


def test_large_lam_pulls_W_o_C_onto_omega():
    """With L_P alone, W_j o C goes to +-a, from both sides of 0."""
    layer = ProjectionConv2d(3, 4, 3, num_projections=2, lam=1.0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)
    onebit.discrete_backprop(layer, optimizer)

    def distance():
        a = layer.C.detach().abs().mean()
        product = layer.W.detach()[None, :, None] * layer.C.detach()[:, None]
        return float((product.abs() - a).abs().max() / a)

    start = distance()
    for _ in range(600):
        optimizer.zero_grad()
        (layer(torch.ones(1, 3, 3, 3)) * 0).sum().backward()
        optimizer.step()
    assert start > 0.5
    assert distance() < 0.01


def test_a_layer_that_the_loss_does_not_depend_on(net, batch):
    """A zero loss weight, stochastic depth: C.grad is zero of itself, and clipping writes to it."""
    twin = copy.deepcopy(net)
    for trained, clip in ((net, True), (twin, False)):
        optimizer = sgd(trained)
        onebit.discrete_backprop(trained, optimizer)
        (loss_of(trained, batch) * 0).backward()
        if clip:
            nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), twin.parameters(), strict=True))


def test_a_layer_not_used_in_this_pass(net, batch):
    """Its zeroed gradient stays; L_P then has delta = 0, not that of the pass before."""
    optimizer = sgd(net)
    attached = onebit.discrete_backprop(net, optimizer)
    for used in (True, False, True):
        optimizer.zero_grad(set_to_none=False)
        then = copy.deepcopy(net)
        (loss_of(net, batch) if used else sum(p.sum() for p in net[6].parameters())).backward()
        optimizer.step()
        if used:
            total, expected = expected_gradients(then, batch)
            assert_gradients(net, expected)
        else:
            total = 0.0
            for layer, was in zip(projections(net), projections(then), strict=True):
                C, W = was.C.detach().numpy(), was.W.detach().numpy()
                nothing = np.zeros((C.shape[0], W.shape[0], *C.shape[1:]))
                loss, grad_C, grad_W = oracle.projection_gradients(nothing, C, W, LAM, ETA)
                total += loss
                torch.testing.assert_close(layer.C.grad, torch.from_numpy(grad_C), rtol=1e-10, atol=1e-12)
                torch.testing.assert_close(layer.W.grad, torch.from_numpy(grad_W), rtol=1e-10, atol=1e-12)
            assert all((p.grad == 1).all() for p in net[6].parameters())
            assert not any(p.grad.any() for p in net[0].parameters())
        assert float(attached.projection_loss) == pytest.approx(total, rel=1e-10)


def test_a_pass_through_the_frozen_net_adds_nothing(net, batch):
    """As in a GAN: the discriminator's own loss, then the generator's through it, frozen."""
    total, expected = expected_gradients(net, batch)
    loss_of(net, batch).backward()
    net.requires_grad_(False)
    images = torch.randn_like(batch[0]).requires_grad_()
    loss_of(net, (images, batch[1])).backward()
    assert images.grad.any()
    net.requires_grad_(True)
    assert float(onebit.add_projection_gradients(net, ETA)) == pytest.approx(total, rel=1e-12)
    assert_gradients(net, expected)
