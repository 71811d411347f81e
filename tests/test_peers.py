"""A packed net in other programs: PyTorch knows every operation; twins are float."""

import importlib
import os
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings

import onebit
from onebit.errors import ExportError
from onebit.exchange import limits
from onebit.operations import OPERATIONS
from onebit.peers import runner, torch_net
from onebit.peers.agreement import compare, draw_images
from onebit.peers.runner import CannotRunError, Runner, burst, fastest, outputs_of, times_faster
from onebit.peers.twin import float_twin
from onebit.reference import Reference
from packed_nets import Inception, Mobile, lived_in, small_model
from random_nets import nets
from test_shared_weights import LAYERS, doubled
from wire_models import Chain, wire_models


@pytest.fixture(autouse=True)
def _threads():
    """The runners of torch set them."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def exported(net, tmp_path, shape=(3, 13, 12)):
    path = tmp_path / "net.onebit"
    onebit.export(lived_in(net), path, torch.zeros(1, *shape))
    return onebit.load(path).model


def models(tmp_path):
    yield from wire_models()
    yield from (small_model(J, kind) for J in (1, 2) for kind in ("bits", "levels", "float"))
    yield from (exported(net, tmp_path) for net in (Mobile(), Mobile(hard=False), Inception()))


def assert_agrees(model, run, x):
    expected = Reference(model)(x)
    np.testing.assert_allclose(run(x), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def in_torch(model):
    interpreter = torch_net.Interpreter(model)
    return lambda x: interpreter(torch.from_numpy(x)).numpy()


def test_torch_knows_every_operation():
    assert set(torch_net.OPERATIONS) == set(OPERATIONS)


def test_torch_makes_what_the_reference_makes(tmp_path):
    seen = set()
    for model in models(tmp_path):
        assert_agrees(model, in_torch(model), draw_images(3, model.graph.input_shape))
        seen |= {node.op for node in model.graph.nodes}
    assert seen == set(OPERATIONS)


@pytest.mark.parametrize(("low", "high"), [(-0.5, None), (None, 0.5), (-0.5, 0.25), (None, None)])
def test_torch_keeps_either_bound(low, high):
    model = Chain(2, 6, 5).add("clamp", low=low, high=high).model()
    assert_agrees(model, in_torch(model), draw_images(2, (2, 6, 5)))


@settings(max_examples=60, deadline=None)
@given(net=nets())
def test_torch_runs_every_geometry(net):
    model = net.model()
    assert_agrees(model, in_torch(model), draw_images(2, model.graph.input_shape))


@settings(max_examples=20, deadline=None)
@given(net=nets())
def test_a_twin_is_float_and_of_the_same_shape(net):
    model = net.model()
    twin = float_twin(model)
    assert not {"bconv2d", "sign", "threshold", "quantize"} & {node.op for node in twin.graph.nodes}
    x = draw_images(2, model.graph.input_shape)
    made = Reference(twin)(x)
    assert made.shape == Reference(model)(x).shape
    assert_agrees(twin, in_torch(twin), x)
    size = np.abs(made).std() / (np.abs(Reference(model)(x)).std() + 1e-3)  # numbers that vanish would be slow
    assert 1e-3 < size < 1e3


def test_the_twin_folds_what_nothing_else_reads():
    net = Chain(2, 4, 4)
    weight = net.rng.integers(-127, 128, (3, 2, 1, 1)).astype(np.int8)
    net.add("conv2d", "conv", tensors={"weight": weight, "weight_scale": net.floats(3)})
    net.add("affine", "norm", tensors={"scale": net.floats(3), "shift": net.floats(3)})
    net.add("affine", "scale", tensors={"scale": net.floats(1)}).add("relu", "end")
    model = net.model()
    twin = float_twin(model)
    assert [node.op for node in twin.graph.nodes] == ["conv2d", "relu"]
    x = draw_images(2, (2, 4, 4))
    np.testing.assert_allclose(Reference(twin)(x), Reference(model)(x), rtol=1e-4, atol=1e-5)

    net.add("add", "sum", inputs=["end", "norm"])  # now the norm has two readers: the second scale stays
    twin = float_twin(net.model())
    assert [node.op for node in twin.graph.nodes] == ["conv2d", "affine", "relu", "add"]
    np.testing.assert_allclose(Reference(twin)(x), Reference(net.model())(x), rtol=1e-4, atol=1e-5)


def test_the_twin_of_levels_makes_numbers_of_the_same_size():
    """A level stands for 1 / per_unit, and a twin reads what it stands for: so the same comes out, nearly."""
    net = Chain(2, 6, 5).add("quantize", per_unit=16.0, low=-127, high=127)
    net.add("conv2d", tensors={"weight": net.rng.integers(-9, 10, (3, 2, 3, 3)).astype(np.int8)})
    model = net.add("affine", tensors={"scale": net.floats(3), "shift": net.floats(3)}).model()
    x = draw_images(4, (2, 6, 5))
    expected = Reference(model)(x)
    np.testing.assert_allclose(Reference(float_twin(model))(x), expected, atol=0.05 * np.abs(expected).max())


@pytest.mark.parametrize("name", LAYERS)
def test_what_layers_share_torch_has_once(name, monkeypatch):
    """A small file may have thousands of them."""
    made = []
    usual = torch_net.weight_of
    monkeypatch.setattr(torch_net, "weight_of", lambda *given: made.append(usual(*given)) or made[-1])
    for shares in (True, False):
        model = doubled(name, shares=shares)
        assert_agrees(model, in_torch(model), draw_images(2, model.graph.input_shape))
        assert len(made) == (1 if shares else 2)
        made.clear()


def test_a_frozen_net_has_a_limit(monkeypatch):
    """It lays weights out again, for every node."""
    model = doubled("Winograd", shares=True)
    x = draw_images(1, model.graph.input_shape)
    monkeypatch.setattr(limits, "MAX_BYTES", 8 * 32 * 16 * 9 - 1)
    with pytest.raises(ExportError, match="its weights, written out, take 37,000 bytes"):
        torch_net.ways(model, x)["frozen"]()
    assert fastest(torch_net.ways(model, x), x)[0] == "eager"


@pytest.mark.parametrize("name", LAYERS)
def test_what_layers_share_the_twin_shares(name):
    """And folds no scale into it, so that each would have its own."""
    shared, apart = (float_twin(doubled(name, shares=shares)) for shares in (True, False))
    behind = {"layer a", "norm a", "layer b", "norm b"}
    ops = [[node.op for node in twin.graph.nodes if node.name in behind] for twin in (shared, apart)]
    assert ops == [["conv2d", "affine"] * 2, ["conv2d"] * 2]
    a, b = (node.tensors["weight"] for node in shared.graph.nodes if node.op == "conv2d")
    assert a is b
    x = draw_images(2, shared.graph.input_shape)
    assert_agrees(shared, in_torch(shared), x)
    kind = LAYERS[name][2]["op"]
    if kind == "conv2d":  # no kernels that are drawn
        np.testing.assert_allclose(Reference(shared)(x), Reference(apart)(x), rtol=1e-3, atol=1e-3)


def needs(*modules):
    for module in modules:
        pytest.importorskip(module, reason=f"{module} is not installed: pip install 'onebit[bench]'")


@pytest.mark.parametrize("peer", ["onnxruntime", "openvino"])
def test_peers_make_what_the_reference_makes(peer, tmp_path):
    needs("onnx", peer)
    module = importlib.import_module(f"onebit.peers.{peer}_net")
    for model in models(tmp_path):
        x = draw_images(4, model.graph.input_shape)
        _, found = fastest(module.ways(model, x[:2]), x[:2])
        assert_agrees(model, lambda images, found=found: outputs_of(found, images, 2), x)


@pytest.mark.parametrize("peer", ["onnxruntime", "openvino"])
def test_every_way_makes_images_that_are_not_square(peer):
    """Not only the fastest, whichever that is; layouts are undone behind it."""
    needs("onnx", peer)
    net = Chain(2, 6, 5)
    model = net.add("conv2d", tensors={"weight": net.floats(3, 2, 3, 3)}).model()
    x = draw_images(2, (2, 6, 5))
    module = importlib.import_module(f"onebit.peers.{peer}_net")
    for make in module.ways(model, x).values():
        found = make()
        assert_agrees(model, lambda images, found=found: outputs_of(found, images, 2), x)


def test_signals_are_survived_once_openvino_has_run():
    """Ctrl-C in the midst of a comparison; see `openvino_net`."""
    needs("onnx", "openvino")
    code = """
