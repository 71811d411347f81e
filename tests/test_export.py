"""A file agrees with the net that it was made of: all models, methods and the nets of others."""

import itertools
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import foreign_nets
import onebit
from onebit.methods import METHODS
from onebit.modelfile import read_model
from packed_nets import Inception, Mobile, agreement, assert_agrees, lived_in

NETS = {
    "wrn22": {"width": 4},
    "wrn40": {"width": 2},
    "resnet18": {"width": 4},
    "vgg16": {"width": 2, "hidden": 16},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("exported") / "net.onebit"


def images(count=6, seed=0, size=32):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def grid(nets, quick):
    """All nets, inputs of 32 bits and of 1, J = 1, 2, 4; those that are not quick are for `make test-slow`."""
    cases = []
    for net, bits, J in itertools.product(nets, (32, 1), (1, 2, 4)):
        name = net if isinstance(net, str) else net.__name__
        marks = () if (name, bits, J) in quick else pytest.mark.slow
        cases.append(pytest.param(net, bits, J, marks=marks, id=f"{name}-A{bits}-J{J}"))
    return cases


QUICK = {("wrn22", 32, 1), ("wrn22", 1, 4), ("wrn40", 1, 2), ("resnet18", 32, 4), ("resnet18", 1, 1),
         ("vgg16", 32, 2), ("vgg16", 1, 1)}  # fmt: skip


def model_net(name, bits, J):
    torch.manual_seed(J)
    make = getattr(onebit.models, name)
    return lived_in(make(num_projections=J, activation_bits=bits, num_classes=10, **NETS[name]))


@pytest.mark.parametrize(("name", "bits", "J"), grid(NETS, QUICK))
def test_models(name, bits, J, path):
    assert_agrees(*agreement(model_net(name, bits, J), path, images()))


@pytest.mark.parametrize("method", ["bwn", "xnor", "dorefa", "bireal"])
def test_resnet18_in_the_form_of_a_method_s_authors(method, path):
    torch.manual_seed(0)
    net = lived_in(onebit.models.resnet18(4, method=method, num_classes=10, form="own"))
    assert_agrees(*agreement(net, path, images()))


def ops(path):
    return [node.op for node in read_model(path).graph.nodes]


def method_net(method, options):
    torch.manual_seed(0)
    net = lived_in(onebit.models.wrn22(width=4, method=method, **options))
    for layer in net.modules():
        if isinstance(layer, onebit.rivals.AbcConv2d) and layer.v is not None:
            with torch.no_grad():
                layer.v += 0.1
                layer.beta *= -0.7
    return net


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        ("binaryconnect", {}, {"bconv2d": 18}),
        ("bnn", {}, {"bconv2d": 18, "threshold": 16, "sign": 2}),  # a norm that also feeds a shortcut stays one
        ("lbcnn", {}, {"bconv2d": 0, "conv2d": 39}),
        ("lbcnn", {"sparsity": 1.0}, {"bconv2d": 18}),
        ("lbcnn", {"sparsity": 1.0, "num_intermediate": 4}, {"bconv2d": 18}),
        ("bwn", {}, {"bconv2d": 18}),
        ("xnor", {}, {"bconv2d": 18, "threshold": 16}),
        ("xnor", {"scale_map": True}, {"bconv2d": 18, "multiply": 18, "abs": 18}),
        ("mcdonnell", {}, {"bconv2d": 18, "conv2d": 1, "avg_pool2d": 2, "concatenate": 2}),
        ("dorefa", {}, {"bconv2d": 18, "quantize": 18}),
        ("dorefa", {"activation_bits": 8}, {"bconv2d": 18, "quantize": 18}),
        ("abc", {}, {"bconv2d": 18}),
        ("abc", {"weight_bases": 3, "activation_bases": 2}, {"bconv2d": 108, "threshold": 36}),
        ("abc", {"weight_bases": 2, "activation_bits": 32}, {"bconv2d": 36}),
        ("bireal", {}, {"bconv2d": 18}),
        ("bireal", {"magnitude_aware": False}, {"bconv2d": 18}),
        ("mcn", {}, {"bconv2d": 18}),
        ("mcn", {"num_projections": 2}, {"bconv2d": 18}),
        ("pcnn", {"scale": "kernel", "num_projections": 2}, {"bconv2d": 18}),
        ("pcnn", {"forward_w": "mean", "num_projections": 2}, {"bconv2d": 18}),
        ("pcnn", {"levels": 4}, {"bconv2d": 0, "conv2d": 21}),
        ("pcnn", {"levels": (-0.1, 0.0, 0.03), "activation_bits": 1}, {"bconv2d": 0, "conv2d": 21}),
        ("float", {}, {"bconv2d": 0, "conv2d": 21}),
    ],
)
def test_methods(method, options, expected, path):
    found, torchs, margin = agreement(method_net(method, options), path, images())
    if method == "abc":  # its thresholds are elsewhere
        margin = None
    if method == "dorefa":
        assert np.abs(found - torchs).max() < 0.05 * np.abs(torchs).max()  # a value on the edge of two levels
        assert (found.argmax(1) == torchs.argmax(1)).all()
    else:
        assert_agrees(found, torchs, margin)
    made = ops(path)
    assert {op: made.count(op) for op in expected} == expected


