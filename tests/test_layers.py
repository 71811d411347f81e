"""ProjectionConv2d: a drop-in for nn.Conv2d whose forward and gradients are the paper's."""

import copy
import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import oracle
from onebit import ProjectionConv2d
from onebit.estimators import binarize_activation


@st.composite
def layers(draw):
    """A float64 layer of any geometry and options, with an input it accepts."""
    groups, J = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    in_channels = groups * draw(st.integers(1, 2))
    out_channels = groups * J * draw(st.integers(1, 2))
    size = draw(st.integers(1, 3))
    layer = ProjectionConv2d(
        in_channels,
        out_channels,
        size,
        stride=draw(st.integers(1, 2)),
        padding=draw(st.integers(0, 2)),
        groups=groups,
        bias=draw(st.booleans()),
        dtype=torch.float64,
        num_projections=J,
        activation_bits=draw(st.sampled_from([1, 32])),
        forward_w=draw(st.sampled_from(["elementwise", "mean"])),
        w_init=draw(st.sampled_from([None, "normal", "signs"])),
        scale=draw(st.sampled_from(["layer", "kernel"])),
        levels=draw(st.sampled_from([2, 3])),
    )
    torch.manual_seed(draw(st.integers(0, 2**31)))
    with torch.no_grad():
        layer.C.normal_(0, draw(st.sampled_from([0.3, 2.0])))
        layer.C.view(-1)[0] = 0.0
        layer.C.view(-1)[-1] = -0.0
    x = torch.randn(
        draw(st.integers(1, 2)), in_channels, size + draw(st.integers(0, 3)), size + 1, dtype=torch.float64
    )
    x.view(-1)[0] = 0.0
    return layer, x.requires_grad_()


