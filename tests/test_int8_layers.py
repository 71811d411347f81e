"""Layers that are not 1-bit in whole numbers of 8 bits: `onebit.export(..., int8_layers=True)`."""

import numpy as np
import pytest
import torch
from torch import nn

import onebit
from engines import each_isa
from onebit.exporting.rounding import whole_weight
from onebit.graph import Graph, Node
from onebit.modelfile import Model, ModelFileError, Preprocessing, pack_model, read_model, unpack_model
from onebit.peers.torch_net import Interpreter
from onebit.peers.twin import float_twin
from onebit.reference import Reference
from packed_nets import lived_in
from wire_models import Chain


def images(count=16, seed=0, side=32):
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("options", [{}, {"activation_bits": 8}, {"bits": 1}], ids=["W1A32", "W1A8", "W1A1"])
@pytest.mark.parametrize("how", ["images", "norms"])
@pytest.mark.parametrize("name", ["wrn22", "resnet18"])
def test_nets(name, how, options, tmp_path):
    """Layers read bits, levels or (1-bit ones of W1A32) floats; little is lost; engine and reference agree."""
    torch.manual_seed(0)
    options = dict(options)
    bits = options.pop("bits", 32)
    net = lived_in(getattr(onebit.models, name)(width=4, num_projections=2, num_classes=10, activation_bits=bits))
    path, x = tmp_path / "net.onebit", images()
    calibration = [images(16, seed=1)] if how == "images" else None
    prepared = Preprocessing((0.5,) * 3, (0.125,) * 3)  # pixels become -4 to 4
    onebit.export(net, path, x[:1], int8_layers=True, calibration=calibration, preprocessing=prepared, **options)
    model = read_model(path)
    for node in model.graph.nodes:
        if node.op in {"conv2d", "linear"}:
            assert model.values[node.inputs[0]].kind == "levels"
            assert set(node.tensors) == {"weight"}
            assert np.abs(node.tensors["weight"].astype(int)).max() <= 64
    expected = Reference(model)(x.numpy())
    for isa in ("auto", "scalar"):
        difference = np.abs(onebit.load(path, isa=isa)(x.numpy()) - expected).max(axis=1) / np.abs(expected).max()
        assert (difference < 1e-4).mean() >= (0.85 if bits == 1 else 0.6), difference
        assert np.median(difference) < 1e-4
        assert bits == 1 or (difference < 0.02).all(), difference  # a number near the middle of two levels
    with torch.no_grad():
        in_float = net(x).numpy()
    error = np.linalg.norm(expected - in_float) / np.linalg.norm(in_float)
    assert error > 1e-6
    assert bits == 1 or error < 0.15, error


