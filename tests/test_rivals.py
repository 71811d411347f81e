"""Each rival method against NumPy written from its formula: forward, pseudo-gradient, and the step."""

import copy
import re
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import onebit
import oracle
import rival_formulas as formulas
from onebit.methods import METHODS, activation_bits_of, authors_of, layer_of, method_options

RIVALS = [method for method in METHODS if method not in {"pcnn", "float"}]
ABOVE_1 = np.nextafter(1, 2)
# Where formulas have edges: signs of zero, the ends of masks and clips, and just beyond them.
EDGES = [0.0, -0.0, 1.0, -1.0, ABOVE_1, -ABOVE_1, 1 - 2**-53, 0.5, -0.5, 5e-324, -5e-324, 3.0, -3.0]


def made(method, *shape, **options):
    """A layer in float64, so that the comparison is exact to rounding."""
    torch.manual_seed(0)
    return layer_of(method)(*(shape or (4, 6, 3)), dtype=torch.float64, **options)


def weights_like(shape, seed=0, spread=0.7):
    """Random numbers, with edges among them."""
    rng = np.random.default_rng(seed)
    W = rng.normal(0, spread, shape)
    flat = W.ravel()
    count = min(len(EDGES), flat.size)
    flat[rng.choice(flat.size, count, replace=False)] = EDGES[:count]
    return W


def put(parameter, array):
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(np.ascontiguousarray(array)))


def assert_close(found, expected, rtol=1e-12, atol=1e-14):
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("method", formulas.WEIGHTS)
@pytest.mark.parametrize("shape", [(4, 6, 3), (1, 2, 3), (3, 1, 1), (5, 7, (1, 3))], ids=str)
def test_weights_and_their_gradients(method, shape):
    layer = made(method, *shape)
    W = weights_like(layer.weight.shape)
    put(layer.weight, W)
    g = np.random.default_rng(1).normal(size=W.shape)
    value, slope = formulas.WEIGHTS[method](W)
    found = layer.quantized_weight()
    assert_close(found, value)
    found.backward(torch.from_numpy(g))
    assert_close(layer.weight.grad, g * slope)


def test_bireal_with_the_gradient_of_its_programs():
    layer = made("bireal", 4, 6, 3, magnitude_aware=False)
    W, g = weights_like(layer.weight.shape), np.random.default_rng(1).normal(size=layer.weight.shape)
    put(layer.weight, W)
    value, slope = formulas.bireal_of_the_programs(W)
    found = layer.quantized_weight()
    assert_close(found, value)
    found.backward(torch.from_numpy(g))
    assert_close(layer.weight.grad, g * slope)
    assert {0.0, 1.0} == set(np.unique(slope))
    assert "magnitude_aware=False" in repr(layer)
    assert "magnitude_aware" not in repr(made("bireal"))


@pytest.mark.parametrize("method", formulas.WEIGHTS)
@pytest.mark.parametrize("constant", [0.0, -0.0, 0.25])
def test_weights_that_are_all_equal(method, constant):
    """Every scale, deviation and least-squares solution still is a number."""
    layer = made(method, **({"weight_bases": 3} if method == "abc" else {}))
    W = np.full(layer.weight.shape, constant)
    put(layer.weight, W)
    value, slope = formulas.WEIGHTS[method](W, **({"weight_bases": 3} if method == "abc" else {}))
    found = layer.quantized_weight()
    assert_close(found, value)
    found.sum().backward()
    assert_close(layer.weight.grad, slope)


@pytest.mark.parametrize("method", formulas.INPUTS)
def test_inputs_and_their_gradients(method):
    for bits in layer_of(method).ACTIVATION_BITS:
        layer = made(method, activation_bits=bits)
        # The halves of DoReFa-Net's grid of 2 bits: 3x = 1/2, 3/2, 5/2 go to the even neighbour.
        special = [*EDGES, 1 / 6, 5 / 6]
        x = np.concatenate([np.array(special), np.linspace(-1.5, 1.5, 52 - len(special))]).reshape(1, 4, 1, 13)
        g = np.random.default_rng(2).normal(size=x.shape)
        value, slope = formulas.INPUTS[method](x, bits)
        leaf = torch.from_numpy(x).requires_grad_()
        found = layer.quantized_input(leaf)
        assert_close(found, value)
        (gradient,) = torch.autograd.grad(found, leaf, torch.from_numpy(g))
        assert_close(gradient, g * slope)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("method", "bits", "low"), [("bnn", 1, -1.0), ("dorefa", 2, 0.0), ("abc", 1, -0.5)])
