"""1-bit inputs behind a ReLU: found, and the ReLU taken out, replaced, or the whole refused."""

import pytest
import torch
from torch import nn

import foreign_nets
from foreign_nets import X, replaced
from onebit import ProjectionConv2d, binarization_report, binarize


def inputs_of_signs(model, x):
    """The input of every 1-bit conv in one forward pass."""
    seen = {}
    for name, module in model.named_modules():
        if isinstance(module, ProjectionConv2d):
            module.register_forward_pre_hook(lambda m, args, name=name: seen.__setitem__(name, args[0]))
    model(x)
    return seen


def assert_alive(model, x=X):
    inputs = inputs_of_signs(model, x)
    assert set(inputs) == set(replaced(model))
    for name, value in inputs.items():
        assert (value < 0).any(), f"{name} never sees a negative input"
        assert (value >= 0).any(), f"{name} never sees a positive input"


@pytest.mark.parametrize(("batch_norm", "feeds_the_classifier"), [(True, "features.9"), (False, "features.6")])
def test_vgg_loses_the_relus_that_feed_signs_only(batch_norm, feeds_the_classifier):
    model = binarize(foreign_nets.VGG(batch_norm), activation_bits=1)
    assert_alive(model)
    # of three ReLUs in features the first feeds a sign through a max pool, the second directly
    report = binarization_report(model)
    assert list(report.relus.values()) == ["removed", "removed"]
    assert any("feeds a max pool" in note for note in report.notes)
    kept = [name for name, module in model.named_modules() if isinstance(module, nn.ReLU)]
    assert kept == [feeds_the_classifier, "classifier.1"]


def test_densenet_keeps_the_relus_before_1x1():
    model = binarize(foreign_nets.DenseNet(), activation_bits=1)
    assert_alive(model)
    assert list(binarization_report(model).relus) == [f"block.layer{i}.relu2" for i in range(3)]
    assert isinstance(model.block["layer0"].relu1, nn.ReLU)


def test_a_relu_that_feeds_more_is_refused_and_nothing_is_changed():
    model = foreign_nets.ResNet()
    before = [id(m) for m in model.modules()]
    with pytest.raises(ValueError, match=r"layer1\.0\.conv1: .*ReLU relu.*relu_before_sign='prelu'"):
        binarize(model, activation_bits=1)
    assert [id(m) for m in model.modules()] == before


def test_prelu_instead():
    model = binarize(foreign_nets.ResNet(), activation_bits=1, relu_before_sign="prelu")
    assert_alive(model)
    assert set(binarization_report(model).relus.values()) == {"now PReLU"}
    assert isinstance(model.layer1[0].relu, nn.PReLU)
    model(X).sum().backward()
    assert model.layer1[0].relu.weight.grad is not None


def test_keep_looks_at_nothing():
    model = binarize(foreign_nets.ResNet(), activation_bits=1, relu_before_sign="keep")
    assert isinstance(model.layer1[0].relu, nn.ReLU)
    assert "makes its layer dead" in binarization_report(model).notes[-1]


class Functional(nn.Module):
    def __init__(self, before_sign):
        super().__init__()
        self.stem, self.norm, self.conv = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3)
        self.before_sign = before_sign

    def forward(self, x):
        return self.conv(self.before_sign(self.norm(self.stem(x))))


@pytest.mark.parametrize(
    "before_sign",
    [
        nn.functional.relu,
        torch.relu,
        lambda x: x.relu_(),
        torch.sigmoid,
        lambda x: nn.functional.max_pool2d(x.relu(), 2),
        lambda x: x.relu() + x.abs(),
        lambda x: torch.cat([x.relu()[:, :2], x[:, :2]], 1),
        lambda x: (x.relu() * 2 + 1).contiguous(),
        lambda x: x.relu() / 2,
        lambda x: x.clamp(min=0),
        lambda x: torch.clamp_min(x, 0.0),
        lambda x: nn.functional.hardtanh(x, 0.0, 6.0),
        lambda x: nn.functional.threshold(x, 0.0, 0.0),
        lambda x: x**2,
        lambda x: x * x,
        lambda x: torch.maximum(x, x.abs()),
        lambda x: x.relu().roll(1, 2),
        nn.Hardtanh(0.0, 6.0),
        nn.Threshold(0.0, 0.0),
        nn.Softmax2d(),
    ],
)
def test_functional_relus_are_refused(before_sign):
    with pytest.raises(ValueError, match=r"conv: its 1-bit input comes from .*is never negative"):
        binarize(Functional(before_sign), activation_bits=1)


@pytest.mark.parametrize(
    "before_sign",
    [
        lambda x: x,
        lambda x: x.relu() - 0.5,
        lambda x: x.relu() + -0.5,
        lambda x: x.relu() + x,
        lambda x: x * torch.sigmoid(x),
        nn.functional.hardswish,
        nn.functional.gelu,
        lambda x: nn.functional.leaky_relu(x),
        lambda x: x.clamp(min=-1),
        lambda x: x**3,
        nn.Hardtanh(),
        nn.Threshold(0.0, -1.0),
    ],
)
def test_what_can_be_negative_passes(before_sign):
    assert_alive(binarize(Functional(before_sign), activation_bits=1))


