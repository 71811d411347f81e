"""delta lives exactly as long as C.grad: every way in which gradients are dropped, kept or scaled."""

import gc
import threading
import weakref

import pytest
import torch

import onebit
from onebit import ProjectionConv2d


@pytest.fixture
def layer():
    return ProjectionConv2d(2, 4, 3, num_projections=2)


def backward(layer, seed=1):
    x = torch.randn(1, 2, 5, 5, generator=torch.Generator().manual_seed(seed))
    layer(x).square().sum().backward()


def delta_of(layer, seed=1):
    """delta of one backward, measured on a layer without history."""
    other = ProjectionConv2d(2, 4, 3, num_projections=2)
    other.load_state_dict(layer.state_dict())
    backward(other, seed)
    return other._delta.read()


@pytest.mark.parametrize(
    "drop",
    [
        lambda layer: layer.zero_grad(),
        lambda layer: layer.zero_grad(set_to_none=False),
        lambda layer: torch.optim.SGD(layer.parameters(), 0.1).zero_grad(),
        lambda layer: torch.optim.SGD([layer.C], 0.1).zero_grad(set_to_none=False),
        lambda layer: setattr(layer.C, "grad", None),
        lambda layer: layer.C.grad.zero_(),
        lambda layer: layer.C.grad.mul_(0),
        lambda layer: layer.C.grad.data.zero_(),
        lambda layer: setattr(layer.C, "grad", torch.zeros_like(layer.C)),
    ],
)
def test_dropping_the_gradient_drops_delta(layer, drop):
    backward(layer, seed=1)
    drop(layer)
    backward(layer, seed=2)
    torch.testing.assert_close(layer._delta.read(), delta_of(layer, seed=2), rtol=0, atol=0)
    drop(layer)
    assert layer._delta.read() is None


def test_two_backwards_add_up(layer):
    backward(layer, seed=1)
    backward(layer, seed=2)
    torch.testing.assert_close(layer._delta.read(), delta_of(layer, 1) + delta_of(layer, 2))


def test_scaling_the_gradient_leaves_delta(layer):
    """Clipping is of C.grad; delta is still dL_S/dC_hat."""
    backward(layer)
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 1e-3)
    torch.testing.assert_close(layer._delta.read(), delta_of(layer), rtol=0, atol=0)
    backward(layer, seed=2)
    torch.testing.assert_close(layer._delta.read(), delta_of(layer, 1) + delta_of(layer, 2))


def test_a_gradient_that_is_zero_of_itself_keeps_its_delta():
    """Every weight outside the mask: dL_S/dC = 0, yet delta is not, and accumulates."""
    layer = ProjectionConv2d(2, 4, 3, num_projections=2)
    with torch.no_grad():
        layer.C.fill_(5.0)
    backward(layer, seed=1)
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    backward(layer, seed=2)
    assert not layer.C.grad.any()
    torch.testing.assert_close(layer._delta.read(), delta_of(layer, 1) + delta_of(layer, 2))


@pytest.mark.parametrize("dropped", [False, True])
def test_autograd_grad_leaves_nothing_behind(layer, dropped):
    """torch.autograd.grad changes no .grad, so it must change no delta."""
    if not dropped:
        backward(layer)
    x = torch.randn(1, 2, 5, 5, requires_grad=True)
    torch.autograd.grad(layer(x).sum(), [layer.C, layer.W, x])
    torch.autograd.grad(layer(x).sum(), [x])
    if dropped:
        assert layer._delta.read() is None
        backward(layer)
    torch.testing.assert_close(layer._delta.read(), delta_of(layer), rtol=0, atol=0)


def test_forward_twice_then_drop_between_the_backwards(layer):
    """Both graphs exist before the first gradient is dropped."""
    x1, x2 = torch.randn(1, 2, 5, 5), torch.randn(1, 2, 5, 5)
    y1, y2 = layer(x1), layer(x2)
    y1.square().sum().backward()
    layer.zero_grad()
    y2.square().sum().backward()
    mine = layer._delta.read().clone()
    layer.zero_grad()
    layer(x2).square().sum().backward()
    torch.testing.assert_close(mine, layer._delta.read(), rtol=0, atol=0)


def test_a_backward_that_failed_half_way_leaves_nothing(layer):
    x = torch.randn(1, 2, 5, 5)

    def fail(_grad):
        raise RuntimeError("out of memory")

    handle = layer.C.register_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        layer(x).square().sum().backward()
    handle.remove()
    assert layer._delta.read() is None
    backward(layer)
    torch.testing.assert_close(layer._delta.read(), delta_of(layer), rtol=0, atol=0)