@given(layers())
def test_forward_and_backward_are_the_papers(case):
    """The whole chain, from x to the gradients of C and W, against loops over NumPy arrays."""
    layer, x = case
    how = layer.projection
    y = layer(x)
    grad_y = torch.randn_like(y)
    y.backward(grad_y)

    C, W = layer.C.detach().numpy(), layer.W.detach().numpy()
    C_hat = oracle.quantize(C, W, how.levels, how.scale, how.forward_w)
    D = C_hat.reshape(-1, *C.shape[1:])
    signs = np.vectorize(oracle.sgn)(x.detach().numpy()) if layer.activation_bits == 1 else x.detach().numpy()
    geometry = layer.stride[0], layer.padding[0], layer.groups
    expected = oracle.conv2d(signs, D, *geometry)
    if layer.bias is not None:
        expected += layer.bias.detach().numpy()[:, None, None]
    np.testing.assert_allclose(y.detach().numpy(), expected, rtol=1e-10, atol=1e-12)

    delta = oracle.conv2d_weight_gradient(signs, grad_y.numpy(), D.shape, *geometry)
    grad_C, grad_W = oracle.task_gradients(delta.reshape(C_hat.shape), C, W, how.forward_w)
    np.testing.assert_allclose(layer.C.grad.numpy(), grad_C, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(layer.W.grad.numpy(), grad_W, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(layer._delta.read().numpy(), delta, rtol=1e-9, atol=1e-11)


def test_sign_of_the_input_and_its_mask():
    x = torch.tensor([-2.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 1.5], requires_grad=True)
    y = binarize_activation(x)
    y.backward(torch.arange(1.0, 9.0))
    assert y.tolist() == [-1, -1, -1, 1, 1, 1, 1, 1]
    assert x.grad.tolist() == [0, 2, 3, 4, 5, 6, 7, 0]


def test_zero_padding_has_no_sign():
    """A border tap of a W1A1 conv adds exactly nothing."""
    layer = ProjectionConv2d(1, 1, 3, padding=1, activation_bits=1)
    with torch.no_grad():
        layer.C.fill_(1.0)
    assert layer(torch.ones(1, 1, 3, 3)).tolist() == [[[[4.0, 6.0, 4.0], [6.0, 9.0, 6.0], [4.0, 6.0, 4.0]]]]


CONV2D_ARGUMENTS = [
    {"kernel_size": 3},
    {"kernel_size": (3, 5), "padding": (1, 2), "stride": (2, 1)},
    {"kernel_size": 3, "padding": "same", "dilation": 2},
    {"kernel_size": (2, 3), "padding": "same", "padding_mode": "reflect"},
    {"kernel_size": 3, "padding": "valid"},
    {"kernel_size": 3, "padding": "valid", "padding_mode": "circular"},
    {"kernel_size": 3, "padding": 1, "padding_mode": "circular", "bias": True},
    {"kernel_size": 3, "padding": (2, 1), "padding_mode": "replicate", "groups": 2},
    {"kernel_size": 1, "bias": True},
]


@pytest.mark.parametrize("arguments", CONV2D_ARGUMENTS)
@pytest.mark.parametrize("shape", [(2, 4, 9, 8), (4, 9, 8), (0, 4, 9, 8)])
def test_same_result_as_conv2d_with_D_as_weight(arguments, shape):
    layer = ProjectionConv2d(4, 8, **{"bias": False} | arguments, num_projections=2)
    conv = nn.Conv2d(4, 8, **{"bias": False} | arguments)
    with torch.no_grad():
        conv.weight.copy_(layer.quantized_weight())
        if conv.bias is not None:
            conv.bias.copy_(layer.bias)
    x = torch.randn(shape)
    torch.testing.assert_close(layer(x), conv(x), rtol=0, atol=0)


def test_positional_arguments_are_those_of_conv2d():
    arguments = (4, 6, 3, 2, 1, 1, 2, True, "reflect", "cpu", torch.float64)
    layer, conv = ProjectionConv2d(*arguments), nn.Conv2d(*arguments)
    for name in ("stride", "padding", "dilation", "groups", "padding_mode", "kernel_size"):
        assert getattr(layer, name) == getattr(conv, name)
    assert layer.C.dtype == layer.W.dtype == layer.bias.dtype == torch.float64


def test_with_one_projection_of_ones_it_is_a_times_sign():
    layer = ProjectionConv2d(3, 4, 3)
    a = layer.C.detach().abs().mean()
    expected = torch.where(layer.C >= 0, a, -a)
    assert torch.equal(layer.quantized_weight(), expected)


def test_each_kernel_may_have_its_own_scale():
    layer = ProjectionConv2d(3, 4, 3, num_projections=2, scale="kernel")
    D = layer.quantized_weight().detach()
    for row, kernel in enumerate(layer.C.detach()):
        assert torch.allclose(D[2 * row : 2 * row + 2].abs(), kernel.abs().mean())


def test_forward_w_mean_makes_the_projections_equal():
    layer = ProjectionConv2d(3, 4, 3, num_projections=2, forward_w="mean", w_init="normal")
    D = layer.quantized_weight()
    assert torch.equal(D[0::2], D[1::2])
    with torch.no_grad():
        layer.C.div_(layer.C.abs().max() * 10)  # all within the mask
    layer(torch.randn(2, 3, 5, 5)).square().sum().backward()
    assert layer.W.grad.abs().sum() > 0


def test_state_dict_round_trip():
    one, other = (ProjectionConv2d(4, 8, 3, bias=True, num_projections=2) for _ in range(2))
    assert list(one.state_dict()) == ["bias", "C", "W"]
    assert sum(p.numel() for p in one.parameters()) == 4 * 4 * 9 + 2 * 9 + 8
    x = torch.randn(1, 4, 5, 5)
    assert not torch.equal(one(x), other(x))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(x), other(x))


def train_once(layer, x):
    """One backward; what is known of delta afterwards must be dL/dD."""
    layer.zero_grad()
    layer(x).square().sum().backward()
    D = layer.quantized_weight().detach().requires_grad_()
    seen = torch.where(x >= 0, 1.0, -1.0).to(x.dtype) if layer.activation_bits == 1 else x
    nn.functional.conv2d(seen, D, None, layer.stride, layer.padding).square().sum().backward()
    torch.testing.assert_close(layer._delta.read(), D.grad.to(layer.C.dtype), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("after_backward", [False, True])
def test_deepcopy_is_whole_and_apart(after_backward):
    layer, x = ProjectionConv2d(2, 4, 3, num_projections=2), torch.randn(1, 2, 5, 5)
    if after_backward:
        train_once(layer, x)
    twin = copy.deepcopy(layer)
    assert torch.equal(layer(x), twin(x))
    assert twin._delta.read() is None
    train_once(twin, x)
    assert (layer.C.grad is not None) == after_backward
    train_once(layer, x)


def test_torch_save_of_the_whole_module():
    layer, x = ProjectionConv2d(2, 4, 3, num_projections=2), torch.randn(1, 2, 5, 5)
    train_once(layer, x)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(layer(x), loaded(x))
    train_once(loaded, x)


@pytest.mark.parametrize("change", ["double", "half_and_back", "channels_last", "assign", "new_parameter", "meta"])
def test_delta_follows_C_wherever_it_goes(change):
    layer, x = ProjectionConv2d(4, 4, 3), torch.randn(1, 4, 5, 5)
    train_once(layer, x)
    match change:
        case "double":
            layer, x = layer.double(), x.double()
        case "half_and_back":
            layer = layer.half().float()
        case "channels_last":
            layer = layer.to(memory_format=torch.channels_last)
        case "assign":
            layer.load_state_dict({k: v.clone() for k, v in layer.state_dict().items()}, assign=True)
        case "new_parameter":
            layer.C = nn.Parameter(torch.randn(4, 4, 3, 3))
        case "meta":
            layer = layer.to("meta").to_empty(device="cpu")
            layer.reset_parameters()
    train_once(layer, x)
    train_once(layer, x)


def test_delta_moves_with_the_gradient():
    layer = ProjectionConv2d(2, 2, 3)
    layer(torch.randn(1, 2, 5, 5)).square().sum().backward()
    before = layer._delta.read().clone()
    layer.double()
    assert layer.C.grad.dtype == torch.float64
    torch.testing.assert_close(layer._delta.read(), before.double())


def test_channels_last_is_kept():
    layer = ProjectionConv2d(8, 8, 3, padding=1, activation_bits=1, num_projections=2)
    x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last).requires_grad_()
    expected = layer(x.detach().contiguous())
    layer = layer.to(memory_format=torch.channels_last)
    y = layer(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y, expected)
    y.sum().backward()
    assert x.grad.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("activation_bits", [1, 32])
def test_bf16_autocast(activation_bits):
    layer = ProjectionConv2d(8, 8, 3, num_projections=2, activation_bits=activation_bits)
    x = torch.randn(4, 8, 6, 6)
    full = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), full, rtol=0.03, atol=0.03)
    y.float().square().sum().backward()
    assert layer.C.grad.dtype == layer._delta.read().dtype == torch.float32


