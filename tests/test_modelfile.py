"""The file: what is written is read, and whatever is wrong with a file is said and nothing else happens."""

import copy
import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

import onebit
from onebit import checking, container, jsonfields, modelfile
from onebit.container import KEY
from onebit.graph import Graph, Node
from onebit.modelfile import Model, Preprocessing, pack_model, read_model, unpack_model, write_model
from onebit.operations import OPERATIONS, default_attributes
from onebit.packing import pack_signs
from onebit.reference import Reference
from onebit.summary import summarize
from packed_nets import small_model
from wire_models import Chain


def taken_apart(content):
    """The description and the tensors of a file."""
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(json.loads(content[8 : 8 + size])["__metadata__"][KEY]), load(content)


def put_together(described, tensors):
    text = described if isinstance(described, str) else json.dumps(described)
    return save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, {KEY: text})


SMALL = pack_model(small_model())
DESCRIBED, TENSORS = taken_apart(SMALL)


def assert_same(found, expected):
    assert found.graph.input_shape == expected.graph.input_shape
    assert (found.preprocessing, found.classes) == (expected.preprocessing, expected.classes)
    assert (found.description, found.counts) == (expected.description, expected.counts)
    for one, other in zip(found.graph.nodes, expected.graph.nodes, strict=True):
        assert (one.name, one.op, one.inputs) == (other.name, other.op, other.inputs)
        assert one.attributes == other.attributes
        assert set(one.tensors) == set(other.tensors)
        for role, tensor in one.tensors.items():
            assert tensor.dtype == other.tensors[role].dtype
            assert np.array_equal(tensor, other.tensors[role])


@pytest.mark.parametrize("kind", ["bits", "levels", "float"])
def test_round_trip(kind, tmp_path):
    model = small_model(kind=kind)
    size = write_model(model, tmp_path / "a.onebit")
    assert (tmp_path / "a.onebit").stat().st_size == size
    found = read_model(tmp_path / "a.onebit")
    assert_same(found, model)
    assert found.values == model.values
    assert pack_model(found) == pack_model(model), "one way to write a model"
    x = np.random.default_rng(0).normal(size=(2, 2, 6, 5)).astype(np.float32)
    assert np.array_equal(Reference(found)(x), Reference(model)(x))


names = st.text(min_size=1, max_size=12).filter(str.isprintable)
numbers = st.floats(-1e3, 1e3, width=32)


@st.composite
def chains(draw):
    """Nets of operations that keep the shape of an image, in any order, with any names and numbers."""
    channels, height, width = (draw(st.integers(1, 5)) for _ in range(3))
    labels = draw(st.lists(names.filter(lambda name: name != "input"), min_size=1, max_size=8, unique=True))
    nodes, before = [], ["input"]
    for label in labels:
        op = draw(
            st.sampled_from(["affine", "prelu", "clamp", "add", "multiply", "relu", "tanh", "pad", "slice", "elu"])
        )
        inputs = [draw(st.sampled_from(before)) for _ in range(2 if op in {"add", "multiply"} else 1)]
        attributes, tensors = {}, {}
        length = draw(st.sampled_from([1, channels]))
        vector = np.array(draw(st.lists(numbers, min_size=length, max_size=length)), np.float32)
        if op == "affine":
            tensors = {"scale": vector} | ({"shift": vector[::-1].copy()} if draw(st.booleans()) else {})
        elif op == "prelu":
            tensors = {"slope": vector}
        elif op == "clamp":
            low, high = sorted([draw(numbers), draw(numbers)])
            attributes = {"low": draw(st.sampled_from([low, None])), "high": draw(st.sampled_from([high, None]))}
        elif op == "pad":
            attributes = {"padding": [0, 0, 0, 0], "mode": draw(st.sampled_from(["zeros", "replicate"]))}
        elif op == "slice":
            attributes = {"start": 0, "stop": channels}
        nodes.append(Node(label, op, tuple(inputs), attributes, tensors))
        before.append(label)
    classes = tuple(draw(st.lists(names, min_size=channels, max_size=channels))) if draw(st.booleans()) else None
    prepared = Preprocessing((0.5,) * channels, (0.25,) * channels) if draw(st.booleans()) else None
    return Model(Graph((channels, height, width), nodes), prepared, classes, draw(names))