def test_every_method_was_tried():
    tried = test_methods.pytestmark[0].args[1]
    assert {method for method, *_ in tried} == set(METHODS)


QUICK_OTHERS = {
    ("ResNet", 32, 2),
    ("ResNet", 1, 1),
    ("VGG", 1, 4),
    ("DenseNet", 32, 1),
    ("DenseNet", 1, 2),
    ("Inception", 1, 2),
}


OTHERS = [foreign_nets.ResNet, foreign_nets.VGG, foreign_nets.DenseNet, Inception]


@pytest.mark.parametrize(("make", "bits", "J"), grid(OTHERS, QUICK_OTHERS))
def test_nets_of_others(make, bits, J, path):
    found, expected, margin = agreement(net_of_others(make, bits, J), path, images()[:, :, :20, :23])
    assert_agrees(found, expected, margin)
    assert "bconv2d" in ops(path)


def net_of_others(make, bits, J):
    torch.manual_seed(3)
    options = {"relu_before_sign": "prelu"} if bits == 1 else {}

    def skip(_, conv):
        return conv.kernel_size == (1, 1) or conv.out_channels % (J * conv.groups) > 0 or conv.in_channels == 3

    try:
        net = onebit.binarize(make(), num_projections=J, activation_bits=bits, skip=skip, **options)
    except ValueError as error:  # a functional ReLU before a sign: refused, as it must be
        assert bits == 1 and "1-bit input" in str(error)  # noqa: PT017, PT018
        net = onebit.binarize(make(), num_projections=J, activation_bits=bits, skip=skip, relu_before_sign="keep")
    return lived_in(net)


@pytest.mark.parametrize("hard", [True, False])
def test_mobile_nets(hard, path):
    torch.manual_seed(1)
    net = lived_in(onebit.binarize(Mobile(hard), skip=["stem.0", "depthwise", "gate.*"]))
    assert_agrees(*agreement(net, path, images(size=33)))
    assert_agrees(*agreement(lived_in(foreign_nets.MobileNet()), path, images()))


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("bits", [32, 1])
def test_geometry(bits, mode, path):
    torch.manual_seed(0)
    layers = [
        onebit.ProjectionConv2d(
            3, 6, (3, 2), (2, 1), (2, 1), (1, 2), 3, bias=True, padding_mode=mode, activation_bits=bits,
            num_projections=2,
        ),
        nn.BatchNorm2d(6),
        onebit.ProjectionConv2d(6, 4, 3, padding="same", padding_mode=mode, activation_bits=bits, bias=True),
    ]  # fmt: skip
    net = lived_in(nn.Sequential(*layers))
    assert_agrees(*agreement(net, path, images(size=9)))