OPTIONS = [
    {},
    {"num_projections": 2, "activation_bits": 1},
    {"num_projections": 4, "levels": 3, "scale": "kernel", "bias": True},
    {"num_projections": 4, "forward_w": "mean", "w_init": "normal"},
]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("options", OPTIONS)
def test_compiles_whole_forward_and_backward(backend, options):
    torch._dynamo.reset()
    layer = ProjectionConv2d(4, 8, 3, padding=1, **options)
    eager = copy.deepcopy(layer)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    x = torch.randn(2, 4, 6, 6)
    for _ in range(2):  # the second pass accumulates
        compiled(x).square().sum().backward()
        eager(x).square().sum().backward()
    torch.testing.assert_close(compiled(x), eager(x))
    for name in ("C", "W"):
        torch.testing.assert_close(getattr(layer, name).grad, getattr(eager, name).grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer._delta.read(), eager._delta.read(), rtol=1e-4, atol=1e-4)
    layer.zero_grad()
    assert layer._delta.read() is None


def test_checkpointing_and_reuse_keep_delta():
    """A layer called twice, and recomputed in the backward pass, sees the sum of both calls."""
    layer, x = ProjectionConv2d(3, 3, 3, padding=1), torch.randn(1, 3, 5, 5)
    layer(layer(x).tanh()).square().sum().backward()
    expected = layer._delta.read().clone()
    for reentrant in (True, False):
        layer.zero_grad()
        x_grad = x.clone().requires_grad_()
        inner = torch.utils.checkpoint.checkpoint(layer, x_grad, use_reentrant=reentrant)
        layer(inner.tanh()).square().sum().backward()
        torch.testing.assert_close(layer._delta.read(), expected)


def test_called_with_the_keyword_of_conv2d():
    layer, x = ProjectionConv2d(2, 2, 3), torch.randn(1, 2, 4, 4)
    assert torch.equal(layer(input=x), layer(x))


@pytest.mark.parametrize("activation_bits", [1, 32])
def test_functorch_transforms(activation_bits):
    """Per-sample gradients by vmap(grad) are those of a loop."""
    layer = ProjectionConv2d(2, 4, 3, num_projections=2, activation_bits=activation_bits)
    parameters = {name: p.detach() for name, p in layer.named_parameters()}
    x = torch.randn(3, 2, 5, 5)

    def loss(parameters, sample):
        return torch.func.functional_call(layer, parameters, (sample[None],)).square().sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    for n in range(3):
        layer.zero_grad()
        layer(x[n : n + 1]).square().sum().backward()
        for name in ("C", "W"):
            torch.testing.assert_close(per_sample[name][n], getattr(layer, name).grad, rtol=1e-4, atol=1e-5)