import signal
from onebit.peers.openvino_net import ways
from onebit.peers.runner import fastest
from onebit.peers.agreement import draw_images
from wire_models import wire_models
model = wire_models()[2]
images = draw_images(1, model.graph.input_shape)
for _ in range(2):
    fastest(ways(model, images), images)
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("stopped")
"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr


@pytest.mark.parametrize("way", ["eager", "frozen"])
def test_runners_of_torch(way):
    model = small_model()
    x = draw_images(4, model.graph.input_shape)
    found = torch_net.ways(model, x[:2])[way]()
    assert torch.get_num_threads() == 1
    assert_agrees(model, lambda images: outputs_of(found, images, 2), x)


@pytest.mark.parametrize("names", list(permutations(("slow", "quick at last", "even"))), ids=str)
def test_the_fastest_way_is_taken(names, monkeypatch):
    """By the best of its calls, wherever it stands."""
    seconds = {"slow": [3.0, 2.0], "quick at last": [9.0, 1.0], "even": [1.5, 1.5]}
    monkeypatch.setattr(runner, "timed", lambda run, x, *_: seconds[run(x)])
    ways = {name: lambda name=name: Runner(lambda _: name) for name in names}
    name, found = fastest(ways, np.zeros((1, 1, 2, 2), np.float32))
    assert name == found.run(None) == "quick at last"