def test_bits_reach_the_next_layer_as_thresholds(path):
    """conv, BN, sign: nothing float between two 1-bit layers, through a pool too; J masks, negative gammas."""
    torch.manual_seed(0)
    conv = onebit.ProjectionConv2d
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), conv(8, 8, 3, activation_bits=1), nn.BatchNorm2d(8), nn.Hardtanh(),
        conv(8, 12, 3, activation_bits=1, bias=True, num_projections=2), nn.MaxPool2d(2), nn.BatchNorm2d(12),
        conv(12, 8, 3, activation_bits=1), nn.BatchNorm2d(8),
    )  # fmt: skip
    found, expected, margin = agreement(lived_in(net), path, images(12))
    assert_agrees(found, expected, margin)
    model = read_model(path)
    assert [node.op for node in model.graph.nodes] == [
        "conv2d", "sign", "bconv2d", "threshold", "bconv2d", "max_pool2d", "threshold", "bconv2d", "affine",
    ]  # fmt: skip
    kinds = [model.values[node.name].kind for node in model.graph.nodes]
    assert kinds == ["float", "bits", "sums", "bits", "sums", "sums", "bits", "sums", "float"]
    assert model.graph.nodes[3].tensors["thresholds"].dtype == np.int32
    assert model.graph.nodes[3].tensors["at_most"].any()