def test_layer_works_in_functional_call_without_delta():
    layer, x = ProjectionConv2d(2, 2, 3), torch.randn(1, 2, 4, 4)
    parameters = {name: p.detach().clone() * -1 for name, p in layer.named_parameters()}
    C = parameters["C"].requires_grad_()
    torch.func.functional_call(layer, parameters, (x,)).square().sum().backward()
    assert C.grad.abs().sum() > 0
    assert layer.C.grad is None
    assert layer._delta.read() is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"out_channels": 6, "num_projections": 4}, ["num_projections=4", "6 / 1 = 6"]),
        (
            {"out_channels": 6, "groups": 3, "in_channels": 3, "num_projections": 3},
            ["num_projections=3", "6 / 3 = 2"],
        ),
        ({"num_projections": 0}, ["num_projections=0"]),
        ({"num_projections": 2.0}, ["num_projections=2.0", "whole number"]),
        ({"num_projections": "2"}, ["num_projections='2'", "whole number"]),
        ({"activation_bits": 8}, ["activation_bits=8", "1 or 32"]),
        ({"lam": -1e-4}, ["lam=-0.0001", ">= 0"]),
        ({"eta": -0.1}, ["eta=-0.1", ">= 0"]),
        ({"levels": (1.0,)}, ["levels", "2 elements"]),
        ({"levels": [1.0, 0.0]}, ["levels", "sorted"]),
        ({"scale": "net"}, ["scale='net'", "'layer'"]),
        ({"w_init": "zero"}, ["w_init='zero'", "'signs'"]),
        ({"groups": 5}, ["groups=5", "divide"]),
        ({"in_channels": 0}, ["in_channels=0"]),
        ({"kernel_size": 0}, ["kernel_size=0"]),
        ({"kernel_size": (3, 3, 3)}, ["kernel_size=(3, 3, 3)", "a pair"]),
        ({"stride": (1,)}, ["stride=(1,)", "a pair"]),
        ({"stride": (1, 0)}, ["stride=(1, 0)"]),
        ({"padding": -1}, ["padding=-1"]),
        ({"padding": "full"}, ["padding='full'", "'same'"]),
        ({"padding": "same", "stride": 2}, ["padding='same'", "stride"]),
        ({"padding_mode": "wrap"}, ["padding_mode='wrap'", "'circular'"]),
    ],
)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(ValueError) as caught:
        ProjectionConv2d(**{"in_channels": 4, "out_channels": 8, "kernel_size": 3} | arguments)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["C", "W"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_weights_are_refused_at_projection(name, value):
    layer = ProjectionConv2d(2, 2, 3)
    with torch.no_grad():
        getattr(layer, name).view(-1)[3] = value
    with pytest.raises(ValueError, match=f"{name} holds 1 non-finite"):
        layer(torch.ones(1, 2, 4, 4))


def test_repr_shows_what_is_not_default():
    layer = ProjectionConv2d(4, 8, 3, padding=1, num_projections=2, levels=3)
    assert repr(layer) == (
        "ProjectionConv2d(4, 8, kernel_size=(3, 3), padding=(1, 1), num_projections=2, levels=3)"
    )
    given = {"lam": 0.5, "eta": 0.0, "forward_w": "mean", "scale": "kernel", "levels": (-1.0, 2.0)}
    told = ", ".join(f"{name}={value!r}" for name, value in given.items())
    assert repr(ProjectionConv2d(4, 8, 1, **given)) == f"ProjectionConv2d(4, 8, kernel_size=(1, 1), {told})"


@pytest.mark.parametrize("J", [1, 2])
@pytest.mark.parametrize("scale", ["layer", "kernel"])
@pytest.mark.parametrize("forward_w", ["elementwise", "mean"])
def test_what_is_exported_of_a_layer_is_what_it_convolves_with(forward_w, scale, J):
    """Signs of C, masks and scales make up D, whatever the signs of W."""
    layer = ProjectionConv2d(3, 4, 3, num_projections=J, forward_w=forward_w, scale=scale, w_init="normal")
    assert (layer.W < 0).any()
    (kernels,) = layer.kernels()
    made = kernels.signs.repeat_interleave(J, dim=0)
    if kernels.masks is not None:
        made = made * kernels.masks.repeat(len(kernels.signs), 1, 1).unsqueeze(1)
    made = made * (kernels.scale if kernels.scale.ndim == 0 else kernels.scale.view(-1, 1, 1, 1))
    torch.testing.assert_close(made, layer.quantized_weight().detach(), rtol=0, atol=0)