def test_masks_end_where_they_should_in_every_precision(dtype, method, bits, low):
    high = 0.5 if method == "abc" else 1.0
    layer = layer_of(method)(1, 1, 1, activation_bits=bits, dtype=dtype)
    end = torch.tensor([low, high], dtype=dtype)
    beyond = torch.nextafter(end, torch.tensor([-9.0, 9.0], dtype=dtype))
    x = torch.cat([end, beyond]).requires_grad_()
    layer.quantized_input(x).sum().backward()
    inside, outside = x.grad[:2], x.grad[2:]
    assert inside.tolist() == [1.0, 1.0]
    # h_n = x + v_n of ABC-Net rounds: what is just beyond may come to lie at the end
    assert method == "abc" or outside.tolist() == [0.0, 0.0]


@given(
    M=st.integers(1, 5),
    shape=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3)),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=60, deadline=None)
def test_abc_weight_bases(M, shape, seed):
    in_channels, out_channels, k = shape
    layer = made("abc", in_channels, out_channels, k, weight_bases=M)
    W = np.random.default_rng(seed).normal(size=layer.weight.shape)
    put(layer.weight, W)
    value, slope = formulas.abc(W, M)
    found = layer.quantized_weight()
    # The sum is unique even where the bases are linearly dependent, alpha then is not, but for least norm
    assert_close(found, value, rtol=1e-7, atol=1e-9)
    found.sum().backward()
    assert_close(layer.weight.grad, slope, rtol=1e-6, atol=1e-8)
    assert layer.weight_bits == M


