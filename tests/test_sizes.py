"""What files take on disk, and what `inspect` says they take."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import onebit
from onebit.modelfile import read_model, write_model
from onebit.summary import summarize
from packed_nets import lived_in
from wire_models import Chain, wire_models


@pytest.fixture(scope="module")
def resnet18(tmp_path_factory):
    """Resnet18, J = 1, W1A1, exported with floats of 32, 16 and 8 bits: paths and summaries."""
    torch.manual_seed(0)
    net, folder = lived_in(onebit.models.resnet18(activation_bits=1)), tmp_path_factory.mktemp("resnet18")
    x = torch.zeros(1, 3, 224, 224)
    paths = {bits: folder / f"{bits}.onebit" for bits in (32, 16, 8)}
    return {bits: (path, onebit.export(net, path, x, float_bits=bits)) for bits, path in paths.items()}


@pytest.mark.parametrize(("bits", "most"), [(32, 4.3e6), (16, 2.9e6), (8, 2.2e6)])
def test_resnet18_on_disk(resnet18, bits, most):
    path, summary = resnet18[bits]
    size = path.stat().st_size
    assert size <= most
    assert summary.file_bytes == size
    assert sum(row.bytes for row in summary.rows) + summary.header_bytes == size
    assert summary.header_bytes == 8 + struct.unpack("<Q", path.read_bytes()[:8])[0]
    assert summarize(read_model(path)) == summary


def test_resnet18_as_the_paper_counts(resnet18):
    """374.1 -> 33.7 Mbit, 11.10 times: the paper's memory table."""
    for _, summary in resnet18.values():
        assert summary.float_bits == 32 * 11_689_512
        assert summary.paper_bits == 10_985_472 + 32 * (694_440 + 4 * 3_840)
        assert f"{summary.float_bits / 1e6:.1f} {summary.paper_bits / 1e6:.1f}" == "374.1 33.7"
        assert f"{summary.paper_compression:.2f}" == "11.10"
        assert sum(row.bits for row in summary.rows) == 10_985_472
        # The 1-bit convolutions of 224 x 224 images, and the rest: stem, three 1x1 convolutions, classifier.
        assert sum(row.one_bit_macs for row in summary.rows) == 1_676_279_808
        assert sum(row.float_macs for row in summary.rows) == 118_013_952 + 3 * 6_422_528 + 512_000


def test_resnet18_in_memory(resnet18):
    """Values and scratch: at most 1.3 times the largest pair of values that live at once, here stem and pool."""
    info = onebit.load(resnet18[32][0]).info()
    assert info["largest_pair_bytes"] == 4 * 64 * (112 * 112 + 56 * 56)
    assert info["workspace_bytes"] <= 1.3 * info["largest_pair_bytes"]


