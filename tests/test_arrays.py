"""A packed net as arrays: everything is there, as the document says, and NumPy alone can compute with it."""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

import onebit
from onebit.errors import ExportError
from onebit.exchange.arrays import npz_bytes
from onebit.modelfile import read_model, write_model
from onebit.packing import pack_signs
from onebit.peers.agreement import draw_images
from onebit.reference import Reference
from packed_nets import small_model
from random_nets import nets
from wire_models import Chain, wire_models

BLOCKS = re.findall(
    r"```python\n(.*?)```", (Path(__file__).parent.parent / "docs" / "exchange.md").read_text(), re.DOTALL
)


def loaded(model, folder):
    file = folder / "net.npz"
    size = onebit.convert(model, file)
    assert size == file.stat().st_size
    arrays = np.load(file)  # which refuses pickles
    return arrays, json.loads(arrays["graph"].item())


def assert_whole(model, arrays, graph):
    """Every tensor as it is, bits also written out, nothing else; the graph with nothing left to be worked out."""
    expected = {"graph"}
    assert [node["name"] for node in graph["nodes"]] == [node.name for node in model.graph.nodes]
    for node, told in zip(model.graph.nodes, graph["nodes"], strict=True):
        assert (told["op"], tuple(told["inputs"]), told["attributes"]) == (node.op, node.inputs, node.attributes)
        value = model.values[node.name]
        assert told["makes"] == {"kind": value.kind, "shape": list(value.shape)}
        for role, tensor in node.tensors.items():
            found = arrays[f"{node.name}.{role}"]
            assert found.dtype == tensor.dtype
            np.testing.assert_array_equal(found, tensor)
        assert {f"{node.name}.{role}" for role in node.tensors} <= set(told["arrays"])
        expected |= set(told["arrays"])
    assert set(arrays.files) == expected


@pytest.mark.parametrize("at", range(4))
def test_everything_is_there(at, tmp_path):
    model = wire_models()[at]
    arrays, graph = loaded(model, tmp_path)
    assert_whole(model, arrays, graph)
    assert (graph["format"], graph["input_shape"]) == (1, list(model.graph.input_shape))
    assert graph["classes"] == (model.classes and list(model.classes))
    assert (graph["producer"], graph["description"]) == (model.producer, model.description)
    about = graph["preprocessing"]
    expected = None if model.preprocessing is None else model.preprocessing._asdict()
    assert (about and {key: tuple(value) if key != "crop" else value for key, value in about.items()}) == expected
    assert npz_bytes(model) == (tmp_path / "net.npz").read_bytes()  # the same net, the same bytes


@settings(max_examples=40, deadline=None)
@given(net=nets())
def test_bits_written_out_are_the_packed_ones(tmp_path_factory, net):
    """By the rule of the document, bit for bit, not by our own unpacking."""
    model = net.model()
    arrays, graph = loaded(model, tmp_path_factory.mktemp("npz"))
    assert_whole(model, arrays, graph)
    for node in graph["nodes"]:
        if node["op"] == "threshold":
            packed, direction = (arrays[f"{node['name']}.{role}"] for role in ("at_most", "direction"))
            bits = [packed[c // 8] >> (c % 8) & 1 for c in range(len(direction))]
            assert [-1 if bit else 1 for bit in bits] == direction.tolist()
        if node["op"] != "bconv2d":
            continue
        packed, weight = (arrays[f"{node['name']}.{role}"] for role in ("kernels", "weight"))
        J, (kh, kw), planes = node["attributes"]["projections"], node["attributes"]["kernel_size"], weight.shape[1]
        assert (weight.dtype, len(weight)) == (np.int8, node["attributes"]["out_channels"])
        masks = arrays.get(f"{node['name']}.masks")
        for (row, i, y, x), sign in np.ndenumerate(weight):
            o, j = divmod(row, J)
            place = ((o * kh + y) * kw + x) * planes + i
            expected = 2 * int(packed[place // 8] >> (place % 8) & 1) - 1
            if masks is not None:
                place = (j * kh + y) * kw + x
                expected *= 2 * int(masks[place // 8] >> (place % 8) & 1) - 1
            assert sign == expected


def as_documented(arrays_file, x, folder):
    """What docs/exchange.md makes of the first 1-bit layer, in a process that has NumPy alone."""
    np.save(folder / "x.npy", x)
    code = "\n".join(
        [
            "import sys",
            "sys.modules['torch'] = sys.modules['onebit'] = None  # an import of them would fail",
            BLOCKS[-3],
            BLOCKS[-2],
            "assert x.shape == np.load('x.npy').shape",
            "x = np.load('x.npy')",
            BLOCKS[-1],
            "np.savez('made.npz', sums=sums, made=made)",
        ]
    )
    assert arrays_file == folder / "net.npz"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True)
    made = np.load(folder / "made.npz")
    return made["sums"], made["made"]


@pytest.mark.parametrize("net", ["zoo:digits-w1a1", "zoo:cifar10-w1a1", "small"])
def test_one_layer_by_numpy_alone(net, tmp_path):
    """The sums are those of the reference, bit for bit; and so is what follows them."""
    model = small_model(2) if net == "small" else read_model(net)
    onebit.convert(model, tmp_path / "net.npz")
    values = {node.name: made for node, made in Reference(model).values(draw_images(1, model.graph.input_shape))}
    layer = next(node for node in model.graph.nodes if node.op == "bconv2d")
    follower = next(node for node in model.graph.nodes if layer.name in node.inputs)
    sums, made = as_documented(tmp_path / "net.npz", values[layer.inputs[0]][0], tmp_path)
    np.testing.assert_array_equal(sums, values[layer.name][0])
    assert np.abs(sums).max() > 0
    np.testing.assert_array_equal(made, values[follower.name][0])


def test_one_layer_whose_follower_is_a_threshold(tmp_path):
    net = Chain(3, 6, 5).add("sign").bconv(3, 2, J=4, padding=[1, 1, 1, 1], stride=[2, 1])
    thresholds, at_most = np.array([0, 3, -5, 1, 2, -1, 7, 0], np.int32), np.array([-1, 1] * 4)
    net.add("threshold", tensors={"thresholds": thresholds, "at_most": pack_signs(at_most)})
    model = net.add("affine", tensors={"scale": net.floats(1)}).model()
    onebit.convert(model, tmp_path / "net.npz")
    values = {node.op: made for node, made in Reference(model).values(draw_images(1, (3, 6, 5)))}
    _, made = as_documented(tmp_path / "net.npz", values["sign"][0], tmp_path)
    np.testing.assert_array_equal(made, values["threshold"][0])
    assert set(np.unique(made)) == {-1, 1}


def test_names_that_would_be_paths_are_refused(tmp_path):
    for name in ("../../etc/x", "a\\b", "c:d"):
        model = Chain(1, 2, 2).add("relu", name).model()
        with pytest.raises(ExportError, match="can't be that of an array in an .npz file"):
            onebit.convert(model, tmp_path / "net.npz")
    assert list(tmp_path.iterdir()) == []


def test_the_archive_is_an_ordinary_one(tmp_path):
    model = small_model()
    write_model(model, tmp_path / "net.onebit")
    onebit.convert(tmp_path / "net.onebit", tmp_path / "net.npz")
    with zipfile.ZipFile(tmp_path / "net.npz") as archive:
        assert archive.testzip() is None
        assert all(name.endswith(".npy") for name in archive.namelist())
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
