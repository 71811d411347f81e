"""Every equation against loops written from the paper (tests/oracle.py), and against autograd."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracle
from onebit import projection as pj

SPECIAL = [0.0, -0.0, 1.0, -1.0, 1e-30, -1e-30, 0.5, -2.0]


@st.composite
def cases(draw):
    """C, W and delta of small odd shapes, with zeros, -0.0, both signs and |W o C| on both sides of 1."""
    O, J, I = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 3))  # noqa: E741
    kh, kw = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0.1, 1.0, 3.0]))
    C, W = rng.normal(0, spread, (O, I, kh, kw)), rng.normal(0, 1, (J, kh, kw))
    for array in (C, W):
        for index in range(array.size):
            if rng.random() < 0.3:
                array.flat[index] = rng.choice(SPECIAL)
    delta = rng.normal(0, 1, (O, J, I, kh, kw))
    levels = draw(st.sampled_from([2, 2, 3, 4, 5, (-1.0, 1.0), (-0.5, 0.0, 2.0)]))
    how = pj.Projection(
        levels, draw(st.sampled_from(["layer", "kernel"])), draw(st.sampled_from(["elementwise", "mean"]))
    )
    return C, W, delta, how


def as_tensors(*arrays):
    return [torch.from_numpy(array.copy()) for array in arrays]


@given(cases())
def test_quantize_is_equation_9(case):
    C, W, _, how = case
    ours = pj.quantize(*as_tensors(C, W), how)
    theirs = oracle.quantize(C, W, how.levels, how.scale, how.forward_w)
    if how.levels == 2:
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-14)
        return
    # A product within rounding of the middle between two levels may go either way.
    w = W if how.forward_w == "elementwise" else np.abs(W).mean((1, 2), keepdims=True)
    distances = [np.abs((w[None, :, None] * C[:, None])[o] - x) for o, x in enumerate(ours.numpy())]
    best = [np.abs((w[None, :, None] * C[:, None])[o] - x) for o, x in enumerate(theirs)]
    np.testing.assert_allclose(distances, best, rtol=1e-12, atol=1e-14)


@given(cases())
def test_task_gradients_are_equations_17_and_21(case):
    C, W, delta, how = case
    ours = pj.task_gradients(*as_tensors(delta, C, W), how)
    grad_C, grad_W = oracle.task_gradients(delta, C, W, how.forward_w)
    np.testing.assert_allclose(ours.C.numpy(), grad_C, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(ours.W.numpy(), grad_W, rtol=1e-12, atol=1e-13)


@given(cases(), st.sampled_from([0.0, 1e-4, 2.0]), st.sampled_from([0.0, 0.1, 3.0]))
def test_projection_gradients_are_equations_8_18_and_22(case, lam, eta):
    C, W, delta, how = case
    loss, ours = pj.projection_gradients(*as_tensors(delta, C, W), lam, eta, how)
    C_hat = pj.quantize(*as_tensors(C, W), how).numpy()
    if not np.allclose(C_hat, oracle.quantize(C, W, how.levels, how.scale, how.forward_w), rtol=1e-12):
        return  # a tie between levels that rounding decided: seen in the test of equation 9
    expected, grad_C, grad_W = oracle.projection_gradients(
        delta, C, W, lam, eta, how.levels, how.scale, how.forward_w
    )
    assert float(loss) == pytest.approx(expected, rel=1e-12, abs=1e-15)
    np.testing.assert_allclose(ours.C.numpy(), grad_C, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(ours.W.numpy(), grad_W, rtol=1e-11, atol=1e-13)


class _ProjectionLoss(torch.autograd.Function):
    """L_P with C_hat and delta held, its gradients by our formulas: what gradcheck can judge."""

    @staticmethod
    def forward(ctx, C, W, C_hat, delta, lam, eta, how):
        ctx.save_for_backward(C, W, delta)
        ctx.rest = lam, eta, how
        w = pj.backward_w(W, how).unsqueeze(1)
        return lam / 2 * (w * (C.unsqueeze(1) + eta * delta) - C_hat).square().sum()

    @staticmethod
    def backward(ctx, grad):
        C, W, delta = ctx.saved_tensors
        _, gradients = pj.projection_gradients(delta, C, W, *ctx.rest)
        return grad * gradients.C, grad * gradients.W, None, None, None, None, None


@pytest.mark.parametrize("forward_w", ["elementwise", "mean"])
@pytest.mark.parametrize("levels", [2, 3, (-0.7, 0.1, 0.4)])
@pytest.mark.parametrize("scale", ["layer", "kernel"])
def test_gradcheck_of_the_projection_loss(forward_w, levels, scale):
    how = pj.Projection(levels, scale, forward_w)
    C = torch.randn(3, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    W = torch.randn(4, 3, 3, dtype=torch.float64, requires_grad=True)
    delta = torch.randn(3, 4, 2, 3, 3, dtype=torch.float64)
    C_hat = pj.quantize(C, W, how).detach()
    assert torch.autograd.gradcheck(
        lambda c, w: _ProjectionLoss.apply(c, w, C_hat, delta, 0.3, 0.2, how), (C, W), atol=1e-7
    )


@given(st.lists(st.floats(-10, 10, allow_nan=False), min_size=2, max_size=9, unique=True), st.data())
def test_project_finds_the_nearest_element(values, data):
    omega = sorted(values)
    x = data.draw(st.lists(st.one_of(st.floats(-12, 12), st.sampled_from(omega)), min_size=1, max_size=20))
    projected = pj.project(torch.tensor(x, dtype=torch.float64), torch.tensor(omega, dtype=torch.float64))
    for value, ours in zip(x, projected.tolist(), strict=True):
        assert ours in omega
        distance = min(abs(value - each) for each in omega)
        assert abs(value - ours) <= distance * (1 + 1e-12) + 1e-300


def test_project_keeps_members_and_sends_ties_up():
    omega = torch.tensor([-1.0, 0.0, 2.0])
    torch.testing.assert_close(pj.project(omega.clone(), omega), omega, rtol=0, atol=0)
    ties = torch.tensor([-0.5, 1.0, -9.0, 9.0])
    assert pj.project(ties, omega).tolist() == [0.0, 2.0, -1.0, 2.0]


def test_project_of_nothing_is_nothing():
    assert pj.project(torch.empty(0, 3), torch.tensor([-1.0, 1.0])).shape == (0, 3)


def test_sgn_of_both_zeros_is_plus_one():
    x = torch.tensor([0.0, -0.0, 1e-45, -1e-45, math.inf, -math.inf])
    assert pj.sgn(x).tolist() == [1, 1, 1, -1, 1, -1]
    assert pj.sgn(x.double()).dtype == torch.float64


def test_rows_of_D_are_kernel_after_kernel():
    C_hat = torch.arange(2 * 3 * 5).reshape(2, 3, 5, 1, 1).float()
    D = pj.concatenate(C_hat)
    for o in range(2):
        for j in range(3):
            assert torch.equal(D[o * 3 + j], C_hat[o, j])
    assert torch.equal(pj.separate(D, 3), C_hat)


def test_kernels_of_zeros_project_to_zero():
    C, W = torch.zeros(2, 1, 3, 3), torch.ones(1, 3, 3)
    for levels in (2, 3):
        assert not pj.quantize(C, W, pj.Projection(levels)).any()


def test_initial_w():
    assert (pj.initial_w(1, (3, 3), None, "elementwise") == 1).all()
    assert (pj.initial_w(4, (3, 3), None, "mean") == 1).all()
    signs = pj.initial_w(64, (3, 3), None, "elementwise")
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    assert 0.3 < (signs > 0).float().mean() < 0.7
    normal = pj.initial_w(64, (3, 3), "normal", "elementwise")
    assert abs(float(normal.std()) - 1) < 0.1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pj.project(torch.ones(2), torch.tensor([1.0])), ["omega", "[1.0]", "2 elements"]),
        (lambda: pj.project(torch.ones(2), torch.tensor([2.0, 1.0])), ["omega", "[2.0, 1.0]", "sorted"]),
        (lambda: pj.project(torch.ones(2), torch.tensor([1.0, 1.0])), ["omega", "sorted"]),
        (lambda: pj.project(torch.ones(2), torch.tensor([0.0, math.inf])), ["omega", "finite"]),
        (lambda: pj.project(torch.tensor([1.0, math.nan]), torch.tensor([0.0, 1.0])), ["x", "1 non-finite of 2"]),
        (lambda: pj.check_projection(pj.Projection(1)), ["levels=1", "2 elements"]),
        (lambda: pj.check_projection(pj.Projection((0.5,))), ["levels", "2 elements"]),
        (lambda: pj.check_projection(pj.Projection((1.0, -1.0))), ["levels", "sorted"]),
        (lambda: pj.check_projection(pj.Projection(2.5)), ["levels=2.5"]),
        (lambda: pj.check_projection(pj.Projection(2, "net")), ["scale='net'", "'layer'"]),
        (lambda: pj.check_projection(pj.Projection(2, "layer", "w")), ["forward_w='w'", "'mean'"]),
        (lambda: pj.check_lam(-1.0), ["lam=-1.0", ">= 0"]),
        (lambda: pj.check_lam(math.nan), ["lam=nan"]),
        (lambda: pj.check_eta(-1.0), ["eta=-1.0", ">= 0", "None"]),
        (lambda: pj.check_eta(math.inf), ["eta=inf"]),
        (lambda: pj.initial_w(1, (3, 3), "zeros", "elementwise"), ["w_init='zeros'", "'ones'"]),
    ],
)
def test_bad_input_names_argument_value_and_remedy(call, words):
    with pytest.raises(ValueError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_an_overflow_shows_where_it_is_masked_out():
    """Who looks for overflows in .grad (a GradScaler) must find those at weights that get no gradient."""
    C, W = torch.tensor([0.5, 3.0]).view(1, 1, 1, 2), torch.ones(1, 1, 2)
    delta = torch.tensor([1.0, math.inf]).view(1, 1, 1, 1, 2)
    found = pj.task_gradients(delta, C, W, pj.Projection())
    assert found.C.flatten()[0] == 1
    assert found.C.flatten()[1].isnan()
    assert found.W.flatten()[1].isnan()


def test_given_levels_are_as_exact_as_the_weights():
    C, W = torch.tensor([[[[0.5]]], [[[-0.2]]]], dtype=torch.float64), torch.ones(1, 1, 1, dtype=torch.float64)
    assert pj.quantize(C, W, pj.Projection(levels=(-0.1, 0.7))).flatten().tolist() == [0.7, -0.1]