def test_a_layer_shared_by_two_places_and_a_value_read_by_two(path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = (onebit.ProjectionConv2d(3, 3, 3, padding=1, activation_bits=1) for _ in range(2))
            self.fc = nn.Linear(3, 2)

        def forward(self, x):
            y = self.a(x) + self.b(x)
            return self.fc(self.a(y * 0.3 + 0.1).mean((2, 3)))

    found, expected, margin = agreement(Net().eval(), path, images())
    assert_agrees(found, expected, margin)
    model = read_model(path)
    kernels = [node.tensors["kernels"] for node in model.graph.nodes if node.op == "bconv2d"]
    assert len(kernels) == 3
    assert kernels[0] is kernels[2], "stored once"
    assert [node.op for node in model.graph.nodes].count("sign") == 1, "the bits of x serve both"


def test_any_batch_and_dtype(path):
    net = onebit.models.wrn22(width=2).eval()
    onebit.export(Mobile().eval().bfloat16(), path, images(1))  # with biases
    onebit.export(net.double(), path, images(1).half())
    reference = onebit.load(path)
    x = images(5)
    with torch.no_grad():
        expected = net(x.double()).numpy()
    np.testing.assert_allclose(reference(x.numpy()), expected, atol=1e-5)
    for one in range(5):
        np.testing.assert_allclose(reference(x[one : one + 1].numpy()), expected[one : one + 1], atol=1e-5)


def test_the_net_is_left_as_it_was(path):
    net = onebit.models.wrn22(width=2).eval()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    x = images(1)
    with torch.no_grad():
        expected = net(x)
    onebit.export(net, path, x)
    with torch.no_grad():
        assert torch.equal(net(x), expected)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert not any("forward" in vars(module) for module in net.modules())


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.conv, self.function = nn.Conv2d(3, 4, 3, padding=1), function

    def forward(self, x):
        return self.function(self.conv(x))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: torch.fft.fft2(x).abs(), ["aten.fft_fft2", "test_export.py", "not supported"]),
        (lambda x: F.interpolate(x, scale_factor=2), ["upsample_nearest2d", "test_export.py", "enlarges an image"]),
        (lambda x: F.conv_transpose2d(x, torch.ones(4, 4, 2, 2)), ["transposed convolutions", "enlarges an image"]),
        (lambda x: F.pixel_shuffle(x, 2), ["enlarges an image"]),
        (lambda x: F.conv1d(x.flatten(2), torch.ones(4, 4, 3)), ["only 2-d convolutions", "kernel of (1, k)"]),
        (lambda x: F.conv3d(x[:, :, None], torch.ones(4, 4, 1, 3, 3))[:, :, 0], ["only 2-d convolutions"]),
        (lambda x: F.normalize(x), ["linalg_vector_norm", "statistics of the input", "nn.BatchNorm2d"]),
        (lambda x: F.group_norm(x, 2), ["statistics of the input", "nn.BatchNorm2d"]),
        (lambda x: F.selu(x), ["use nn.ELU(), nn.LeakyReLU or nn.PReLU"]),
        (lambda x: F.rrelu(x), ["use nn.ELU(), nn.LeakyReLU or nn.PReLU"]),
        (lambda x: torch.roll(x, 1, 1), ["1x1 nn.Conv2d with fixed weights"]),
        (lambda x: torch.maximum(x, -x), ["max(x, y) is x + relu(y - x)"]),
        (lambda x: torch.einsum("nchw,nkhw->nchk", x, x), ["products of what a net computes"]),
        (lambda x: F.glu(x, 1), ["a, b = x.chunk(2, 1), then a * torch.sigmoid(b)"]),
        (lambda x: x.sum((2, 3)), ["use x.mean((2, 3))"]),
        (lambda x: torch.bernoulli(x), ["it is random"]),
        (lambda x: F.gelu(x), ["aten.gelu", "use nn.SiLU"]),
        (lambda x: x.permute(0, 2, 3, 1), ["aten.permute"]),
        (lambda x: x.reshape(-1, 4), ["images of a batch"]),
        (lambda x: x.mean(1), ["height and width"]),
        (lambda x: (x, x), ["one tensor"]),
        (lambda x: x.flatten(2), ["3 dimensions"]),
        (lambda x: x / x, ["division by a number"]),
        (lambda x: x * torch.ones(6, 6), ["neither one number nor one a channel"]),
        (lambda x: torch.cat([x, x], dim=2), ["only channels"]),
        (lambda x: x[:, :, 1:], ["only channels"]),
        (lambda x: F.pad(x, (1, 1), value=3.0), ["another number than 0"]),
        (lambda x: F.pad(x, (0, 0, 0, 0, 1, 1)), ["pads channels"]),
        (lambda x: x[: x.shape[0] // 2], ["size of the batch"]),
        (lambda x: torch.clamp(x, max=x.shape[0]), ["size of the batch"]),
        (lambda x: F.dropout(x, 0.5), ["drops values even in eval mode"]),
        (lambda x: torch.rand(4, 6, 6) + x, ["aten.rand", "it is random"]),
        (lambda x: torch.rand(x.shape[0], 4, 6, 6) + x, ["aten.rand", "it is random"]),
        (lambda x: x.mean(), ["height and width"]),
        (lambda x: torch.clamp(x, min=torch.zeros(4, 1, 1)), ["one for all channels"]),
        (lambda x: F.max_pool2d(x.mean((2, 3), keepdim=True), 2, 1, 1, dilation=2), ["no tap within the image"]),
        (lambda x: F.avg_pool2d(x, 2, divisor_override=3), ["divisor_override"]),
        (lambda x: F.instance_norm(x), ["aten.instance_norm"]),
        (lambda x: x if x.sum() > 0 else -x, ["can't be followed", "depends on the values of tensors"]),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_named(function, words, path):
    path.unlink(missing_ok=True)
    with pytest.raises(onebit.ExportError) as raised:
        onebit.export(Calls(function).eval(), path, torch.zeros(1, 3, 6, 6))
    assert all(word in str(raised.value) for word in words), str(raised.value)
    assert "\n" not in str(raised.value)
    assert not path.exists()


def rolled(x):
    """The channels, each one further, by a convolution."""
    return F.conv2d(x, torch.eye(4).roll(1, 0)[:, :, None, None])


def larger(x):
    y = x.mean((2, 3))[:, :, None, None]
    return x + F.relu(y - x)


def gated(x):
    a, b = x.chunk(2, 1)
    return a * torch.sigmoid(b)


@pytest.mark.parametrize(
    ("refused", "advised"),
    [
        (lambda x: torch.roll(x, 1, 1), rolled),
        (lambda x: F.glu(x, 1), gated),
        (lambda x: torch.maximum(x, x.mean((2, 3))[:, :, None, None]), larger),
        (lambda x: x.sum((2, 3)), lambda x: x.mean((2, 3)) * 36),
        (lambda x: torch.stack([x, -x], 1).flatten(1, 2), lambda x: torch.cat([x, -x], 1)),
        (lambda x: x.amax((2, 3)), lambda x: F.max_pool2d(x, 6).flatten(1)),
    ],
)  # fmt: skip
def test_what_is_advised_does_the_same(refused, advised, path):
    x = images(3, size=6)
    net, other = Calls(refused).eval(), Calls(advised).eval()
    other.load_state_dict(net.state_dict())
    with torch.inference_mode():
        expected = net(x)
        torch.testing.assert_close(other(x), expected)
    with pytest.raises(onebit.ExportError, match="it is not supported: "):
        onebit.export(net, path, x[:1])
    onebit.export(other, path, x[:1])
    np.testing.assert_allclose(onebit.load(path)(x.numpy()), expected.numpy(), atol=1e-5)


FAILS_IN_ITSELF = """
import logging, onebit, torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)
    def forward(self, x):
        return self.linear(x.mean((2, 3)))
try:
    onebit.export(Net().eval(), "net.onebit", torch.zeros(1, 3, 6, 6))
except onebit.ExportError as error:
    print(error)
logging.getLogger("torch").error("heard again")
"""


def test_a_net_that_fails_in_itself_is_one_line(tmp_path):
    """Without what torch logs about it; later it may log again."""
    command = [sys.executable, "-c", FAILS_IN_ITSELF]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"the forward pass of Net can't be followed: .*\d+.*\n", done.stdout)
    assert re.fullmatch(r".*heard again\n", done.stderr)


def test_the_layer_and_the_line_are_named(path):
    class Inner(nn.Module):
        def forward(self, x):
            return torch.cumsum(x, 1)

    net = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sequential(Inner()))
    with pytest.raises(onebit.ExportError) as raised:
        onebit.export(net.eval(), path, torch.zeros(1, 3, 6, 6))
    assert str(raised.value).startswith("layer '1.0' (Inner): aten.cumsum at ")
    assert "`return torch.cumsum(x, 1)`" in str(raised.value)


