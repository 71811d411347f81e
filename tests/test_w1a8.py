"""Inputs of 8 bits: a W1A32 net whose 1-bit convolutions read whole numbers."""

import numpy as np
import pytest
import torch
from torch import nn

import onebit
from onebit.modelfile import read_model
from onebit.reference import Reference
from packed_nets import lived_in


def images(count=8, seed=0):
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("how", ["images", "norms"])
@pytest.mark.parametrize("name", ["wrn22", "resnet18"])
def test_nets(name, how, tmp_path):
    torch.manual_seed(0)
    net = lived_in(getattr(onebit.models, name)(width=4, num_projections=2, num_classes=10))
    path, x = tmp_path / "net.onebit", images()
    calibration = [images(16, seed=1)] if how == "images" else None
    onebit.export(net, path, x[:1], activation_bits=8, calibration=calibration)
    model = read_model(path)
    with torch.no_grad():
        expected = net(x).numpy()
    found = Reference(model)(x.numpy())
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert 1e-6 < error < 0.1, error  # rounded, and not by much
    convs = [node for node in model.graph.nodes if node.op == "bconv2d"]
    assert all(model.values[node.inputs[0]].kind == "levels" for node in convs)
    lows = {node.attributes["low"] for node in model.graph.nodes if node.op == "quantize"}
    assert lows == ({0} if name == "wrn22" else {-127}), "behind a ReLU nothing is negative"


def test_a_layer_by_hand(tmp_path):
    """Levels, sums and the scale of a single layer, by the formula."""
    torch.manual_seed(0)
    layer = onebit.ProjectionConv2d(3, 4, 3, padding=1, num_projections=2, bias=True)
    path, x = tmp_path / "net.onebit", images(2)
    onebit.export(
        nn.Sequential(nn.ReLU(), layer).eval(), path, x, activation_bits=8, calibration=[x.numpy(), (x, None)]
    )
    model = read_model(path)
    values = {node.name: value for node, value in Reference(model).values(x.numpy())}
    high = float(x.max())
    levels = np.rint(np.clip(np.float32(255 / high) * np.maximum(x.numpy(), 0), 0, 255))
    quantized = next(node for node in model.graph.nodes if node.op == "quantize")
    assert np.array_equal(values[quantized.name], levels)
    assert levels.max() == 255
    with torch.no_grad():
        expected = layer(torch.from_numpy(levels).float() * (high / 255))
    np.testing.assert_allclose(values[model.graph.nodes[-1].name], expected.numpy(), rtol=1e-4, atol=1e-4)


def test_negative_inputs_that_the_images_show_are_not_lost(tmp_path):
    layer = onebit.ProjectionConv2d(3, 2, 3)
    onebit.export(
        nn.Sequential(layer).eval(), tmp_path / "a", images(1), activation_bits=8, calibration=[images(2)]
    )
    (quantized,) = [node for node in read_model(tmp_path / "a").graph.nodes if node.op == "quantize"]
    assert (quantized.attributes["low"], quantized.attributes["high"]) == (-127, 127)


def scales(net, path, **options):
    onebit.export(net.eval(), path, images(1), activation_bits=8, **options)
    return [node.attributes for node in read_model(path).graph.nodes if node.op == "quantize"]


def test_the_range_is_that_of_all_batches(tmp_path):
    x = images(2).abs()
    (at,) = scales(nn.Sequential(onebit.ProjectionConv2d(3, 2, 3)), tmp_path / "a", calibration=[-5 * x, 0.1 * x])
    assert (at["low"], at["high"]) == (-127, 127)
    assert at["per_unit"] == float(np.float32(127 / (5 * float(x.max()))))


def norm_of(mean, deviation):
    norm = nn.BatchNorm2d(len(mean))
    with torch.no_grad():
        norm.weight.copy_(torch.tensor(deviation))
        norm.bias.copy_(torch.tensor(mean))
    return norm


def test_ranges_by_norms(tmp_path):
    """7 deviations beyond the mean's size, of the channel that reaches farthest; slopes, sums and joins count."""
    path, conv = tmp_path / "a", onebit.ProjectionConv2d(3, 2, 3)
    a, b = norm_of([-9.0, 1.0, 0.0], [-1.0, 0.5, 0.0]), norm_of([2.0, 0.0, 1.0], [0.0, 4.0, 2.0])

    def reach(net):
        (at,) = scales(net, path)
        return at["high"] / at["per_unit"]

    assert reach(nn.Sequential(a, conv)) == pytest.approx(9 + 7)
    assert reach(nn.Sequential(a, nn.ReLU(), conv)) == pytest.approx(1 + 3.5), "what is negative does not count"
    assert reach(nn.Sequential(a, nn.PReLU(init=4.0), conv)) == pytest.approx(4 * 16)
    assert reach(nn.Sequential(a, nn.PReLU(init=0.1), conv)) == pytest.approx(16)

    class Joined(nn.Module):
        def __init__(self, join):
            super().__init__()
            self.a, self.b, self.join = a, b, join
            self.conv = onebit.ProjectionConv2d(3 if join is torch.add else 1, 2, 3)

        def forward(self, x):
            y = self.join(self.a(x), self.b(x))
            return self.conv(y)

    assert reach(Joined(torch.add)) == pytest.approx(max(7 + 7, 1 + 7 * (0.25 + 16) ** 0.5, 1 + 14))
    fourth = reach(Joined(lambda x, y: torch.cat([x, y], 1)[:, 3:4]))
    assert fourth == pytest.approx(2.0), "the first channel of b"


def test_what_can_not_be(tmp_path):
    x, path = images(1), tmp_path / "net.onebit"

    def refused(net, words, **options):
        with pytest.raises(onebit.ExportError, match=words):
            onebit.export(net.eval(), path, x, activation_bits=8, **options)
        assert not path.exists()

    conv = onebit.ProjectionConv2d(3, 3, 3)
    refused(nn.Sequential(conv), "nothing is known about the range of 'input'.*calibration=")
    refused(nn.Sequential(nn.BatchNorm2d(3), conv, conv), "nothing is known about the range of '1")
    refused(nn.Sequential(conv), "no calibration images", calibration=[])
    refused(nn.Sequential(conv), "not finite at 'input'", calibration=[x * float("inf")])
    refused(nn.Sequential(conv), "not finite at 'input'", calibration=[x * float("nan")])
    refused(nn.Sequential(conv), "nothing but 0 at 'input'", calibration=x * 0)
    refused(nn.Sequential(conv), "images of uint8: use floats, prepared as in training", calibration=x.byte())
    refused(nn.Sequential(conv), "images of int64: use floats", calibration=[x.numpy().astype(int)])
    refused(nn.Sequential(conv), "use batches of images", calibration=5)
    refused(nn.Sequential(conv), "use batches of images", calibration=[{}])
    refused(nn.Sequential(conv), "calibration: .* shape", calibration=[x[:, :2]])
    refused(
        nn.Sequential(onebit.ProjectionConv2d(3, 3, 3, activation_bits=1)),
        "no 1-bit layer of the net has float inputs",
    )
    refused(nn.Sequential(onebit.rivals.ModulatedConv2d(3, 3, 3)), "mcn kernels", calibration=[x])