MEASURE = """
import sys
import numpy
import onebit
from pathlib import Path

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))

images = numpy.ones((1, 3, 224, 224), numpy.float32)
onebit.load(sys.argv[2])(numpy.ones((1, 2, 6, 5), numpy.float32))  # all that is imported and never given back
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = status("VmRSS")
net = onebit.load(sys.argv[1])
loaded = status("VmRSS")
for _ in range(3):
    net(images)
print(status("VmHWM") - before, status("VmRSS") - loaded)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system does not tell peaks of memory")
def test_memory_that_the_system_sees(resnet18, tmp_path):
    """Of a process of its own: at its peak, and grown by runs."""
    path, summary = resnet18[32]
    write_model(wire_models()[0], tmp_path / "small.onebit")
    command = [sys.executable, "-c", MEASURE, str(path), str(tmp_path / "small.onebit")]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    peak, grown = map(int, found.split())
    info = onebit.load(path).info()
    dense = 512 * 512 * 9  # bytes of the largest layer's signs, while it is packed
    slack = 2_000_000
    assert (
        peak <= 1.3 * info["largest_pair_bytes"] + info["weight_bytes"] + 2 * summary.file_bytes + 2 * dense + slack
    )
    assert grown <= 1.3 * info["largest_pair_bytes"]


def test_resnet18_agrees_in_16_bits(resnet18):
    x = np.random.default_rng(0).normal(size=(1, 3, 224, 224)).astype(np.float32)
    wide, half = (onebit.load(resnet18[bits][0])(x) for bits in (32, 16))
    assert np.isfinite(half).all()
    assert not np.array_equal(wide, half)


def test_counts_of_groups_and_of_J(tmp_path):
    """Multiply-adds are those within a group; the paper counts the kernels of all J; shared layers count once."""
    conv = onebit.ProjectionConv2d(8, 8, 3, groups=4, num_projections=2)
    net = torch.nn.Sequential(conv, torch.nn.Conv2d(8, 8, 1, bias=False), conv)
    summary = onebit.export(net.eval(), tmp_path / "net.onebit", torch.zeros(1, 8, 6, 5))
    (first, *_, last) = [row for row in summary.rows if row.op == "bconv2d"]
    assert first.one_bit_macs == 8 * 4 * 3 * (2 * 9)
    assert last.one_bit_macs == 8 * 2 * 1 * (2 * 9)
    assert (first.bits, first.projections) == (4 * 2 * 9 + 2 * 9, 2)
    assert (first.bytes, last.bytes) == (9 + 3, 0)
    assert summary.paper_bits == 8 * 2 * 9 + 32 * (64 + 4 * 8)
    assert summary.float_bits == 32 * (8 * 2 * 9 + 64)
    assert summarize(read_model(tmp_path / "net.onebit")) == summary


@pytest.mark.parametrize(("bits", "most"), [(16, 1e-3), (8, 2e-2)])
def test_rounded_weights(bits, most, tmp_path):
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(128, 5)
    )
    with torch.no_grad():
        net[0].weight[1] = 0  # a row of zeros has a scale, too
        net[0].weight[2] *= 100
    x = torch.randn(4, 3, 6, 6)
    onebit.export(net.eval(), tmp_path / "net.onebit", x, float_bits=bits)
    with torch.no_grad():
        expected = net(x).numpy()
    error = np.abs(onebit.load(tmp_path / "net.onebit")(x.numpy()) - expected).max() / np.abs(expected).max()
    assert 1e-6 < error < most
    weights = [
        node.tensors["weight"]
        for node in read_model(tmp_path / "net.onebit").graph.nodes
        if "weight" in node.tensors
    ]
    assert bits == 16 or {int(np.abs(weight).max()) for weight in weights} == {127}, "all of the 8 bits are used"


def test_J_projections_cost_J_masks(tmp_path):
    """With as many learned kernels, the 1-bit payload of J = 4 exceeds that of J = 1 by the masks alone."""

    def payload(J):
        net = torch.nn.Sequential(
            onebit.ProjectionConv2d(8, 16 * J, 3, num_projections=J, activation_bits=1),
            torch.nn.BatchNorm2d(16 * J),
        )
        path = tmp_path / "net.onebit"
        onebit.export(net.eval(), path, torch.zeros(1, 8, 9, 9))
        (conv,) = [node for node in read_model(path).graph.nodes if node.op == "bconv2d"]
        return {role: tensor.nbytes for role, tensor in conv.tensors.items()}

    torch.manual_seed(0)
    assert payload(1) == {"kernels": 16 * 8 * 9 // 8}
    assert payload(4) == {"kernels": 16 * 8 * 9 // 8, "masks": 5}  # 4 * 9 bits


def test_the_file_is_what_was_counted(tmp_path):
    """The bytes that `onebit.storage` counts are the payload, but for rounding to bytes and for folded norms."""
    torch.manual_seed(0)
    net = lived_in(onebit.models.wrn22(width=16))
    summary = onebit.export(net, tmp_path / "net.onebit", torch.zeros(1, 3, 32, 32))
    counted = onebit.storage(net)
    stored = sum(row.bytes for row in summary.rows)
    # J = 1: the mask of 9 bits a layer goes into the kernels. A norm behind a conv takes its scale along.
    assert abs(stored - counted.bytes) < 0.01 * counted.bytes
    assert sum(row.bits for row in summary.rows) == counted.bits - 18 * 9
    json.dumps(summary.as_json())


def test_binary_state_dict(tmp_path):
    torch.manual_seed(0)
    net = onebit.models.wrn22(width=4, num_projections=2).eval()
    onebit.export(net, tmp_path / "net.onebit", torch.zeros(1, 3, 32, 32))
    packed = onebit.load(tmp_path / "net.onebit").binary_state_dict()
    state = onebit.binary_state_dict(net)
    assert set(packed) == {name for name in state if name.endswith(".weight")}
    for name, weight in packed.items():
        layer = net.get_submodule(name.removesuffix(".weight"))
        assert np.array_equal(weight, state[name].numpy())
        scale = state[name.replace(".weight", ".scale")]
        torch.testing.assert_close(state[name] * scale, layer.quantized_weight().detach(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("binaryconnect", {}), ("bnn", {}), ("bwn", {}), ("xnor", {}), ("mcdonnell", {}), ("dorefa", {}),
        ("bireal", {}),
        ("abc", {"weight_bases": 3}), ("mcn", {"num_projections": 2}), ("lbcnn", {"sparsity": 1.0}), ("lbcnn", {}),
        ("pcnn", {"levels": 3}), ("pcnn", {"scale": "kernel", "num_projections": 2}),
        ("pcnn", {"forward_w": "mean", "num_projections": 2}),
    ],
)  # fmt: skip
def test_kernels_are_the_quantised_weight(method, options):
    """Of every method: signs, masks, scales and modulations give the weight that the forward pass has."""
    torch.manual_seed(0)
    convs = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 4, 3))
    layer = onebit.binarize(convs, method, **options)[1]
    state = onebit.binary_state_dict(torch.nn.Sequential(layer))
    names = [name for name in state if "weight" in name]
    terms = [state[name] * state[name.replace("weight", "scale")].reshape(-1, 1, 1, 1) for name in names]
    if not terms:
        assert (method, options) in [("lbcnn", {}), ("pcnn", {"levels": 3})]
        return
    total = torch.stack([term.float() for term in terms]).sum(0)
    if "0.modulation" in state:
        total = total * state["0.modulation"].repeat(2, 1, 1).unsqueeze(1)
    torch.testing.assert_close(total, layer.quantized_weight().detach(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("low", "high", "bits"),
    [(0, 255, 8), (-127, 127, 8), (-128, 127, 8), (0, 15, 4), (-8, 7, 4), (0, 1, 1), (-1, 2, 2)],
)
def test_bits_of_levels(low, high, bits):
    """As many as tell all levels apart, those below 0 among them."""
    net = Chain(4, 3, 3).add("quantize", per_unit=1.0, low=low, high=high).bconv(4, 2)
    net.add("affine", tensors={"scale": np.ones(1, np.float32)})
    (row,) = [row for row in summarize(net.model()).rows if row.one_bit_macs]
    assert row.precision == f"W1A{bits}"