def test_a_layer_by_hand(tmp_path):
    """Levels, weights, sums and scale of one convolution, by the formula."""
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 5, 3, padding=1, stride=2)
    with torch.no_grad():
        conv.weight[2] = 0
    path, x = tmp_path / "net.onebit", images(2)
    onebit.export(nn.Sequential(conv).eval(), path, x, int8_layers=True, calibration=[x])
    model = read_model(path)
    assert [node.op for node in model.graph.nodes] == ["quantize", "conv2d", "affine"]
    values = {node.op: value for node, value in Reference(model).values(x.numpy())}
    per_unit = np.float32(127 / float(x.abs().max()))
    levels = np.rint(np.clip(x.numpy() * per_unit, -127, 127))
    np.testing.assert_array_equal(values["quantize"], levels)
    weight = model.graph.nodes[1].tensors["weight"]
    scale, shift = (model.graph.nodes[2].tensors[role] for role in ("scale", "shift"))
    given = conv.weight.detach().numpy()
    np.testing.assert_allclose(
        weight * (scale * per_unit).reshape(-1, 1, 1, 1), given, atol=np.abs(given).max() / 60
    )
    assert (weight[2] == 0).all()
    exact = nn.functional.conv2d(
        torch.from_numpy(levels).double(), torch.from_numpy(weight).double(), stride=2, padding=1
    )
    np.testing.assert_array_equal(values["conv2d"], exact.numpy())
    np.testing.assert_array_equal(
        values["affine"],
        exact.numpy().astype(np.float32) * scale.reshape(-1, 1, 1) + shift.reshape(-1, 1, 1),
    )


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (9, 8), (4, 3, 7, 7), (3, 16, 1, 1), (2, 5, 3, 1), (5, 1, 1, 9)])
@pytest.mark.parametrize("kind", ["normal", "equal", "one large"])
def test_what_kernels_add_first_fits_16_bits(shape, kind):
    """Of every eight weights of a row of the kernel, planes inside of taps: 0, 1, 4, 5 and 2, 3, 6, 7."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=shape) if kind == "normal" else np.ones(shape)
    if kind == "one large":
        weight.reshape(-1)[0] = 1000
    whole, scale = whole_weight(Node("a", "conv2d", (), {}, {"weight": weight}))
    assert whole.dtype == np.int8
    assert np.abs(whole.astype(int)).max() in range(30, 65)
    errors = np.abs(whole * scale.reshape(-1, *[1] * (weight.ndim - 1)) - weight)
    assert (errors.reshape(len(scale), -1).max(axis=1) <= scale / 2 + 1e-9).all()
    taps = np.abs(whole.astype(int)).reshape(*shape, *[1] * (4 - len(shape))).transpose(0, 2, 3, 1)
    for row in taps.reshape(shape[0] * taps.shape[1], -1):
        for first in range(0, len(row), 8):
            eight = np.pad(row[first : first + 8], (0, 8))[:8]
            assert max(eight[[0, 1, 4, 5]].sum(), eight[[2, 3, 6, 7]].sum()) <= 128


def test_whole_numbers_stay_and_large_ones_stay_in_float(tmp_path):
    """A layer of several levels has 8-bit weights already: those up to 64 are taken as they are."""
    torch.manual_seed(0)
    path, x = tmp_path / "net.onebit", images(1)
    layer = onebit.ProjectionConv2d(3, 4, 3, levels=5)
    onebit.export(nn.Sequential(layer).eval(), path, x, int8_layers=True, calibration=[x])
    (conv,) = [node for node in read_model(path).graph.nodes if node.op == "conv2d"]
    assert np.abs(conv.tensors["weight"]).max() == 2
    layer = onebit.ProjectionConv2d(3, 4, 3, levels=201)
    with pytest.raises(onebit.ExportError, match="int8_layers: the net has no float layer for 8 bits"):
        onebit.export(nn.Sequential(layer).eval(), path, x, int8_layers=True, calibration=[x])


def test_depthwise_layers_stay_in_float(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 3, 3, groups=3), nn.Conv2d(3, 4, 1)).eval()
    path, x = tmp_path / "net.onebit", images(1)
    onebit.export(net, path, x, int8_layers=True, calibration=[x])
    model = read_model(path)
    kinds = [model.values[node.inputs[0]].kind for node in model.graph.nodes if node.op == "conv2d"]
    assert kinds == ["float", "levels"]


def ranges(net, path, x, **options):
    onebit.export(net.eval(), path, x, int8_layers=True, **options)
    nodes = read_model(path).graph.nodes
    return [
        (at["low"], at["high"], at["high"] / at["per_unit"])
        for at in (n.attributes for n in nodes if n.op == "quantize")
    ]


def test_where_scales_come_from(tmp_path):
    path, x, conv = tmp_path / "a", images(1), nn.Conv2d(3, 4, 3)
    prepared = Preprocessing((0.5, 0.25, 0.0), (0.25, 0.5, 1.0))
    assert ranges(nn.Sequential(conv), path, x, preprocessing=prepared) == [(-127, 127, pytest.approx(2.0))]
    prepared = Preprocessing((0.5, 0.75, 0.0), (0.25, 0.25, 0.5))  # black is farther from 0 than white
    assert ranges(nn.Sequential(conv), path, x, preprocessing=prepared) == [(-127, 127, pytest.approx(3.0))]
    prepared = Preprocessing((0.0,) * 3, (0.5,) * 3)
    assert ranges(nn.Sequential(conv), path, x, preprocessing=prepared) == [(0, 255, pytest.approx(2.0))]
    most = float(x.abs().max())
    assert ranges(nn.Sequential(conv), path, x, calibration=x) == [(-127, 127, pytest.approx(most))]
    classifier = nn.Sequential(
        conv, nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    found = ranges(classifier, path, x, preprocessing=prepared)
    assert found == [(0, 255, pytest.approx(2.0)), (0, 255, pytest.approx(7.0))]


def test_what_can_not_be(tmp_path):
    x, path = images(1), tmp_path / "net.onebit"

    def refused(net, words, **options):
        with pytest.raises(onebit.ExportError, match=words) as caught:
            onebit.export(net.eval(), path, x, int8_layers=True, **options)
        assert "\n" not in str(caught.value)
        assert not path.exists()

    conv = nn.Conv2d(3, 3, 3)
    refused(nn.Sequential(conv), "int8_layers: nothing is known about the range of 'input'.*calibration=")
    refused(nn.Sequential(nn.BatchNorm2d(3), conv, conv), "nothing is known about the range of '1")
    refused(nn.Sequential(nn.ReLU()), "int8_layers: the net has no float layer", calibration=[x])
    refused(nn.Sequential(conv), "activation_bits=8: no 1-bit layer", calibration=[x], activation_bits=8)
    refused(nn.Sequential(conv), "std must be at least 1e-06", preprocessing=Preprocessing((0.5,) * 3, (0.0,) * 3))
    with pytest.raises(onebit.ExportError, match="calibration= is for activation_bits=8 and for int8_layers=True"):
        onebit.export(nn.Sequential(conv).eval(), path, x, calibration=[x])


def a_graph(**tensors):
    net = Chain(4, 3, 3).add("quantize", per_unit=1.0, low=-100, high=50)
    net.add("conv2d", tensors={"weight": np.ones((2, 4, 1, 1), np.int8), **tensors})
    return net.add("affine", tensors={"scale": np.ones(1, np.float32)})


def test_sums_and_their_bounds():
    model = a_graph(weight=np.array([[3, -4, 0, 0], [1, 1, 1, 1]], np.int8).reshape(2, 4, 1, 1)).model()
    value = model.values[model.graph.nodes[1].name]
    assert (value.kind, value.low, value.high) == ("sums", -700, 700)
    assert unpack_model(pack_model(model)).values == model.values


@pytest.mark.parametrize(
    "tensors",
    [
        {"weight": np.ones((2, 4, 1, 1), np.float32)},
        {"weight": np.ones((2, 4, 1, 1), np.float16)},
        {"weight_scale": np.ones(2, np.float32)},
        {"bias": np.ones(2, np.float32)},
    ],
)
def test_files_that_are_wrong(tensors):
    with pytest.raises(ValueError, match="of levels, the weight must be int8, without weight_scale and bias"):
        a_graph(**tensors).model()


def test_sums_that_32_bits_do_not_hold():
    weight = np.full((1, 70_000), 127, np.int8)
    net = Chain(70_000, 1, 1).add("reshape", shape=[70_000]).add("quantize", per_unit=1.0, low=0, high=255)
    with pytest.raises(ValueError, match="its sums reach 2266950000"):
        net.add("linear", tensors={"weight": weight}).add(
            "affine", tensors={"scale": np.ones(1, np.float32)}
        ).model()


def test_weights_in_8_bits_of_floats_are_what_they_were():
    """The meaning of a file that was written before layers could read levels."""
    weight = np.array([[2, -3]], np.int8)
    nodes = [
        Node("flat", "reshape", ("input",), {"shape": [2]}),
        Node("fc", "linear", ("flat",), {}, {"weight": weight, "weight_scale": np.array([0.5], np.float32)}),
    ]
    model = unpack_model(pack_model(Model(Graph((2, 1, 1), nodes))))
    assert model.values["fc"].kind == "float"
    assert Reference(model)(np.ones((1, 2, 1, 1), np.float32)) == -0.5
    assert issubclass(ModelFileError, ValueError)


@each_isa
def test_an_inner_layer_of_levels_through_threshold(isa):
    """Sums of 8-bit weights are compared with whole thresholds, as those of bits are."""
    from engines import assert_same
    from onebit.packing import pack_signs

    net = Chain(3, 5, 5).add("quantize", per_unit=50.0, low=-127, high=127)
    net.add("conv2d", tensors={"weight": net.rng.integers(-64, 65, (20, 3, 3, 3)).astype(np.int8)})
    limits = net.rng.integers(-3000, 3000, 20).astype(np.int32)
    net.add("threshold", tensors={"thresholds": limits, "at_most": pack_signs(net.rng.normal(size=20))})
    net.bconv(20, 4).add("affine", tensors={"scale": np.ones(1, np.float32)})
    assert_same(net.model(), net.floats(3, 3, 5, 5), isa)


def test_other_programs_run_it_and_its_float_twin(tmp_path):
    torch.manual_seed(0)
    net = lived_in(onebit.models.resnet18(width=4, num_classes=10, activation_bits=1))
    path, x = tmp_path / "net.onebit", images(2)
    onebit.export(net, path, x[:1], int8_layers=True, calibration=[x])
    model = read_model(path)
    with torch.no_grad():
        found = Interpreter(model)(x).numpy()
        twin = Interpreter(float_twin(model))(x).numpy()
    np.testing.assert_allclose(found, Reference(model)(x.numpy()), rtol=1e-3, atol=1e-3 * np.abs(found).max())
    assert np.isfinite(twin).all()
    assert 0.01 < np.abs(twin).max() / np.abs(found).max() < 100
    assert not any(node.op == "quantize" for node in float_twin(model).graph.nodes)
