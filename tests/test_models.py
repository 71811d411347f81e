"""The nets of the paper: their counts, their shapes, and that none of their 1-bit layers is dead."""

import copy

import pytest
import torch
from torch import nn

import onebit
from onebit import ProjectionConv2d
from onebit.models import resnet18, vgg16, wrn22, wrn40
from onebit.models.resnet import BiRealUnit

SMALL = {
    wrn22: {"width": 4},
    wrn40: {"width": 2},
    resnet18: {"width": 4, "num_classes": 10},
    vgg16: {"width": 4, "num_classes": 10, "hidden": 16},
}


def projection_layers(net):
    return [layer for layer in net.modules() if isinstance(layer, ProjectionConv2d)]


def latent_kernels(net):
    return sum(layer.C.numel() for layer in projection_layers(net))


@pytest.mark.parametrize("J", [1, 2, 4])
@pytest.mark.parametrize(("width", "count"), [(16, 267_264), (64, 4_276_224)])
def test_latent_kernels_of_wrn22(width, count, J):
    with torch.device("meta"):
        assert latent_kernels(wrn22(width, J)) == count * J


def test_depths():
    for make, depth in ((wrn22, 22), (wrn40, 40)):
        convs = [m for m in make(4, method="float").modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        shortcuts = 2  # 1x1, not counted in the name; the classifier stands for the last of its layers
        assert len(convs) - shortcuts == depth - 2
        assert len(projection_layers(make(4))) == depth - 4


def test_resnet18_float_is_the_standard_one():
    assert sum(p.numel() for p in resnet18(method="float").parameters()) == 11_689_512


def test_resnet18_bits_of_the_papers_memory_table():
    """33.7 Mbit for J = 1: 1-bit 3x3 kernels, and floats for stem, 1x1, classifier and the convs' norms."""
    net = resnet18()
    assert latent_kernels(net) == 10_985_472
    floats = {
        name: p.numel() for name, p in net.named_parameters() if p.ndim > 1 and not name.endswith((".C", ".W"))
    }
    kept = sum(floats.values()) + net.classifier.bias.numel()
    assert kept == 694_440
    norms = sum(4 * layer.out_channels for layer in projection_layers(net))  # gamma, beta, mean, variance
    mbit = (latent_kernels(net) + 32 * (kept + norms)) / 1e6
    float_mbit = 32 * sum(p.numel() for p in resnet18(method="float").parameters()) / 1e6
    assert (round(mbit, 1), round(float_mbit, 2), round(float_mbit / mbit, 2)) == (33.7, 374.06, 11.1)


def test_vgg16_float_is_the_standard_one():
    """138,365,992 parameters in the well-known net with batch norm, of which 13 conv biases are not needed."""
    with torch.device("meta"):
        count = sum(p.numel() for p in vgg16(method="float").parameters())
    biases = sum(n * w for n, w in ((2, 64), (2, 128), (3, 256), (6, 512)))
    assert count == 138_365_992 - biases


@pytest.mark.parametrize("make", SMALL)
@pytest.mark.parametrize("J", [1, 2])
@pytest.mark.parametrize("activation_bits", [1, 32])
def test_forward_and_backward(make, J, activation_bits):
    net = make(num_projections=J, activation_bits=activation_bits, **SMALL[make])
    y = net(torch.randn(2, 3, 32, 32))
    assert y.shape == (2, 10)
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    assert all(layer.num_projections == J for layer in projection_layers(net))
    assert all(layer.activation_bits == activation_bits for layer in projection_layers(net))


@pytest.mark.parametrize("make", SMALL)
def test_float_has_no_projection_layers(make):
    net = make(method="float", **SMALL[make])
    assert not projection_layers(net)
    assert net(torch.randn(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("make", SMALL)
@pytest.mark.parametrize("size", [32, 41])
def test_every_1_bit_conv_sees_both_signs(make, size):
    net = make(activation_bits=1, **SMALL[make])
    seen = {}
    for layer in projection_layers(net):
        layer.register_forward_pre_hook(lambda m, args: seen.setdefault(m, []).append(args[0]))
    net(torch.randn(4, 3, size, size))
    assert len(seen) == len(projection_layers(net))
    for (x,) in seen.values():
        negative = (x < 0).float().mean()
        assert 0.01 < negative < 0.99
        assert ((x.transpose(0, 1).flatten(1) < 0).any(1)).float().mean() > 0.5  # most channels, not just one


@pytest.mark.parametrize("make", SMALL)
def test_weights_of_w1a32_fit_w1a1(make):
    """Two-stage training: first with float inputs, then with their signs."""
    first, second = make(**SMALL[make]), make(activation_bits=1, **SMALL[make])
    second.load_state_dict(first.state_dict())


@pytest.mark.parametrize("prelu", ["before_add", "after_add"])
def test_prelu_stands_where_it_is_told(prelu):
    net = resnet18(width=4, num_classes=10, prelu=prelu)
    unit = net.blocks[1].eval()
    x = torch.randn(1, 4, 8, 8)
    y = unit.norm(unit.conv(x))
    expected = unit.prelu(y) + x if prelu == "before_add" else unit.prelu(y + x)
    torch.testing.assert_close(unit(x), expected)
    with pytest.raises(ValueError, match="prelu='never'"):
        resnet18(prelu="never")


def test_dropout_comes_with_width_64():
    def rates(net):
        return {m.p for m in net.modules() if isinstance(m, nn.Dropout)}

    with torch.device("meta"):
        assert rates(wrn22(64)) == {0.3}
        assert rates(wrn22(16)) == {0.0}
        assert rates(wrn22(64, dropout=0.1)) == {0.1}
        assert rates(wrn22(16, num_projections=4)) == {0.0}  # the paper's i, not how wide the tensors are


def test_what_is_asked_of_a_net_reaches_it():
    """Channels of the images, and the options of single nets."""
    for make, options in SMALL.items():
        net = make(in_channels=2, method="mcdonnell", **options)
        assert net(torch.zeros(2, 2, 32, 32)).shape == (2, 10)
    for make in (wrn22, wrn40):
        assert {m.p for m in make(2, dropout=0.2).modules() if isinstance(m, nn.Dropout)} == {0.2}
        assert {block.shortcut_each for block in make(2, shortcuts="conv").blocks} == {True}
        with pytest.raises(ValueError, match="shortcuts='each': use 'block' or 'conv'"):
            make(2, shortcuts="each")
    for given, rate in (({}, 0.5), ({"dropout": 0.2}, 0.2)):
        net = vgg16(1, hidden=8, **given)
        assert [m.p for m in net.modules() if isinstance(m, nn.Dropout)] == [rate, rate]


@pytest.mark.parametrize(("make", "classes"), [(wrn22, 10), (wrn40, 10), (resnet18, 1000), (vgg16, 1000)])
def test_classes_if_nothing_is_said(make, classes):
    with torch.device("meta"):
        assert [m.out_features for m in make(1).modules() if isinstance(m, nn.Linear)][-1] == classes


def test_options_reach_the_layers():
    net = wrn22(4, num_projections=2, lam=0.0, forward_w="mean", levels=3, scale="kernel")
    assert all(layer.lam == 0 and layer.projection == (3, "kernel", "mean") for layer in projection_layers(net))


@pytest.mark.parametrize(
    "wrong", [{"width": 0}, {"num_projections": 0}, {"method": "none"}, {"activation_bits": 4}]
)
def test_bad_arguments_are_named(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
        wrn22(**wrong)


@pytest.mark.parametrize("activation_bits", [1, 32])
def test_a_tiny_net_overfits(activation_bits):
    """16 random images with random labels, learned by heart: the whole method trains."""
    net = wrn22(8, num_projections=2, activation_bits=activation_bits)
    x, y = torch.randn(16, 3, 12, 12), torch.randint(0, 10, (16,))
    optimizer = torch.optim.SGD(onebit.parameter_groups(net, lr=0.1), momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 150)
    onebit.discrete_backprop(net, optimizer)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        schedule.step()
    assert (net(x).argmax(1) == y).all()


def test_the_whole_net_compiles_and_steps_like_eager():
    torch._dynamo.reset()
    eager = wrn22(4, num_projections=2, activation_bits=1)
    twin = copy.deepcopy(eager)
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    x, y = torch.randn(4, 3, 16, 16), torch.randint(0, 10, (4,))
    for net, parameters in ((eager, eager), (compiled, twin)):
        optimizer = torch.optim.SGD(onebit.parameter_groups(parameters, lr=0.1), momentum=0.9)
        onebit.discrete_backprop(net, optimizer)
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
    for p, q in zip(eager.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("size", "expected"), [(4, [[2.5, 4.5], [10.5, 12.5]]), (3, [[2.0, 3.5], [6.5, 8.0]])])
def test_a_shortcut_that_halves_an_image_sees_all_of_it(size, expected):
    """Means of 2 x 2 pixels; at an odd edge, of those that there are."""
    unit = BiRealUnit(1, 2, 2, "before_add", "pcnn").eval()
    pixels = torch.arange(size * size, dtype=torch.float32).view(1, 1, size, size)
    with torch.no_grad():
        unit.shortcut[1].weight.fill_(1.0)
        unit.shortcut[2].eps = 0.0
        made = unit.shortcut(pixels)
    assert made.shape == (1, 2, 2, 2)
    assert made[0, 0].tolist() == made[0, 1].tolist() == expected