def test_a_way_that_fails_is_passed_over():
    def fail():
        raise RuntimeError("first line\nsecond line")

    x = np.zeros((1, 1, 2, 2), np.float32)
    name, runner = fastest({"broken": fail, "good": lambda: Runner(lambda x: x + 1)}, x)
    assert (name, runner.run(x).max()) == ("good", 1)
    with pytest.raises(CannotRunError, match="RuntimeError: first line$"):
        fastest({"broken": fail}, x)


def test_bursts_and_ratios():
    calls = []
    assert len(burst(calls.append, 0, seconds=0.0, most=9)) == 1
    assert len(calls) == 1  # a call that is longer than a burst counts at once
    assert len(burst(calls.append, 0, seconds=60.0, most=3)) == 3
    assert len(calls) == 1 + 3 + 3
    assert times_faster([[1.0], [2.0], [5.0]], [[3.0], [8.0], [5.0]]) == 3.0
    assert times_faster([[9.0, 2.0, 1.0]], [[1.0, 6.0, 30.0]]) == 3.0  # of medians, not of first or best calls


def test_agreement_of_outputs_that_are_all_0_or_not_finite():
    zeros = np.zeros((2, 3), np.float32)
    assert compare(zeros, zeros)[:4] == (0.0, 2, 2, 1.0)
    wild = np.array([[np.inf, np.nan, 1.0]], np.float32)
    assert compare(wild, wild).difference == 0
    with pytest.raises(ValueError, match="outputs of shape"):
        compare(zeros, wild)


def test_agreement_by_hand():
    """The largest difference of all over the largest output; what is not finite agrees with nothing but itself."""
    expected = np.array([[1, 2, -4], [0, 1, 3], [0.5, 0, 0]], np.float32)
    found = expected.copy()
    found[0, 1] += 0.5
    found[1, 0] = 3.25  # another class, too
    assert compare(found, expected)[:4] == (3.25 / 4, 3, 1, pytest.approx(2 / 3))
    for other in (np.nan, np.inf, -np.inf):
        harmed = expected.copy()
        harmed[1, 2] = other
        assert compare(harmed, expected)[:3] == compare(expected, harmed)[:3] == (np.inf, 3, 2), other
        opposite = np.where(harmed == other, -harmed, 0.0).astype(np.float32)
        assert compare(harmed, harmed).difference == 0
        assert np.isnan(other) or compare(harmed, opposite).difference == np.inf


def test_images_that_differ_at_their_borders_alone():
    expected = np.ones((2, 3, 4, 5), np.float32)
    edge, inside = expected.copy(), expected.copy()
    edge[0, :, 0] = edge[1, :, :, -1] = 2
    inside[0, 1, 2, 2] = 2
    assert [compare(found, expected).border_only for found in (expected, edge, inside)] == [False, True, False]