@given(N=st.integers(1, 5), seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_abc_activation_bases(N, seed):
    rng = np.random.default_rng(seed)
    layer = made("abc", activation_bases=N)
    assert_close(layer.v, 0.5 - np.array(formulas.evenly(N)))
    assert_close(layer.beta, np.full(N, 1 / N))
    v, beta = rng.normal(size=N), rng.normal(size=N)
    v[0] = 0.5  # with the edges in x: x + v at 0, 1/2 and 1 exactly
    put(layer.v, v)
    put(layer.beta, beta)
    x = np.concatenate([[0.0, -0.0, 0.5, -0.5], rng.normal(size=36)]).reshape(1, 4, 2, 5)
    g = rng.normal(size=x.shape)
    leaf = torch.from_numpy(x).requires_grad_()
    found = layer.quantized_input(leaf)
    found.backward(torch.from_numpy(g))
    value, grad_x, grad_v, grad_beta = formulas.abc_input(x, v, beta, g)
    for tensor, expected in (
        (found, value),
        (leaf.grad, grad_x),
        (layer.v.grad, grad_v),
        (layer.beta.grad, grad_beta),
    ):
        assert_close(tensor, expected, rtol=1e-10, atol=1e-12)


def test_abc_is_the_sum_of_its_binary_convolutions():
    layer = made("abc", weight_bases=3, activation_bases=2)
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    W = layer.weight.detach()
    bases = [formulas.sgn(W.numpy() - W.numpy().mean() + u * W.numpy().std()) for u in formulas.evenly(3)]
    stacked = np.stack([base.ravel() for base in bases], axis=1)
    alpha, *_ = np.linalg.lstsq(stacked, W.numpy().ravel(), rcond=None)
    total = 0
    for a, base in zip(alpha, bases, strict=True):
        for v, beta in zip(layer.v.detach(), layer.beta.detach(), strict=True):
            A = torch.from_numpy(formulas.sgn((x + v).clip(0, 1).numpy() - 0.5))
            total = total + a * beta * F.conv2d(A, torch.from_numpy(base))
    torch.testing.assert_close(layer(x), total, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("K", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_mcn(K, groups):
    layer = made("mcn", 4, 6 * groups, 3, groups=groups, num_projections=K, theta=0.3)
    C = weights_like(layer.C.shape)
    M = np.abs(np.random.default_rng(4).normal(size=layer.M.shape))
    b = 0.37
    put(layer.C, C)
    put(layer.M, M)
    layer.b.fill_(b)
    g = np.random.default_rng(5).normal(size=(6 * groups, 4 // groups, 3, 3))
    Q, grad_C, grad_M = formulas.mcn(C, M, b, g)
    found = layer.quantized_weight()
    assert_close(found, Q)
    found.backward(torch.from_numpy(g))
    assert_close(layer.C.grad, grad_C)
    assert_close(layer.M.grad, grad_M)

    loss_m = onebit.add_projection_gradients(layer, eta=0.1)
    expected, more_C, more_M = formulas.mcn_loss(C, M, b, 0.3)
    assert_close(loss_m, expected)
    assert_close(layer.C.grad, grad_C + more_C)
    assert_close(layer.M.grad, grad_M + more_M)
    for wild in (-M, 1e-3 * M, -100 * M, np.zeros_like(M)):
        put(layer.M, wild)
        onebit.constrain_weights(layer)
        assert_close(layer.M, formulas.mcn_step(wild))


def test_mcn_s_kernels_learn_as_fast_as_pcnn_s():
    """Whatever the size of the kernels: C's gradient is that of Q, as PCNN's is that of D while W is 1."""
    layer, like = made("mcn", 8, 8, 3), made("pcnn", 8, 8, 3, lam=0.0)
    for size in (1.0, 0.05):
        put(like.C, size * weights_like(like.C.shape).clip(-1, 1))
        layer.carry_over(nn.Parameter(like.C.detach().clone()))
        assert_close(layer.b, np.abs(like.C.detach().numpy()).mean())
        assert torch.equal(layer.M, torch.ones_like(layer.M))
        g = torch.randn_like(layer.C)
        for each in (layer, like):
            each.zero_grad()
            each.quantized_weight().backward(g)
        assert_close(layer.quantized_weight(), like.quantized_weight().detach().numpy())
        assert_close(layer.C.grad, like.C.grad.numpy())


def test_mcn_of_kernels_that_are_all_zero_has_a_size_of_its_bits():
    layer = made("mcn", 2, 2, 3)
    layer.carry_over(nn.Parameter(torch.zeros_like(layer.C)))
    assert layer.b == 1
    assert layer.quantized_weight().abs().min() == 1


def test_the_weight_of_mcn_s_loss():
    assert layer_of("mcn")(4, 4, 3).theta == 1e-4


def test_mcn_takes_its_loss_once():
    layer = made("mcn", theta=0.1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    attached = onebit.discrete_backprop(layer, optimizer)
    layer(torch.randn(2, 4, 5, 5, dtype=torch.float64)).sum().backward()
    before = layer.C.grad.clone()
    with pytest.raises(RuntimeError, match="discrete_backprop is attached"):
        onebit.add_projection_gradients(layer, eta=0.1)
    assert torch.equal(layer.C.grad, before)
    optimizer.step()
    loss, more_C, _ = formulas.mcn_loss(layer.C.detach().numpy(), layer.M.detach().numpy(), float(layer.b), 0.1)
    assert_close(attached.projection_loss, loss)
    assert_close(layer.C.grad, before.numpy() + more_C)
    with pytest.raises(RuntimeError, match="already"):
        optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    layer(torch.randn(2, 4, 5, 5, dtype=torch.float64)).sum().backward()
    optimizer.step()  # a new gradient may take it again
    attached.remove()
    assert layer_of("mcn")(4, 4, 3, theta=0).own_loss() is None


def test_mcn_with_kernels_that_two_layers_share():
    """Each layer's loss joins, once; and a layer that was not used has none."""
    one, two, unused = made("mcn", 4, 4, 3, theta=0.1), made("mcn", 4, 4, 3, theta=0.1), made("mcn", theta=0.1)
    two.C = one.C
    model = nn.Sequential(one, two)
    everything = nn.ModuleList([model, unused])
    optimizer = torch.optim.SGD(everything.parameters(), lr=0.0)
    attached = onebit.discrete_backprop(everything, optimizer)
    model(torch.randn(1, 4, 7, 7, dtype=torch.float64)).sum().backward()
    before = one.C.grad.clone()
    optimizer.step()
    C = one.C.detach().numpy()
    both = [formulas.mcn_loss(C, layer.M.detach().numpy(), float(layer.b), 0.1) for layer in (one, two)]
    assert_close(attached.projection_loss, sum(loss for loss, _, _ in both))
    assert_close(one.C.grad, before.numpy() + sum(grad for _, grad, _ in both))
    assert unused.C.grad is None


@pytest.mark.parametrize("method", formulas.STEPS)
@pytest.mark.parametrize("in_channels", [1, 2, 5])
def test_weights_are_clipped_and_centred_at_the_step(method, in_channels):
    """After the optimizer's own change, by the hook of discrete_backprop, and by hand."""
    layer = made(method, in_channels, 3, 3)
    W = weights_like(layer.weight.shape, spread=2)
    put(layer.weight, W)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    onebit.discrete_backprop(layer, optimizer)
    layer.weight.grad = torch.from_numpy(np.random.default_rng(3).normal(size=W.shape))
    moved = W - 0.5 * layer.weight.grad.numpy()
    optimizer.step()
    expected = formulas.STEPS[method](moved)
    assert not np.allclose(moved, expected)
    assert_close(layer.weight, expected)
    put(layer.weight, moved)
    onebit.constrain_weights(layer)
    assert_close(layer.weight, expected)


def test_a_closure_is_followed_by_the_clip():
    layer = made("bnn", activation_bits=32)
    optimizer = torch.optim.SGD(layer.parameters(), lr=100.0)
    onebit.discrete_backprop(layer, optimizer)
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)

    def closure():
        optimizer.zero_grad()
        loss = layer(x).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert layer.weight.abs().max() == 1


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("method", ["bnn", "mcn"])
def test_a_grad_scaler_need_not_be_known(method, fused):
    """What rivals do at the step does not depend on the scale; a step that is skipped clips nothing."""
    x, found = torch.randn(2, 4, 5, 5, dtype=torch.float64), []
    options = {"theta": 0.5} if method == "mcn" else {}
    for scaler in (torch.amp.GradScaler("cpu", init_scale=1024.0), torch.amp.GradScaler("cpu", enabled=False)):
        layer = made(method, **options)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, fused=fused)
        onebit.discrete_backprop(layer, optimizer)
        scaler.scale(layer(x).square().mean()).backward()
        scaler.step(optimizer)
        found.append([p.detach().clone() for p in layer.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)

    layer = made("bnn")
    put(layer.weight, np.full(layer.weight.shape, 7.0))
    optimizer, scaler = torch.optim.SGD(layer.parameters(), lr=0.1, fused=fused), torch.amp.GradScaler("cpu")
    onebit.discrete_backprop(layer, optimizer)
    scaler.scale(layer(x).sum() * float("inf")).backward()
    scaler.step(optimizer)
    assert layer.weight.min() == 7


def test_frozen_weights_and_those_of_another_optimizer_are_left_alone():
    one, other, frozen = (made("binaryconnect", bias=True) for _ in range(3))
    frozen.weight.requires_grad_(requires_grad=False)
    for layer in (one, other, frozen):
        put(layer.weight, np.full(layer.weight.shape, 7.0))
    model = nn.Sequential(one, other, frozen)
    optimizer = torch.optim.SGD([one.weight, frozen.bias], lr=0.0)
    attached = onebit.discrete_backprop(model, optimizer)
    optimizer.step()
    assert [layer.weight.max().item() for layer in model] == [1, 7, 7]
    onebit.constrain_weights(model)
    assert [layer.weight.max().item() for layer in model] == [1, 1, 7]
    attached.remove()
    put(one.weight, np.full(one.weight.shape, 7.0))
    optimizer.step()
    assert one.weight.max() == 7


@pytest.mark.parametrize("method", ["bnn", "mcn"])
def test_an_optimizer_that_misses_the_kernels_is_refused(method):
    model = nn.Sequential(nn.Conv2d(2, 4, 3), layer_of(method)(4, 4, 3))
    with pytest.raises(ValueError, match="holds none of the model's kernels"):
        onebit.discrete_backprop(model, torch.optim.SGD(model[0].parameters(), lr=0.1))
    if method == "mcn":
        with pytest.raises(ValueError, match="but not its M"):
            onebit.discrete_backprop(model, torch.optim.SGD([model[1].C], lr=0.1))


def test_parameter_groups_know_the_rivals():
    model = nn.Sequential(layer_of("mcn")(4, 4, 3), layer_of("bnn")(4, 4, 3), layer_of("lbcnn")(4, 4, 3))
    groups = {g["name"]: g for g in onebit.parameter_groups(model, lr=1.0)}
    assert [id(p) for p in groups["kernels"]["params"]] == [id(model[0].C), id(model[1].weight)]
    assert [id(p) for p in groups["projections"]["params"]] == [id(model[0].M)]
    assert (groups["projections"]["lr"], groups["projections"]["weight_decay"]) == (0.1, 0.0)
    made = onebit.parameter_groups(model, weight_decay=0.2)  # BNN's authors have no decay on kernels
    found = [(g["name"], [id(p) for p in g["params"]], g["weight_decay"]) for g in made[:2]]
    assert found == [("kernels", [id(model[0].C)], 0.2), ("kernels", [id(model[1].weight)], 0.0)]
    assert [id(p) for p in groups["others"]["params"]] == [id(model[2].pointwise)]


@given(
    sparsity=st.floats(0.01, 1),
    count=st.integers(1, 5),
    groups=st.integers(1, 2),
    stride=st.integers(1, 2),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_lbcnn(sparsity, count, groups, stride, seed):
    layer = made(
        "lbcnn", 2 * groups, 3 * groups, 3, stride, 1, groups=groups, sparsity=sparsity,
        num_intermediate=count * groups, bias=True,
    )  # fmt: skip
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2, 2 * groups, 5, 6))
    B, V, bias = layer.fixed.numpy().astype(float), layer.pointwise.detach().numpy(), rng.normal(size=3 * groups)
    put(layer.bias, bias)
    assert set(np.unique(B)) <= {-1.0, 0.0, 1.0}
    hidden = np.maximum(oracle.conv2d(x, B, stride, 1, groups), 0)
    expected = oracle.conv2d(hidden, V, 1, 0, groups) + bias[:, None, None]
    y = layer(torch.from_numpy(x))
    assert_close(y, expected, rtol=1e-10, atol=1e-12)
    g = rng.normal(size=expected.shape)
    y.backward(torch.from_numpy(g))
    assert_close(
        layer.pointwise.grad,
        oracle.conv2d_weight_gradient(hidden, g, V.shape, 1, 0, groups),
        rtol=1e-10,
        atol=1e-11,
    )
    assert [name for name, _ in layer.named_parameters()] == ["bias", "pointwise"]


@pytest.mark.parametrize("sparsity", [0.1, 1.0])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_lbcnn_begins_with_outputs_as_large_as_its_inputs(sparsity, k):
    layer = layer_of("lbcnn")(32, 32, k, padding=k // 2, sparsity=sparsity)
    assert 0.5 < layer(torch.randn(4, 32, 12, 12)).std() < 2


@pytest.mark.parametrize("sparsity", [0.1, 0.5, 1.0])
def test_lbcnn_is_as_sparse_as_asked_and_has_both_signs(sparsity):
    fixed = layer_of("lbcnn")(64, 64, 3, sparsity=sparsity).fixed
    assert abs((fixed != 0).float().mean() - sparsity) < 0.02
    assert abs((fixed == 1).float().mean() - sparsity / 2) < 0.02


@given(
    groups=st.integers(1, 2), stride=st.integers(1, 2), padding=st.integers(0, 2), k=st.integers(1, 3),
    seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_xnor_scale_map(groups, stride, padding, k, seed):
    layer = made("xnor", 2 * groups, 3 * groups, k, stride, padding, groups=groups, bias=True, scale_map=True)
    plain = made("xnor", 2 * groups, 3 * groups, k, stride, padding, groups=groups, bias=True)
    plain.load_state_dict(layer.state_dict())
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2, 2 * groups, 5, 6))
    W_b, _ = formulas.bwn(layer.weight.detach().numpy())
    K = formulas.scale_map(x, k, stride, padding, groups, 3 * groups)
    signs = oracle.conv2d(formulas.sgn(x), W_b, stride, padding, groups)
    bias = layer.bias.detach().numpy()[:, None, None]
    leaf = torch.from_numpy(x).requires_grad_()
    y = layer(leaf)
    assert_close(y, signs * K + bias, rtol=1e-10, atol=1e-12)
    g = rng.normal(size=K.shape)
    (of_x,) = torch.autograd.grad(y, leaf, torch.from_numpy(g))
    (expected,) = torch.autograd.grad(plain(leaf), leaf, torch.from_numpy(g * K))  # K is a constant
    torch.testing.assert_close(of_x, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", formulas.WEIGHTS)
@given(
    groups=st.integers(1, 2), in_channels=st.integers(1, 3), out_channels=st.integers(1, 3),
    stride=st.integers(1, 2), padding=st.integers(0, 1), height=st.integers(3, 6), seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=12, deadline=None)
def test_the_layer_convolves_what_the_formulas_say(
    method, groups, in_channels, out_channels, stride, padding, height, seed
):
    layer = made(method, in_channels * groups, out_channels * groups, 3, stride, padding, groups=groups)
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2, in_channels * groups, height, 5))
    value, _ = formulas.WEIGHTS[method](layer.weight.detach().numpy())
    if method == "abc":
        quantized, *_ = formulas.abc_input(x, np.array([0.5]), np.array([1.0]), x)
    else:
        quantized, _ = formulas.INPUTS[method](x, layer.activation_bits)
    expected = oracle.conv2d(quantized, value, stride, padding, groups)
    assert_close(layer(torch.from_numpy(x)), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("method", RIVALS)
def test_no_images_no_output(method):
    layer = layer_of(method)(4, 6, 3, padding=1)
    y = layer(torch.zeros(0, 4, 5, 5))
    assert y.shape == (0, 6, 5, 5)
    y.sum().backward()


@pytest.mark.parametrize("method", RIVALS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_no_number_shows(method, value):
    """sgn would make a healthy +-1 of it."""
    layer = layer_of(method)(4, 6, 3)
    name = layer.KERNEL or "pointwise"
    with torch.no_grad():
        getattr(layer, name)[0, 0, 0, 0] = value
    assert not layer(torch.randn(1, 4, 5, 5)).isfinite().all()


OPTIONS = [
    (method, options)
    for method in RIVALS
    for options in (
        {},
        {"activation_bits": layer_of(method).ACTIVATION_BITS[-1]},
        *({"xnor": [{"scale_map": True}], "lbcnn": [{"sparsity": 0.2, "num_intermediate": 8}],
           "abc": [{"weight_bases": 3, "activation_bases": 2}], "mcn": [{"num_projections": 2, "theta": 0.0}],
           "bireal": [{"magnitude_aware": False}],
           "dorefa": [{"activation_bits": bits} for bits in (2, 3, 5, 6, 7, 8)]}.get(method, [])),
    )
]  # fmt: skip


@pytest.mark.parametrize(("method", "options"), OPTIONS, ids=str)
def test_a_tiny_net_learns(method, options):
    """Two kinds of stripes, told apart after some steps of the loop that all methods share."""
    torch.manual_seed(0)
    signs = activation_bits_of(method, options.get("activation_bits")) == 1
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.Identity() if signs else nn.ReLU(),
        layer_of(method)(8, 8, 3, padding=1, **options),
        nn.BatchNorm2d(8),
        nn.AdaptiveAvgPool2d(1) if not signs else nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        nn.Flatten(),
        nn.Linear(8, 2),
    )
    frozen = copy.deepcopy(net[3].state_dict())
    optimizer = torch.optim.SGD(onebit.parameter_groups(net, lr=0.1), momentum=0.9)
    onebit.discrete_backprop(net, optimizer)
    labels = torch.arange(32) % 2
    wave = torch.arange(8) % 4 < 2
    for step in range(40):
        generator = torch.Generator().manual_seed(step)
        stripes = torch.stack(
            [wave.float().expand(8, 8).T if label else wave.float().expand(8, 8) for label in labels]
        )
        images = stripes.unsqueeze(1) + 0.3 * torch.randn(32, 1, 8, 8, generator=generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
    assert loss < 0.1
    learned = layer_of(method).KERNEL or "pointwise"
    assert not torch.equal(frozen[learned], net[3].state_dict()[learned])


@pytest.mark.parametrize(("method", "options"), OPTIONS, ids=str)
def test_state_dict_round_trip(method, options):
    layer, other = (layer_of(method)(4, 6, 3, bias=True, **options).eval() for _ in range(2))
    x = torch.randn(2, 4, 5, 5)
    assert not torch.equal(layer(x), other(x))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x), other(x))
    twin = copy.deepcopy(layer)
    assert torch.equal(layer(x), twin(x))
    assert layer.extra_repr() == other.extra_repr()
    for name, value in options.items():
        if (name, value) != ("activation_bits", 32):
            assert f"{name}={value}" in repr(layer)


@pytest.mark.parametrize("method", RIVALS)
def test_compiled_it_is_the_same(method):
    torch.manual_seed(0)
    layer = layer_of(method)(4, 6, 3, padding=1)
    x = torch.randn(2, 4, 6, 6, requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for module in (layer, compiled):
        module.zero_grad()
        x.grad = None
        y = module(x)
        y.square().sum().backward()
        found = [y.detach(), x.grad.clone(), *(p.grad.clone() for p in layer.parameters())]
        if module is layer:
            expected = found
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("method", "options"), OPTIONS, ids=str)
def test_autocast_and_half_precision(method, options):
    torch.manual_seed(0)
    layer, x = layer_of(method)(4, 6, 3, **options), torch.randn(2, 4, 5, 5)
    expected = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    torch.testing.assert_close(y.float(), expected, rtol=0.05, atol=0.1 * expected.abs().max().item())
    y.float().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
    half = layer.to(torch.bfloat16)
    half(x.bfloat16()).sum().backward()
    assert all(p.dtype == torch.bfloat16 for p in half.parameters())


@pytest.mark.parametrize("method", RIVALS)
def test_functorch_transforms(method):
    """Per-sample gradients by vmap(grad) are those of a loop."""
    layer = made(method)
    parameters, buffers, x = dict(layer.named_parameters()), dict(layer.named_buffers()), torch.randn(3, 4, 5, 5)

    def loss(parameters, sample):
        return torch.func.functional_call(layer, (parameters, buffers), sample.unsqueeze(0)).square().sum()

    x = x.double()
    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    for n in range(3):
        layer.zero_grad()
        layer(x[n : n + 1]).square().sum().backward()
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(per_sample[name][n], parameter.grad, rtol=1e-8, atol=1e-8)


def test_to_look_at_options_takes_no_random_numbers():
    before = torch.random.get_rng_state()
    for method in ("lbcnn", "mcn"):
        layer_of(method)(4, 4, 3, device="meta", **({"num_projections": 2} if method == "mcn" else {}))
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("method", METHODS)
def test_a_docstring_gives_formulas_and_a_reference(method):
    layer_class = layer_of(method)
    if layer_class is None:  # float is nn.Conv2d itself
        return
    text = layer_class.__doc__
    assert re.search(r"^ +forward +y = .*conv", text, re.MULTILINE), "the forward pass as a formula"
    assert re.search(r"^ +backward +(dL|exact|Eq\. )", text, re.MULTILINE), "the pseudo-gradient as a formula"
    assert re.search(
        r"[A-Z]\w+(, [A-Z][\w-]+)*: .+\. [^.]*(NeurIPS|CVPR|ECCV|ICLR|AAAI)? ?20\d\d", " ".join(text.split())
    )
    assert "arXiv:" in text or "CVPR 2018" in text
    assert ("step  " in text) == (layer_class.constrain is not onebit.convolution.QuantizedConv2d.constrain)
    for option in method_options(method):
        if option not in {"activation_bits", "num_projections"}:
            assert option in text
    assert method in onebit.binarize.__doc__


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("xnor", {"scale_map": 1}, ["scale_map=1"]),
        ("bireal", {"magnitude_aware": 0}, ["magnitude_aware=0", "True or False"]),
        ("xnor", {"scale_map": True, "activation_bits": 32}, ["scale_map=True", "activation_bits=1"]),
        ("abc", {"weight_bases": 0}, ["weight_bases=0", "at least 1"]),
        ("abc", {"activation_bases": 1.5}, ["activation_bases=1.5"]),
        ("abc", {"activation_bases": 2, "activation_bits": 32}, ["activation_bases=2", "activation_bits=32"]),
        ("abc", {"weight_bases": True}, ["weight_bases=True"]),
        ("lbcnn", {"sparsity": 0}, ["sparsity=0", "more than 0"]),
        ("lbcnn", {"sparsity": 1.5}, ["sparsity=1.5"]),
        ("lbcnn", {"num_intermediate": 0}, ["num_intermediate=0"]),
        ("mcn", {"theta": -1.0}, ["theta=-1.0"]),
        ("mcn", {"theta": float("nan")}, ["theta=nan"]),
        ("mcn", {"theta": "a"}, ["theta='a'"]),
        ("mcn", {"num_projections": 4}, ["num_projections=4", "divide"]),
        ("dorefa", {"activation_bits": 1}, ["activation_bits=1", "2 to 8 or 32"]),
        ("bnn", {"activation_bits": 2}, ["activation_bits=2", "1 or 32"]),
        ("binaryconnect", {"activation_bits": 1}, ["activation_bits=1", "takes 32"]),
    ],
    ids=str,
)
def test_bad_options_are_named(method, options, words):
    with pytest.raises(ValueError) as caught:
        layer_of(method)(4, 6, 3, **options)
    for word in words:
        assert word in str(caught.value)


def test_how_the_authors_train_latent_kernels():
    """Clipped by the authors is clipped by us; who clips without decay is named here, so that a change is seen."""
    clipped = {method for method in METHODS if authors_of(method).clips_latents}
    assert clipped == set(formulas.STEPS)
    decayed_not = {method for method in METHODS if not authors_of(method).decays_latents}
    assert decayed_not == {"binaryconnect", "bnn", "dorefa", "bireal"}
    with_adam = {m: authors_of(m).lr for m in METHODS if authors_of(m).optimizer == "adam"}
    assert with_adam == {"binaryconnect": 3e-3, "bnn": 1e-3, "xnor": 1e-3, "dorefa": 1e-4, "bireal": 1e-3}
    with_sgd = {m: authors_of(m).lr for m in METHODS if m not in with_adam}
    assert with_sgd == {
        "pcnn": 0.1, "lbcnn": 1e-4, "bwn": 1e-2, "mcdonnell": 0.1, "abc": None, "mcn": None, "float": 0.1,
    }  # fmt: skip
    with pytest.raises(FrozenInstanceError):
        authors_of("bnn").clips_latents = False


def test_by_what_the_authors_multiply_the_rate_of_latent_kernels():
    rates = {method: layer_of(method)(16, 32, 3).authors_rate() for method in METHODS if layer_of(method)}
    glorot, centred = ((16 + 32) * 9 / 1.5) ** 0.5, 16 * 9 * (1 - 1 / 16)
    expected = {"binaryconnect": glorot, "bnn": glorot, "bwn": centred, "xnor": centred}
    assert rates == pytest.approx({method: expected.get(method, 1.0) for method in rates})
    grouped = layer_of("bwn")(16, 32, (3, 5), groups=4)
    assert grouped.authors_rate() == pytest.approx(4 * 15 * (1 - 1 / 4))
    assert layer_of("bnn")(16, 32, (3, 5), groups=4).authors_rate() == pytest.approx((12 * 15 / 1.5) ** 0.5)
    assert layer_of("bwn")(1, 2, 3).authors_rate() == 9  # a single plane is not centred