def test_relus_one_after_the_other_are_all_taken_out():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.ReLU6(), nn.Dropout(0.1), nn.Conv2d(4, 4, 3))
    binarize(model, activation_bits=1)
    assert list(binarization_report(model).relus) == ["1", "2"]
    assert_alive(model)


class OwnActivation(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def test_activations_of_the_users_own_are_followed():
    with pytest.raises(ValueError, match="comes from relu, is never negative"):
        binarize(Functional(OwnActivation()), activation_bits=1)


def test_a_relu_in_place_whose_result_is_not_used():
    class Discards(Functional):
        def forward(self, x):
            x = self.norm(self.stem(x))
            self.before_sign(x)
            return self.conv(x)

    with pytest.raises(ValueError, match="feeds other layers too"):
        binarize(Discards(nn.ReLU(inplace=True)), activation_bits=1)


def test_a_relu_in_place_whose_input_is_read_later_is_not_removed():
    class ReadLater(nn.Module):
        def __init__(self, inplace):
            super().__init__()
            self.stem, self.relu = nn.Conv2d(3, 4, 3), nn.ReLU(inplace=inplace)
            self.conv, self.head = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1)

        def forward(self, x):
            x = self.stem(x)
            y = self.relu(x)
            return self.conv(y).mean() + self.head(x).mean()

    with pytest.raises(ValueError, match="feeds other layers too"):
        binarize(ReadLater(inplace=True), activation_bits=1)
    assert_alive(binarize(ReadLater(inplace=False), activation_bits=1))


def test_a_relu_in_place_whose_input_was_read_before_is_removed():
    """What was read then was not the ReLU's yet."""

    class ReadBefore(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.relu = nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True)
            self.conv, self.head = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1)

        def forward(self, x):
            x = self.stem(x)
            size = self.head(x).mean()
            return self.conv(self.relu(x)) * size

    model = binarize(ReadBefore(), activation_bits=1)
    assert isinstance(model.relu, nn.Identity)
    assert_alive(model)


def test_a_relu_beside_a_gate_is_replaced_and_the_gate_stays():
    class SqueezeExcite(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.norm, self.relu = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
            self.gate, self.conv = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3)

        def forward(self, x):
            x = self.relu(self.norm(self.stem(x)))
            gate = torch.sigmoid(self.gate(x.mean((2, 3), keepdim=True)))
            return self.conv(input=(x * gate).view(x.size(0), 4, x.shape[2], -1))

    with pytest.raises(ValueError, match="feeds other layers too"):
        binarize(SqueezeExcite(), activation_bits=1)
    model = binarize(SqueezeExcite(), activation_bits=1, relu_before_sign="prelu")
    assert isinstance(model.relu, nn.PReLU)
    assert (model(X) != 0).any()


def test_a_second_call_sees_the_first():
    """1-bit layers of the first call count as signs, and stay in the report."""
    convs = [nn.Conv2d(width, 4, 3) for width in (3, 4, 4)]
    model = nn.Sequential(convs[0], nn.BatchNorm2d(4), nn.ReLU(), convs[1], nn.BatchNorm2d(4), nn.ReLU(), convs[2])
    binarize(model, activation_bits=1, skip=["6"])
    binarize(model, activation_bits=1)
    assert_alive(model)
    report = binarization_report(model)
    assert list(report.replaced) == ["3", "6"]
    assert list(report.relus) == ["2", "5"]


def test_hooks_and_mode_of_a_removed_relu_stay():
    model = foreign_nets.VGG().eval()
    calls = []
    model.features[2].register_forward_hook(lambda *_: calls.append(1))
    binarize(model, activation_bits=1)
    assert isinstance(model.features[2], nn.Identity)
    assert not any(m.training for m in model.modules())
    model(X)
    assert calls == [1]


def test_a_weight_tied_to_a_layer_that_stays():
    model = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3), nn.ConvTranspose2d(3, 3, 3))
    model[2].weight = model[1].weight
    binarize(model)
    assert model[1].C is model[2].weight


def test_a_model_that_cannot_be_followed_is_refused():
    class Branching(Functional):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else super().forward(-x)

    model = Branching(torch.relu)
    with pytest.raises(ValueError, match=r"can't follow the forward pass of Branching.*relu_before_sign='keep'"):
        binarize(model, activation_bits=1)
    binarize(model, activation_bits=1, relu_before_sign="keep")
    model = binarize(Branching(torch.relu))  # float inputs need no following
    assert replaced(model) == ["conv"]


def test_following_runs_no_hooks():
    model = foreign_nets.VGG()
    calls = []
    for module in model.modules():
        module.register_forward_hook(lambda *_: calls.append(1))
    binarize(model, activation_bits=1)
    assert calls == []


def test_a_max_pool_that_is_a_function_is_told_of():
    model = binarize(Functional(nn.Sequential(nn.ReLU(), Halved())), activation_bits=1)
    (note,) = [note for note in binarization_report(model).notes if "max pool" in note]
    assert note.startswith("before_sign.0 feeds a max pool")


class Halved(nn.Module):
    def forward(self, x):
        return nn.functional.max_pool2d(x, 2)


def test_a_prelu_has_the_dtype_of_the_net():
    model = binarize(foreign_nets.ResNet().double(), activation_bits=1, relu_before_sign="prelu")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert model(X.double()).dtype == torch.float64