def test_freezing_and_thawing(layer):
    backward(layer)
    layer.zero_grad()
    layer.C.requires_grad_(False)
    backward(layer)
    assert layer.C.grad is None
    assert layer._delta.read() is None
    layer.C.requires_grad_()
    backward(layer, seed=2)
    torch.testing.assert_close(layer._delta.read(), delta_of(layer, 2), rtol=0, atol=0)


def test_without_a_projection_loss_no_delta_is_kept():
    layer = ProjectionConv2d(2, 4, 3, num_projections=2, lam=0.0)
    backward(layer)
    assert layer._delta.leaf.grad is None


def test_the_leaf_takes_no_memory_and_is_no_parameter(layer):
    assert layer._delta.leaf.untyped_storage().nbytes() == 4
    assert {name for name, _ in layer.named_parameters()} == {"C", "W"}
    assert not list(layer.buffers())


def test_layers_are_freed():
    layer = ProjectionConv2d(2, 4, 3, num_projections=2)
    backward(layer)
    layer.double()
    gone = [weakref.ref(thing) for thing in (layer, layer._delta, layer._delta.leaf, layer.C)]
    del layer
    gc.collect()
    assert [ref() for ref in gone] == [None] * 4


def test_a_gradient_exchanged_for_its_copy_is_still_joined(layer):
    backward(layer)
    layer._delta.set_joined()
    layer.C.grad = layer.C.grad.clone()
    backward(layer)
    assert layer._delta.joined


def test_a_reentrant_checkpoint_beside_another_use_of_C():
    """Backward passes inside a backward pass belong to its life, whatever of C.grad is there when they begin."""
    layer = ProjectionConv2d(3, 3, 3, padding=1)
    x = torch.randn(1, 3, 5, 5, requires_grad=True)
    deltas = []
    for checkpointed in (False, True):
        layer.zero_grad()
        penalty = 1e-3 * layer.C.abs().sum()
        inner = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=True) if checkpointed else layer(x)
        (layer(inner.tanh()).square().sum() + penalty).backward()
        deltas.append(layer._delta.read().clone())
    torch.testing.assert_close(deltas[1], deltas[0])


def test_backward_in_several_threads(layer):
    expected = 4 * delta_of(layer)
    for _ in range(20):
        layer.zero_grad()
        threads = [threading.Thread(target=backward, args=(layer,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.testing.assert_close(layer._delta.read(), expected)


def test_a_frozen_layer_asks_for_no_gradient(layer):
    x = torch.randn(1, 2, 5, 5)
    assert layer(x).requires_grad
    layer.requires_grad_(False)
    assert not layer(x).requires_grad


def test_to_where_it_is_already_changes_nothing(layer):
    y = layer(torch.randn(1, 2, 5, 5))
    layer.to("cpu")
    y.sum().backward()
    assert layer._delta.read() is not None


# A layer that is moved or cast while C.grad lives: delta goes along, and so does what is known of it.


def test_delta_goes_along_to_another_dtype(layer):
    backward(layer)
    before = layer._delta.read().clone()
    layer.double()
    assert layer.C.grad.dtype == torch.float64
    found = layer._delta.read().clone()
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, before.double(), rtol=0, atol=0)
    x = torch.randn(1, 2, 5, 5, dtype=torch.float64)
    layer(x).square().sum().backward()  # it goes on where it was
    other = ProjectionConv2d(2, 4, 3, num_projections=2).double()
    other.load_state_dict(layer.state_dict())
    other(x).square().sum().backward()
    torch.testing.assert_close(layer._delta.read(), found + other._delta.read())
    layer.zero_grad()
    assert layer._delta.read() is None


def test_a_layer_without_a_gradient_has_none_in_another_dtype(layer):
    layer.double()
    assert layer._delta.read() is None


def test_what_is_joined_stays_joined_in_another_dtype(layer):
    backward(layer)
    onebit.add_projection_gradients(layer, eta=0.1)
    layer.double()
    with pytest.raises(RuntimeError, match="already"):
        onebit.add_projection_gradients(layer, eta=0.1)


def test_what_was_computed_in_float16_still_needs_a_scaler_in_another_dtype(layer):
    with torch.autocast("cpu", torch.float16):
        backward(layer)
    layer.double()
    with pytest.raises(RuntimeError, match="float16 needs a GradScaler"):
        onebit.add_projection_gradients(layer, eta=0.1)


def test_a_gradient_that_is_zero_of_itself_keeps_its_delta_in_another_dtype():
    layer = ProjectionConv2d(2, 4, 3, num_projections=2)
    with torch.no_grad():
        layer.C.fill_(5.0)
    backward(layer)
    expected = delta_of(layer).double()
    layer.double()
    assert not layer.C.grad.any()
    torch.testing.assert_close(layer._delta.read(), expected, rtol=0, atol=0)
