"""With a GradScaler the step is exact, or refused."""

import copy
import math

import pytest
import torch

import onebit
from loops import ETA, loss_of, sgd, small_net


@pytest.fixture
def batch(batch):
    return batch[0].float(), batch[1]


@pytest.fixture
def net(batch):
    net = small_net().float()
    net(batch[0])
    return net


def steps_with_and_without_a_scaler(net, batch, *, unscale_first=False, fused=False):
    """Train two equal nets for three steps; after each, both nets' parameters in pairs."""
    plain, scaled = net, copy.deepcopy(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    one, two = sgd(plain, fused=fused), sgd(scaled, fused=fused)
    onebit.discrete_backprop(plain, one)
    onebit.discrete_backprop(scaled, two, scaler=scaler)
    for _ in range(3):
        one.zero_grad()
        two.zero_grad()
        loss_of(plain, batch).backward()
        one.step()
        scaler.scale(loss_of(scaled, batch)).backward()
        if unscale_first:
            scaler.unscale_(two)
        scaler.step(two)
        scaler.update()
        yield zip(plain.parameters(), scaled.parameters(), strict=True)


@pytest.mark.parametrize("unscale_first", [False, True])
def test_grad_scaler_passed_is_exact(net, batch, unscale_first):
    """Scaling by a power of two is exact, so the step must be that without a scaler, bit for bit."""
    for pairs in steps_with_and_without_a_scaler(net, batch, unscale_first=unscale_first):
        for p, q in pairs:
            assert torch.equal(p, q)


def test_grad_scaler_with_a_fused_optimizer_is_exact(net, batch):
    """A fused optimizer unscales inside its kernel, after our hook."""
    for pairs in steps_with_and_without_a_scaler(net, batch, fused=True):
        for p, q in pairs:
            torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("fused", [False, True])
def test_an_overflow_skips_the_step(net, batch, fused):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = sgd(net, fused=fused)
    onebit.discrete_backprop(net, optimizer, scaler=scaler)
    before = copy.deepcopy(net.state_dict())
    (scaler.scale(loss_of(net, batch)) * math.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert scaler.get_scale() == 2.0**9
    optimizer.zero_grad()
    scaler.scale(loss_of(net, batch)).backward()
    scaler.step(optimizer)
    assert not all(torch.equal(before[k], v) for k, v in net.state_dict().items())


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_clips_nothing(fused):
    """A fused optimizer is called even then, and so are hooks behind its step."""
    layer = onebit.rivals.BinaryConnectConv2d(1, 2, 3)
    with torch.no_grad():
        layer.weight.fill_(3.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0, fused=fused)
    onebit.discrete_backprop(layer, optimizer, scaler=scaler)
    for factor, expected in ((math.inf, 3.0), (1.0, 1.0)):
        (scaler.scale(layer(torch.ones(1, 1, 3, 3)).sum()) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert layer.weight.unique().tolist() == [expected]


@pytest.mark.parametrize("fused", [False, True])
def test_grad_scaler_not_passed_is_refused(net, batch, fused):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = sgd(net, fused=fused)
    onebit.discrete_backprop(net, optimizer)
    scaler.scale(loss_of(net, batch)).backward()
    with pytest.raises(RuntimeError, match="called by a GradScaler.*pass scaler="):
        scaler.step(optimizer)


def test_fp16_autocast_needs_the_scaler_by_hand_too(net, batch):
    with torch.autocast("cpu", torch.float16):
        loss = loss_of(net, batch)
    loss.backward()
    with pytest.raises(RuntimeError, match="float16 needs a GradScaler"):
        onebit.add_projection_gradients(net, ETA)
    onebit.add_projection_gradients(net, ETA, scaler=torch.amp.GradScaler("cpu", enabled=False))


def test_by_hand_with_a_scaler_is_exact(net, batch):
    plain, scaled = copy.deepcopy(net), net
    loss_of(plain, batch).backward()
    onebit.add_projection_gradients(plain, ETA)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    optimizer = sgd(scaled)
    scaler.scale(loss_of(scaled, batch)).backward()
    with pytest.raises(RuntimeError, match=r"call scaler\.unscale_\(optimizer\) before"):
        onebit.add_projection_gradients(scaled, ETA, scaler=scaler)
    scaler.unscale_(optimizer)
    onebit.add_projection_gradients(scaled, ETA, scaler=scaler)
    for p, q in zip(plain.parameters(), scaled.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


def test_an_overflow_by_hand_is_left_to_the_scaler(net, batch):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = sgd(net)
    before = copy.deepcopy(net.state_dict())
    (scaler.scale(loss_of(net, batch)) * math.inf).backward()
    scaler.unscale_(optimizer)
    onebit.add_projection_gradients(net, ETA, scaler=scaler)
    scaler.step(optimizer)
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())


def test_an_evaluation_in_between_does_not_hide_float16(net, batch):
    with torch.autocast("cpu", torch.float16):
        loss = loss_of(net, batch)
    loss.backward()
    with torch.no_grad():
        net(batch[0])
    with pytest.raises(RuntimeError, match="float16 needs a GradScaler"):
        onebit.add_projection_gradients(net, ETA)


def test_a_scaler_that_is_turned_off_need_not_be_passed(net, batch):
    plain, other = net, copy.deepcopy(net)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    one, two = sgd(plain), sgd(other)
    onebit.discrete_backprop(plain, one)
    onebit.discrete_backprop(other, two)
    loss_of(plain, batch).backward()
    one.step()
    scaler.scale(loss_of(other, batch)).backward()
    scaler.step(two)
    for p, q in zip(plain.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


def test_by_hand_beside_an_optimizer_that_has_stepped_already(net, batch):
    """Of two optimizers under one scaler it is enough that the kernels' gradients are unscaled."""
    twin = copy.deepcopy(net)
    loss_of(twin, batch).backward()
    expected = onebit.add_projection_gradients(twin, ETA)
    head = torch.optim.SGD(net[-1].parameters(), lr=ETA)
    rest = torch.optim.SGD(net[:-1].parameters(), lr=ETA)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    scaler.scale(loss_of(net, batch)).backward()
    scaler.step(head)
    scaler.unscale_(rest)
    assert onebit.add_projection_gradients(net, ETA, scaler=scaler) == expected
    for one, other in zip(net[:-1].parameters(), twin[:-1].parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
