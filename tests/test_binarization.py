"""binarize on nets of others: what is replaced, skipped, carried over, taken out and refused."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import foreign_nets
import onebit
from foreign_nets import X, replaced
from onebit import ProjectionConv2d, binarization_report, binarize


def test_resnet_by_the_default_rule():
    model = foreign_nets.ResNet()
    assert binarize(model) is model
    assert replaced(model) == [
        f"layer{stage}.{block}.conv{conv}" for stage in (1, 2) for block in (0, 1) for conv in (1, 2)
    ]
    report = binarization_report(model)
    assert report.skipped == {"conv1": "first convolution", "layer2.0.downsample.0": "1x1"}
    assert list(report.replaced) == replaced(model)
    assert model(X).shape == (2, 10)
    weights = sum(m.C.numel() for m in model.modules() if isinstance(m, ProjectionConv2d))
    share = 100 * weights / (weights + 3 * 8 * 49 + 8 * 16)
    for text in (
        "8 convolutions replaced, 2 skipped",
        f"{share:.1f} % of the convolutions' weights",
        "train before use",
        "layer2.0.conv1",
        "skipped: 1x1",
        "first convolution",
    ):
        assert text in str(report)


def test_with_one_projection_it_computes_a_times_sign_of_the_weight():
    model = foreign_nets.ResNet().eval()
    by_hand = copy.deepcopy(model)
    for name, module in by_hand.named_modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3) and name != "conv1":
            weight = module.weight.data
            module.weight.data = torch.where(weight >= 0, weight.abs().mean(), -weight.abs().mean())
    torch.testing.assert_close(binarize(model)(X), by_hand(X), rtol=0, atol=0)


def test_several_projections_take_every_Jth_kernel_and_say_so():
    model = foreign_nets.ResNet()
    weight = model.layer1[0].conv1.weight.detach().clone()
    binarize(model, num_projections=4)
    layer = model.layer1[0].conv1
    assert torch.equal(layer.C, weight[::4])
    assert layer.C.shape == (2, 8, 3, 3)
    (note,) = binarization_report(model).notes
    assert "only every J-th kernel is carried over; train before use" in note
    assert model(X).shape == (2, 10)


def test_options_reach_the_layers():
    model = binarize(foreign_nets.VGG(), activation_bits=1, lam=0.5, forward_w="mean", scale="kernel", levels=3)
    layer = model.get_submodule(replaced(model)[0])
    assert (layer.activation_bits, layer.lam) == (1, 0.5)
    assert layer.projection == (3, "kernel", "mean")


def test_bias_geometry_device_dtype_mode_and_freezing_are_carried_over():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Conv2d(4, 8, (3, 5), (2, 1), (1, 2), groups=2, padding_mode="reflect")
    )
    model = model.double().eval()
    model[1].weight.requires_grad_(False)
    bias = model[1].bias
    binarize(model)
    layer = model[1]
    assert layer.bias is bias
    assert (layer.kernel_size, layer.stride, layer.padding) == ((3, 5), (2, 1), (1, 2))
    assert (layer.groups, layer.padding_mode, layer.training) == (2, "reflect", False)
    assert layer.C.dtype == layer.W.dtype == torch.float64
    assert not layer.C.requires_grad
    assert model(X.double()).shape == (2, 8, 15, 30)


def test_hooks_stay_and_their_handles_still_work():
    model = foreign_nets.ResNet()
    calls = []
    conv = model.layer1[0].conv1
    forward = conv.register_forward_hook(lambda m, args, out: calls.append(type(m)))
    pre = conv.register_forward_pre_hook(lambda m, args: calls.append("pre"))
    backward = conv.register_full_backward_hook(lambda m, gi, go: calls.append("backward"))
    binarize(model)
    model(X).sum().backward()
    assert calls == ["pre", ProjectionConv2d, "backward"]
    for handle in (forward, pre, backward):
        handle.remove()
    model(X)
    assert len(calls) == 3


def test_shared_modules_stay_shared():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 4, 3)
            self.a = nn.Conv2d(4, 4, 3)
            self.b = self.a
            self.list = nn.ModuleList([self.a])

        def forward(self, x):
            return self.list[0](self.b(self.a(self.stem(x))))

    model = binarize(Twice())
    assert isinstance(model.a, ProjectionConv2d)
    assert model.a is model.b is model.list[0]
    model(X).sum().backward()


def test_shared_weights_of_several_projections_stay_shared():
    """Of the weight itself nothing stays then: the kernels made of it are what is shared."""
    net = nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3)))
    net[2].weight = net[1].weight
    onebit.binarize(net, num_projections=2)
    assert net[1].C is net[2].C
    assert net[1].W is not net[2].W
    assert net(torch.randn(1, 4, 5, 5)).shape == (1, 4, 5, 5)


def test_shared_weights_stay_shared():
    model = nn.Sequential(*(nn.Conv2d(3, 3, 3) for _ in range(3)))
    model[2].weight = model[1].weight
    binarize(model)
    assert model[1].C is model[2].C
    assert model[1].W is not model[2].W
    optimizer = torch.optim.SGD(onebit.parameter_groups(model), lr=0.1)
    onebit.discrete_backprop(model, optimizer)
    model(X).sum().backward()
    optimizer.step()


def test_a_lone_conv_is_replaced_when_asked():
    conv = nn.Conv2d(3, 4, 3)
    layer = binarize(conv, skip=lambda name, conv: False)
    assert isinstance(layer, ProjectionConv2d)
    assert torch.equal(layer.C, conv.weight)


def test_skip_by_name_pattern_and_rule():
    model = binarize(foreign_nets.ResNet(), skip=["layer1.*", "layer2.1.conv2"])
    assert replaced(model) == ["layer2.0.conv1", "layer2.0.conv2", "layer2.1.conv1"]
    model = binarize(
        foreign_nets.ResNet(), skip=lambda name, conv: "stem" if name == "conv1" else "downsample" not in name
    )
    assert replaced(model) == ["layer2.0.downsample.0"]
    assert binarization_report(model).skipped["conv1"] == "stem"


def test_mobilenet_needs_a_rule_of_its_own():
    with pytest.raises(ValueError) as caught:
        binarize(foreign_nets.MobileNet())
    for words in (
        "no convolution to replace",
        "all 4",
        "1 x first convolution",
        "2 x 1x1",
        "1 x depthwise",
        "skip=",
    ):
        assert words in str(caught.value)
    model = binarize(foreign_nets.MobileNet(), skip=lambda name, conv: conv.kernel_size != (1, 1))
    assert replaced(model) == ["expand.0", "project.0"]
    assert model(X).shape == (2, 10)


def test_densenet():
    model = binarize(foreign_nets.DenseNet())
    assert replaced(model) == [f"block.layer{i}.conv2" for i in range(3)]
    assert model(X).shape == (2, 10)


def test_unfit_convs_are_skipped_with_the_reason():
    class Standardised(nn.Conv2d):
        def forward(self, x):
            return self._conv_forward(x, self.weight - self.weight.mean(), self.bias)

    pruned = nn.Conv2d(4, 4, 3)
    prune.random_unstructured(pruned, "weight", 0.5)
    normed = nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3))
    lazy = nn.LazyConv2d(4, 3)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), Standardised(4, 4, 3), pruned, normed, nn.Conv2d(4, 4, 3), lazy)
    binarize(model)
    assert replaced(model) == ["4"]
    skipped = binarization_report(model).skipped
    assert "Standardised" in skipped["1"]
    assert "pruning" in skipped["2"]
    assert "Parametrized" in skipped["3"]
    assert "LazyConv2d" in skipped["5"]


def test_float_leaves_the_model_alone():
    model = foreign_nets.ResNet()
    before = [id(m) for m in model.modules()]
    assert binarize(model, "float") is model
    assert [id(m) for m in model.modules()] == before
    skipped = binarization_report(model).skipped
    assert (len(skipped), set(skipped.values())) == (10, {"method 'float'"})
    assert str(binarization_report(model)).startswith(
        "method float: 0 convolutions replaced, 10 skipped\n  conv1  "
    )


def test_a_report_of_a_net_built_by_hand():
    report = binarization_report(nn.Sequential(nn.Conv2d(3, 4, 3), ProjectionConv2d(4, 4, 3)))
    assert str(report) == (
        "method as built: 1 convolution replaced, 1 skipped\n"
        "  1  now ProjectionConv2d(4, 4, kernel_size=(3, 3))\n"
        "  0  skipped: nn.Conv2d"
    )


def test_the_report_of_a_lone_conv_and_of_a_relu():
    lone = binarize(nn.Conv2d(3, 4, 3), skip=lambda name, conv: False)
    first, second, _ = str(binarization_report(lone)).splitlines()
    assert (
        first
        == "method pcnn: 1 convolution replaced, 0 skipped; 100.0 % of the convolutions' weights are in these now"
    )
    assert second == "  (model)  now ProjectionConv2d(3, 4, kernel_size=(3, 3), bias=True)"
    for how, told in (("remove", "removed"), ("prelu", "now PReLU")):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
        binarize(model, activation_bits=1, relu_before_sign=how)
        assert f"  1  ReLU before a sign: {told}" in str(binarization_report(model)).splitlines()


def test_a_binarized_net_copies_saves_and_reports(tmp_path):
    model = binarize(foreign_nets.VGG(), num_projections=2).eval()
    twin = copy.deepcopy(model)
    assert str(binarization_report(twin)) == str(binarization_report(model))
    torch.save(model, tmp_path / "net.pt")
    loaded = torch.load(tmp_path / "net.pt", weights_only=False)
    assert torch.equal(model(X), loaded(X))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"method": "xnor++"}, ["method='xnor++'", "'pcnn'"]),
        ({"num_projections": 3}, ["layer1.0.conv1", "num_projections=3", "8"]),
        ({"activation_bits": 8}, ["activation_bits=8", "1 or 32"]),
        ({"lam": -1}, ["lam=-1"]),
        ({"skip": ["layer9.*"]}, ["layer9.*", "no convolution has such a name", "layer1.0.conv1"]),
        ({"skip": "layer1.0.conv1"}, ["skip=", "list"]),
        ({"method": "float", "activation_bits": 8}, ["activation_bits=8"]),
        ({"num_projection": 2}, ["num_projection=2", "did you mean num_projections?"]),
        ({"pretrained": True}, ["pretrained=True", "lam, eta, forward_w"]),
        ({"num_projections": 2.0}, ["num_projections=2.0", "whole number"]),
        ({"method": "dorefa", "activation_bits": 9}, ["activation_bits=9: method 'dorefa' takes 2 to 8 or 32"]),
        ({"method": "float", "num_projections": -3}, ["num_projections=-3"]),
        ({"method": "float", "lam": -1}, ["lam=-1"]),
        ({"relu_before_sign": "drop"}, ["relu_before_sign='drop'", "'prelu'"]),
    ],
)
def test_bad_arguments_are_named_and_nothing_is_changed(arguments, words):
    model = foreign_nets.ResNet()
    with pytest.raises(ValueError) as caught:
        binarize(model, **arguments)
    for word in words:
        assert word in str(caught.value)
    assert replaced(model) == []


def test_a_class_is_not_a_model():
    with pytest.raises(ValueError, match="made already"):
        binarize(foreign_nets.ResNet)


def test_a_second_call_with_nothing_left_says_so():
    model = binarize(foreign_nets.ResNet())
    with pytest.raises(ValueError, match="8 are 1-bit already"):
        binarize(model)


def test_a_model_without_convs():
    with pytest.raises(ValueError, match="no convolution to replace: it holds no nn.Conv2d$"):
        binarize(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"no nn.Conv2d, only ConvTranspose2d, which has no 1-bit form$"):
        binarize(nn.ConvTranspose2d(2, 2, 2))


def test_convolutions_of_other_kinds_are_named_in_the_report():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.Conv2d(4, 4, 3),
        nn.ConvTranspose2d(4, 4, 2, stride=2),
        nn.Flatten(2),
        nn.Conv1d(4, 4, 3),
    )
    report = binarization_report(binarize(model))
    assert list(report.replaced) == ["1"]
    assert report.share == 4 / (3 + 4), "of the nn.Conv2d"
    assert report.skipped == {
        "0": "first convolution",
        "2": "ConvTranspose2d: only nn.Conv2d has a 1-bit form",
        "4": "Conv1d: only nn.Conv2d has a 1-bit form",
    }
    assert "  2  skipped: ConvTranspose2d: only nn.Conv2d has a 1-bit form" in str(report).splitlines()


def test_the_report_of_two_calls_is_of_both():
    """What either replaced and changed, what is left now, and the share of all convolutions' weights."""
    model = foreign_nets.VGG()
    sizes = {name: m.weight.numel() for name, m in model.named_modules() if isinstance(m, nn.Conv2d)}
    first, *others, last = sizes
    assert len(others) >= 1
    binarize(model, "bnn", skip=lambda name, _: name != last and "not yet")
    one = binarization_report(model)
    assert list(one.replaced) == [last]
    assert one.skipped == dict.fromkeys([first, *others], "not yet")
    assert one.share == pytest.approx(sizes[last] / sum(sizes.values()))
    binarize(model, "bwn", skip=[first])
    both = binarization_report(model)
    assert both.method == "bwn"
    assert list(both.replaced) == [last, *others]
    assert both.replaced[last].startswith("BnnConv2d")
    assert all(both.replaced[name].startswith("BwnConv2d") for name in others)
    assert both.skipped == {first: "skip"}
    assert both.relus == one.relus
    assert one.relus
    assert both.notes[: len(one.notes)] == one.notes
    assert len(both.notes) > len(one.notes)
    assert both.share == pytest.approx(1 - sizes[first] / sum(sizes.values()))
    assert f"{len(sizes) - 1} convolutions replaced, 1 skipped" in str(both)