@settings(max_examples=150, deadline=None)
@given(chains())
def test_round_trips_of_any_net(model):
    found = unpack_model(pack_model(model))
    assert_same(found, model)
    x = np.random.default_rng(0).normal(size=(1, *model.graph.input_shape)).astype(np.float32)
    with np.errstate(all="ignore"):
        assert np.array_equal(Reference(found)(x), Reference(model)(x), equal_nan=True)


def node(described, name):
    return next(each for each in described["nodes"] if each["name"] == name)


def change(at, /, **keys):
    """Keys of a node; of its attributes with a leading underscore."""

    def mutate(described, tensors):
        found = node(described, at)
        for key, value in keys.items():
            if key.startswith("_"):
                found.setdefault("attributes", {})[key[1:]] = value
            else:
                found[key] = value

    return mutate


def top(**keys):
    return lambda described, tensors: described.update(keys)


def tensor(name, array):
    return lambda described, tensors: tensors.update({name: np.asarray(array)})


def without(key):
    return lambda described, tensors: described.pop(key)


F32 = np.float32
WRONG = {
    # the description
    "no format": (without("format"), "'format' is missing"),
    "another format": (top(format=2), "a newer onebit wrote it"),
    "format 0": (top(format=0), "no such format"),
    "format is text": (top(format="1"), "'format' is missing or of another type"),
    "format is true": (top(format=True), "'format' is missing or of another type"),
    "unknown key": (top(extra=1), "'extra' is unknown"),
    "no nodes": (without("nodes"), "'nodes' is missing"),
    "empty nodes": (lambda d, t: (d.update(nodes=[], classes=None), t.clear()), "0 nodes"),
    "nodes of another type": (top(nodes={}), "'nodes' is missing"),
    "a node of another type": (lambda d, t: d["nodes"].append(3), "a node must be a JSON object"),
    "too many nodes": (lambda d, t: d.update(nodes=d["nodes"] * 2000), "at most 10000"),
    "input of two sides": (top(input_shape=[2, 6]), "input_shape"),
    "input of floats": (top(input_shape=[2, 6.0, 5]), "input_shape"),
    "input of true": (top(input_shape=[2, 6, True]), "input_shape"),
    "input of 0": (top(input_shape=[2, 0, 5]), "shape \\[2, 0, 5\\]"),
    "negative input": (top(input_shape=[2, -6, 5]), "shape \\[2, -6, 5\\]"),
    "huge input": (top(input_shape=[2, 1 << 40, 5]), "1 to 1048576"),
    "input of too many numbers": (top(input_shape=[2, 1 << 16, 1 << 16]), "at most 268435456"),
    "description with a bell": (top(description="\a"), "printable"),
    "long description": (top(description="x" * 2000), "1024"),
    "classes of another number": (top(classes=["a"]), "1 class name for 3 outputs"),
    "classes of numbers": (top(classes=[1, 2, 3]), "a class name must be text"),
    "classes as text": (top(classes="abc"), "'classes' is missing or of another type"),
    "too many classes": (top(classes=["a"] * (1 << 18)), "at most 131072"),
    "preprocessing of text": (top(preprocessing="x"), "'preprocessing'"),
    "preprocessing without mean": (top(preprocessing={"std": [1, 1], "crop": 1}), "'mean'"),
    "preprocessing for 1 channel": (top(preprocessing={"mean": [0], "std": [1], "crop": 1}), "each of 2 channels"),
    "std of 0": (top(preprocessing={"mean": [0, 0], "std": [1, 0], "crop": 1}), "std must be at least 1e-06"),
    "std of 1e-300": (top(preprocessing={"mean": [0, 0], "std": [1e-300, 1], "crop": 1}), "std must be at least"),
    "std below 0": (top(preprocessing={"mean": [0, 0], "std": [1, -1], "crop": 1}), "std must be at least 1e-06"),
    "crop of 0": (top(preprocessing={"mean": [0, 0], "std": [1, 1], "crop": 0}), "crop must be more than 0"),
    "crop of 2": (top(preprocessing={"mean": [0, 0], "std": [1, 1], "crop": 2}), "crop"),
    "mean of text": (top(preprocessing={"mean": [0, "a"], "std": [1, 1], "crop": 1}), "must be numbers"),
    "mean too large": (top(preprocessing={"mean": [0, 1e300], "std": [1, 1], "crop": 1}), "below a million"),
    "unknown in preprocessing": (
        top(preprocessing={"mean": [0, 0], "std": [1, 1], "crop": 1, "a": 1}),
        "'a' is unknown",
    ),
    "counts below 0": (top(counts={"in_float": -1, "full_precision": 1}), "counts"),
    "counts too large": (top(counts={"in_float": 1 << 50, "full_precision": 1}), "counts"),
    # nodes
    "no name": (lambda d, t: d["nodes"][0].pop("name"), "'name' is missing"),
    "a role twice": (change("prelu", tensors=["slope", "slope"]), "same role twice"),
    "a role here and there": (change("prelu", tensors_of={"slope": "prelu.slope"}), "same role twice"),
    "null for a list": (change("prelu", inputs=None), "'inputs' is missing or of another type"),
    "a name that turns the line round": (top(description="a\u202eb"), "printable"),
    "half a character": (top(description="a\ud800b"), "printable"),
    "a name of a megabyte": (change("norm", inputs=["y" * 1_000_000]), "^.{1,700}$"),
    "empty name": (change("prelu", name="", tensors=[], tensors_of={"slope": "prelu.slope"}), "must not be empty"),
    "name with a line break": (change("prelu", name="a\nb"), "printable"),
    "two of a name": (
        change("prelu", name="norm", tensors=[], tensors_of={"slope": "prelu.slope"}),
        "another value has that name",
    ),
    "a node called input": (
        change("stem", name="input", tensors=[], tensors_of={"weight": "stem.weight", "bias": "stem.bias"}),
        "that name",
    ),
    "unknown operation": (change("prelu", op="exec"), "no operation 'exec'"),
    "unknown key of a node": (change("prelu", code="x"), "'code' is unknown"),
    "inputs of numbers": (change("prelu", inputs=[1]), "must be names"),
    "tensors of numbers": (change("prelu", tensors=[1]), "must be names"),
    "reads itself": (change("prelu", inputs=["prelu"]), "'prelu', which is made by no node before it"),
    "reads a later node": (change("norm", inputs=["fc"]), "'fc', which is made by no node before it"),
    "reads what is not there": (change("prelu", inputs=["nothing"]), "'nothing'"),
    "two inputs of one": (change("prelu", inputs=["norm", "norm"]), "has 2 inputs"),
    "bits where floats are due": (change("prelu", inputs=["bits"]), "takes float, not bits"),
    "sums where floats are due": (change("prelu", inputs=["conv"]), "takes float, not sums"),
    "images where features are due": (change("fc", inputs=["pool"]), "takes features"),
    "returns bits": (
        lambda d, t: (
            d.update(nodes=d["nodes"][:2], classes=None),
            [t.pop(n) for n in list(t) if n.split(".")[0] not in {"stem", "bits"}],
        ),
        "must make floats",
    ),
    # attributes
    "unknown attribute": (change("conv", _color=1), "'color' is unknown or missing"),
    "missing attribute": (
        lambda d, t: node(d, "conv")["attributes"].pop("kernel_size"),
        "'kernel_size' is unknown or missing",
    ),
    "stride 0": (change("conv", _stride=[0, 1]), "stride must be 2 whole numbers from 1"),
    "stride of one number": (change("conv", _stride=1), "stride must be"),
    "stride of floats": (change("conv", _stride=[1.0, 1]), "stride must be"),
    "huge stride": (change("conv", _stride=[1 << 40, 1]), "stride must be"),
    "negative padding": (change("conv", _padding=[-1, 0, 0, 0]), "padding must be"),
    "kernel beyond the image": (change("stem", _dilation=[9, 9]), "larger than its padded input"),
    "groups that do not divide": (change("conv", _groups=4), "groups = 4 does not divide"),
    "projections that do not divide": (change("conv", _projections=4), "projections = 4 does not divide"),
    "another number of outputs": (change("conv", _out_channels=8), "kernels has shape"),
    "method with an escape": (change("conv", _method="\x1b[31mpcnn"), "method must be a word"),
    "method of two lines": (change("conv", _method="a\nb"), "method must be a word"),
    "method of 33 letters": (change("conv", _method="x" * 33), "method must be a word"),
    "reshape to another size": (change("flat", _shape=[7]), "makes \\[7\\] of"),
    "reshape to two sides": (change("flat", _shape=[2, 3]), "shape must be 1 or 3"),
    # tensors
    "a tensor that lacks": (lambda d, t: t.pop("norm.scale"), "no tensor 'norm.scale'"),
    "a tensor that nobody uses": (tensor("more", F32([1])), "no node uses the tensor 'more'"),
    "a role that lacks": (
        lambda d, t: (node(d, "norm").update(tensors=["shift"]), t.pop("norm.scale")),
        "lacks its tensor 'scale'",
    ),
    "a role that is unknown": (
        lambda d, t: (node(d, "norm").update(tensors=["scale", "shift", "x"]), t.update({"norm.x": F32([1])})),
        "does not know",
    ),
    "another dtype": (tensor("norm.scale", np.ones(6, np.int8)), "scale is int8 and must be float32"),
    "a dtype that files do not have": (tensor("norm.scale", np.ones(6, np.float64)), "dtype"),
    "another shape": (tensor("norm.scale", np.ones(5, F32)), "scale has shape \\[5\\] and must have \\[6\\]"),
    "an empty tensor": (tensor("norm.scale", np.ones(0, F32)), "'norm.scale' has shape \\[0\\]: it is empty"),
    "NaN": (tensor("norm.scale", F32([1, 2, np.nan, 4, 5, 6])), "not finite"),
    "infinity": (tensor("fc.bias", F32([1, 2, np.inf])), "not finite"),
    "NaN as a threshold": (tensor("bits.thresholds", F32([1, 2, np.nan, 4])), "not finite"),
    "thresholds of sums for floats": (tensor("bits.thresholds", np.ones(4, np.int32)), "those of floats float32"),
    "kernels too short": (
        tensor("conv.kernels", np.zeros(13, np.uint8)),
        "kernels has shape \\[13\\] and must have \\[14\\]",
    ),
    "kernels too long": (tensor("conv.kernels", np.zeros(15, np.uint8)), "kernels has shape"),
    "kernels with a stray bit": (tensor("conv.kernels", np.full(14, 255, np.uint8)), "behind its last one"),
    "masks with a stray bit": (tensor("conv.masks", np.full(3, 255, np.uint8)), "behind its last one"),
    "int8 without its scale": (
        lambda d, t: (node(d, "fc").update(tensors=["weight", "bias"]), t.pop("fc.weight_scale")),
        "weight_scale must be there",
    ),
    "a weight for other features": (
        tensor("fc.weight", np.ones((3, 7), np.int8)),
        "weight has shape \\[3, 7\\] and must have \\[3, 6\\]",
    ),
    "a weight of no kernel": (tensor("stem.weight", np.ones((4, 2, 0, 3), F32)), "'stem.weight' has shape"),
    "modulation of bits": (
        lambda d, t: (
            node(d, "conv")["tensors"].append("modulation"),
            t.update({"conv.modulation": np.ones((2, 3, 3), F32)}),
        ),
        "modulation is for floats",
    ),
}