def test_bad_input(tmp_path, path):
    x = torch.zeros(1, 3, 8, 8)
    net = onebit.models.wrn22(width=2).eval()
    cases = [
        (onebit.models.wrn22(width=2), path, x, "training mode"),
        (nn.Sequential(net, nn.Dropout()).eval().append(nn.Dropout()), path, x, "training mode"),
        (net.state_dict(), path, x, "model is a OrderedDict: use an nn.Module"),
        (net, path, torch.zeros(3, 8, 8), "example_input"),
        (net, path, "x", "example_input"),
        (net, path, torch.zeros(1, 4, 8, 8), "can't be followed"),
        (net, tmp_path, x, "a folder"),
        (net, tmp_path / "missing" / "a.onebit", x, "no folder"),
    ]
    for model, target, example, words in cases:
        with pytest.raises(onebit.ExportError, match=words):
            onebit.export(model, target, example)
    small = nn.Sequential(nn.Conv2d(3, 10, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    for options, words in [
        ({"activation_bits": 4}, "use 8"),
        ({"float_bits": 4}, "use 32, 16 or 8"),
        ({"calibration": [x]}, "activation_bits=8"),
        ({"description": "\ud800"}, "description must be text of .* printable"),
        ({"class_names": ["caf\udce9"] * 10}, r"class_names: 'caf.udce9' must be text of .* printable"),
        ({"class_names": ["a"]}, "1 class name for 10 outputs"),
        ({"class_names": "abcdefghij"}, "use a list of names"),
        ({"class_names": range(10)}, "must be text"),
        ({"class_names": ["a\tb"] * 10}, "printable"),
        ({"description": "two\nlines"}, "printable"),
        ({"preprocessing": onebit.Preprocessing((0.5,), (0.5,))}, "3 channels"),
        ({"preprocessing": onebit.Preprocessing(0.5, 0.5)}, "a number for each channel"),
        ({"preprocessing": 3}, "a number for each channel"),
        ({"preprocessing": onebit.Preprocessing((0.5,) * 3, (1e-300,) * 3)}, "std must be at least 1e-06"),
        ({"preprocessing": onebit.Preprocessing((0.5,) * 3, (float("nan"),) * 3)}, "finite"),
        ({"preprocessing": onebit.Preprocessing((0.5,) * 3, (1e6,) * 3)}, "below a million"),
        ({"preprocessing": onebit.Preprocessing((0.5,) * 3, (0.5,) * 3, 1.2)}, "crop"),
    ]:
        with pytest.raises(onebit.ExportError, match=words):
            onebit.export(small, tmp_path / "a.onebit", x, **options)
    for name in ("stem.weight", "blocks.0.conv1.C", "norm.running_var"):
        broken = onebit.models.wrn22(width=2).eval()
        with torch.no_grad():
            broken.get_submodule(name.rpartition(".")[0]).__getattr__(name.rpartition(".")[2]).flatten()[0] = float(
                "nan"
            )
        with pytest.raises(onebit.ExportError, match=f"{name} holds numbers that are not finite"):
            onebit.export(broken, tmp_path / "a.onebit", x)
    assert list(tmp_path.iterdir()) == []


def test_layers_with_a_forward_of_their_own_are_refused(tmp_path):
    class Mine(onebit.ProjectionConv2d):
        def forward(self, x):
            return -super().forward(x)

    patched = onebit.ProjectionConv2d(3, 3, 3)
    patched.forward = forward = lambda x: x
    for layer in (Mine(3, 3, 3), patched):
        with pytest.raises(onebit.ExportError, match="layer '0' .* a forward pass of its own"):
            onebit.export(nn.Sequential(layer).eval(), tmp_path / "a.onebit", torch.zeros(1, 3, 6, 6))
    assert patched.forward is forward
    with pytest.raises(onebit.ExportError, match="layer '0' takes images of 3 channels"):
        onebit.export(
            nn.Sequential(onebit.ProjectionConv2d(3, 3, 3)).eval(), tmp_path / "a", torch.zeros(1, 4, 6, 6)
        )


def test_a_compiled_net_is_exported_as_the_net_that_it_is(tmp_path):
    onebit.export(torch.compile(nn.Conv2d(3, 2, 1)).eval(), tmp_path / "a.onebit", torch.zeros(1, 3, 4, 4))
    assert ops(tmp_path / "a.onebit") == ["conv2d"]


def test_a_path_that_cannot_be_written(tmp_path):
    net = nn.Conv2d(3, 2, 1).eval()
    target = tmp_path / "net.onebit"
    target.write_bytes(b"what was there")
    with pytest.raises(onebit.ExportError, match="can't be written"):
        onebit.export(net, tmp_path / ("x" * 300), torch.zeros(1, 3, 4, 4))
    onebit.export(net, target, torch.zeros(1, 3, 4, 4))
    assert read_model(target).graph.nodes[0].op == "conv2d"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("kernel", [(2, 4), (4, 3), (1, 2), (3, 6)])
@pytest.mark.parametrize("dilation", [1, 2, (3, 1)])
def test_same_padding_of_even_kernels(kernel, dilation, tmp_path):
    """The odd row or column of zeros is behind the image: the other way round the outputs would be shifted."""
    net = nn.Sequential(nn.Conv2d(3, 4, kernel, padding="same", dilation=dilation)).eval()
    x = torch.randn(2, 3, 11, 12)
    onebit.export(net, tmp_path / "a.onebit", x[:1])
    with torch.no_grad():
        expected = net(x).numpy()
    for engine in ("reference", "native"):
        found = onebit.load(tmp_path / "a.onebit", engine=engine)(x.numpy())
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