@pytest.mark.parametrize("way", WRONG)
def test_a_file_that_is_wrong(way, tmp_path):
    mutate, words = WRONG[way]
    described, tensors = copy.deepcopy(DESCRIBED), dict(TENSORS)
    mutate(described, tensors)
    path = tmp_path / "wrong.onebit"
    path.write_bytes(put_together(described, tensors))
    with pytest.raises(onebit.ModelFileError, match=words) as raised:
        onebit.load(path, engine="reference")
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)


def test_what_was_put_together_is_right_unless_it_is_mutated():
    assert_same(unpack_model(put_together(DESCRIBED, TENSORS)), small_model())


def build(*nodes, shape=(1, 4, 4)):
    return Model(Graph(shape, list(nodes)))


def conv(name, source, **attributes):
    known = OPERATIONS["bconv2d"].attributes
    defaults = {key: rule.default for key, rule in known.items()}
    planes, taps = attributes.pop("planes"), attributes["kernel_size"]
    count = attributes["out_channels"] * planes * taps[0] * taps[1]
    kernels = np.zeros(-(-count // 8), np.uint8)
    return Node(name, "bconv2d", (source,), defaults | attributes, {"kernels": kernels})


def test_limits():
    """Sizes that a header only claims are refused before memory is taken for them."""
    grown = Node("grown", "pad", ("input",), {"padding": [1024] * 4, "mode": "replicate"})
    nodes = [grown]
    for number in range(12):
        nodes.append(Node(f"g{number}", "pad", (nodes[-1].name,), {"padding": [1024] * 4, "mode": "replicate"}))
    with pytest.raises(ValueError, match="and at most 268435456 are allowed"):
        build(*nodes, shape=(1, 1 << 13, 1 << 13))
    with pytest.raises(ValueError, match="a value of 268960000 numbers"):
        build(
            conv("c", "input", kernel_size=[1, 1], out_channels=1, planes=1, padding=[8] * 4),
            shape=(1, 16384, 16384),
        )
    levels = Node("q", "quantize", ("input",), {"per_unit": 1.0, "low": 0, "high": 255})
    wide = {"kernel_size": [256, 256], "out_channels": 1, "planes": 129}
    with pytest.raises(ValueError, match="sums reach 2155806720, and at most 2147483647"):
        build(levels, conv("c", "q", **wide), shape=(129, 256, 256))
    work = [
        conv(
            f"c{n}",
            f"c{n - 1}" if n else "input",
            kernel_size=[33, 33],
            padding=[16] * 4,
            out_channels=64,
            planes=64,
        )
        for n in range(70)
    ]
    with pytest.raises(ValueError, match="more than 1099511627776 multiply-adds"):
        build(*work, shape=(64, 128, 128))


def test_work_of_pools_counts():
    """As they are looked at: a window of 1024 x 1024 as 1024 + 1024 numbers."""
    pool = {"kernel_size": [1024] * 2, "stride": [1, 1], "padding": [512, 512], "ceil_mode": False}
    pools = [
        Node("p0", "max_pool2d", ("input",), pool | {"dilation": [1, 1]}),
        Node("p1", "max_pool2d", ("p0",), pool | {"dilation": [1, 1]}),
        Node("p2", "avg_pool2d", ("p1",), pool | {"count_include_pad": True}),
    ]
    build(*pools[:2], shape=(4, 2040, 2040))
    with pytest.raises(ValueError, match="more than 1099511627776 multiply-adds"):
        build(*pools, shape=(4, 2040, 2040))
    small = pool | {"kernel_size": [7, 7], "padding": [3, 3], "dilation": [1, 1]}  # as 49
    nodes = [Node(f"p{n}", "max_pool2d", (f"p{n - 1}" if n else "input",), small) for n in range(88)]
    build(*nodes[:87], shape=(4, 2000, 2000))
    with pytest.raises(ValueError, match="more than 1099511627776 multiply-adds"):
        build(*nodes, shape=(4, 2000, 2000))


def test_work_of_every_node_counts():
    for op, most in (("tanh", 64), ("relu", 256)):
        nodes = [Node(f"t{n}", op, (f"t{n - 1}" if n else "input",)) for n in range(most + 1)]
        build(*nodes[:most], shape=(1 << 8, 1 << 10, 1 << 10))
        with pytest.raises(ValueError, match="as long as more than 1099511627776 multiply-adds"):
            build(*nodes, shape=(1 << 8, 1 << 10, 1 << 10))


def of_weight(*shape, groups=1):
    return "conv2d", {"weight": np.zeros(shape, np.float32)}, {"groups": groups}


@pytest.mark.parametrize(
    ("op", "tensors", "attributes", "work"),
    [
        (*of_weight(32, 32, 3, 3), 32 * 32 * 9 * 36),  # multiply-adds of 6 x 6 places
        (*of_weight(16, 32, 3, 3), 16 * 32 * 9 * 36),
        (*of_weight(4, 32, 3, 3), 16 * 32 * 9 * 36),  # as if it made 16
        (*of_weight(64, 16, 3, 3, groups=2), 64 * 16 * 9 * 36),
        (*of_weight(32, 1, 3, 3, groups=32), 16 * 32 * 9 * 36),
        (*of_weight(64, 1, 3, 3, groups=32), 8 * 64 * 9 * 36),
        (*of_weight(512, 1, 1, 1, groups=32), 16 * 512 * 64),  # the numbers that it makes are more
        ("linear", {"weight": np.zeros((40, 2048), np.float32)}, {}, 40 * 2048),
        ("linear", {"weight": np.zeros((2, 2048), np.float32)}, {}, 16 * 2048),
        ("max_pool2d", {}, {"kernel_size": [3, 3], "stride": [1, 1]}, 16 * 9 * 32 * 36),
        ("avg_pool2d", {}, {"kernel_size": [2, 2], "stride": [2, 2]}, 16 * 4 * 32 * 16),
        ("adaptive_avg_pool2d", {}, {"output_size": [1, 1]}, 16 * 32 * 81),
        ("relu", {}, {}, 16 * 2048),
        *((op, {}, {}, 64 * 2048) for op in ("softmax", "sigmoid", "tanh", "elu", "silu")),
        ("reshape", {}, {"shape": [2048]}, 64 * 2048),
    ],
)
def test_what_is_slow_is_more_work(op, tensors, attributes, work):
    given = default_attributes(op) | attributes
    node = Node("node", op, ("flat" if op == "linear" else "input",), given, tensors)
    before = [Node("flat", "reshape", ("input",), {"shape": [2048]})] if op == "linear" else []
    model = build(*before, node, shape=(32, 8, 8))
    assert checking.work_of(node, model.values) == work


def test_sums_of_many_taps_are_more_work():
    """Beyond 16 bits plain loops add them up."""
    for planes, factor in ((63, 1), (64, 16)):
        sums = conv("sums", "bits", planes=planes, kernel_size=[32, 32], out_channels=16)
        end = Node("end", "affine", ("sums",), {}, {"scale": np.ones(1, np.float32)})
        values = build(Node("bits", "sign", ("input",)), sums, end, shape=(planes, 32, 32)).values
        assert checking.work_of(sums, values) == factor * 16 * planes * 1024


def test_many_nodes_may_share_a_tensor():
    """It is looked at once: a small file can't make a reader work for minutes."""
    weight = np.ones((512, 512), np.float32)
    nodes = [Node("flat", "reshape", ("input",), {"shape": [512]})]
    nodes += [
        Node(f"n{n}", "linear", (nodes[-1].name if n == 0 else f"n{n - 1}",), {}, {"weight": weight})
        for n in range(3000)
    ]
    content = pack_model(build(*nodes, shape=(512, 1, 1)))
    assert len(content) < 2_000_000
    found = unpack_model(content)
    assert found.graph.nodes[1].tensors["weight"] is found.graph.nodes[-1].tensors["weight"]
    assert sum(row.bytes for row in summarize(found).rows) == weight.nbytes


def test_equal_bytes_of_another_kind_or_shape_are_stored_apart():
    """Zeros as float32 and as int32; a row and a column."""
    net = (
        Chain(2, 1, 1).add("prelu", tensors={"slope": np.zeros(2, np.float32)}).add("sign").bconv(2, 2, taps=(1, 1))
    )
    net.add("threshold", tensors={"thresholds": np.zeros(2, np.int32), "at_most": pack_signs(np.ones(2))})
    net.bconv(2, 1, taps=(1, 1)).add("affine", tensors={"scale": np.ones(1, np.float32)})
    net.add("reshape", shape=[1]).add("linear", tensors={"weight": np.full((3, 1), 2, np.float32)})
    net.add("linear", tensors={"weight": np.full((1, 3), 2, np.float32)})
    model = net.model()
    assert_same(unpack_model(pack_model(model)), model)


def test_headers_that_are_wrong():
    size = struct.unpack("<Q", SMALL[:8])[0]

    def with_header(text):
        return struct.pack("<Q", len(text)) + text + SMALL[8 + size :]

    header = SMALL[8 : 8 + size]
    deep = put_together("[" * 100_000, TENSORS)
    cases = [
        (b"", "not a .onebit file: it is empty"),
        (b"\x01", "not a .onebit file"),
        (b"some text that is no model file at all", "not a .onebit file"),
        (SMALL[:-1], "safetensors"),
        (SMALL + b"x", "safetensors"),
        (SMALL[: len(SMALL) // 2], "safetensors|only its beginning"),
        (struct.pack("<Q", 2**63) + SMALL[8:], "only its beginning"),
        (struct.pack("<Q", size - 30) + SMALL[8:], "JSON"),
        (with_header(b"[]"), "not of a packed net"),
        (with_header(b"{}"), "not of a packed net"),
        (with_header(header.replace(b'"data_offsets":[0,', b'"data_offsets":[1,', 1)), "safetensors"),
        (with_header(header.replace(b'"U8"', b'"U9"', 1)), "safetensors"),
        (
            with_header(header.replace(b'"__metadata__"', b'"stem.weight":{},"stem.weight":{},"__metadata__"')),
            "twice",
        ),
        (save(TENSORS), "not of a packed net"),
        (save(TENSORS, {"onebit": "{}"}), "`onebit export` makes one of it"),
        (put_together("{", TENSORS), "not sound JSON"),
        (put_together('{"format": NaN}', TENSORS), "not sound JSON"),
        (put_together('{"format": 1, "format": 1}', TENSORS), "twice"),
        (put_together('{"format": ' + "1" * 5000 + "}", TENSORS), "not sound JSON"),
        (put_together("[]", TENSORS), "must be a JSON object"),
        (deep, "not sound JSON"),
    ]
    for content, words in cases:
        with pytest.raises(onebit.ModelFileError, match=words):
            unpack_model(content)


def test_sizes_of_files(tmp_path, monkeypatch):
    path = tmp_path / "a.onebit"
    write_model(small_model(), path)
    monkeypatch.setattr(modelfile, "MAX_FILE", path.stat().st_size - 1)
    with pytest.raises(onebit.ModelFileError, match="larger than"):
        read_model(path)
    monkeypatch.setattr(container, "MAX_FILE", path.stat().st_size - 1)
    with pytest.raises(onebit.ModelFileError, match="larger than"):
        unpack_model(path.read_bytes())
    monkeypatch.undo()
    monkeypatch.setattr(container, "MAX_TEXT", 100)
    with pytest.raises(onebit.ModelFileError, match="header has"):
        read_model(path)


def test_paths(tmp_path):
    for path, words in [(tmp_path, "a folder, not a file"), (tmp_path / "none.onebit", "no such file")]:
        with pytest.raises(ValueError, match=words):
            onebit.load(path)


@pytest.mark.parametrize("is_checked", [True, False])
def test_every_single_byte_may_be_wrong(is_checked):
    """No byte of the file that is changed, and no place where it ends, does anything but raise or read a model."""
    whole = SMALL if is_checked else put_together(DESCRIBED, TENSORS)
    rng = np.random.default_rng(0)
    for place in range(0, len(whole), 3):
        content = bytearray(whole)
        content[place] ^= 1 << int(rng.integers(8))
        try:
            found = unpack_model(bytes(content))
        except onebit.ModelFileError:
            continue
        if is_checked:  # what was hit is the name of the checksum
            assert_same(found, small_model())
    for end in range(0, len(whole), 7):
        with pytest.raises(onebit.ModelFileError):
            unpack_model(whole[:end])


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "a.onebit"
    write_model(small_model(), path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_model(small_model(J=1), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_specification_names_every_operation_attribute_tensor_and_limit():
    from pathlib import Path

    text = (Path(__file__).parent.parent / "docs" / "format.md").read_text()
    for op, operation in OPERATIONS.items():
        line = next((line for line in text.splitlines() if line.startswith(f"| `{op}` |")), None)
        assert line is not None, f"{op} is not in docs/format.md"
        assert operation.does in line
        for name in (*operation.attributes, *operation.tensors):
            assert f"`{name.rstrip('?')}`" in line, f"{op}: {name}"
    for module, limits in (
        (container, ["MAX_FILE", "MAX_TEXT", "MAX_SIDES"]),
        (modelfile, ["MAX_CLASSES", "MAX_PARAMETERS"]),
        (jsonfields, ["MAX_NAME"]),
        (checking, ["MAX_NODES", "MAX_SIDE", "MAX_VALUE", "MAX_WEIGHTS", "MAX_WORK", "MAX_SUM"]),
    ):
        for limit in limits:
            assert f"{getattr(module, limit):,}" in text, limit
