"""Layers that share a tensor: laid out once, the same numbers; and what a file may ask for altogether."""

import copy

import numpy as np
import pytest

from engines import HERE, each_isa
from onebit import checking, compiling, fusing
from onebit.engine import Engine
from onebit.errors import ModelFileError, UserError
from onebit.graph import Graph, Node
from onebit.machine import cores
from onebit.modelfile import Model, pack_model, unpack_model
from onebit.native import native
from onebit.operations import default_attributes
from onebit.packing import pack_kernels, pack_signs
from onebit.reference import Reference
from onebit.weights import dense_kernels, laid_out
from wire_models import Chain

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def bits(planes, kernels, J, taps, **more):
    tensors = {"kernels": pack_kernels(floats(kernels, planes, *taps))}
    tensors |= {"masks": pack_signs(floats(J, *taps))} if J > 1 else {}
    return {"op": "bconv2d", "tensors": tensors, "out_channels": kernels * J, "kernel_size": list(taps)} | {
        "projections": J,
        **more,
    }


def whole(low, high, *shape):
    return {"op": "conv2d", "tensors": {"weight": RNG.integers(low, high + 1, shape).astype(np.int8)}}


# By what they read: kind, channels, layer.
LAYERS = {
    "floats": ("float", 5, {"op": "conv2d", "tensors": {"weight": floats(7, 5, 3, 2)}}),
    "Winograd": ("float", 32, {"op": "conv2d", "tensors": {"weight": floats(16, 32, 3, 3)}, "padding": [1] * 4}),
    "floats in groups": ("float", 6, {"op": "conv2d", "tensors": {"weight": floats(4, 3, 2, 2)}, "groups": 2}),
    "depthwise": ("float", 9, {"op": "conv2d", "tensors": {"weight": floats(9, 1, 3, 3)}, "groups": 9}),
    "8-bit numbers": (
        "float",
        4,
        whole(-127, 127, 5, 4, 1, 1) | {"more": {"weight_scale": floats(5)}},
    ),
    "1-bit kernels of floats": ("float", 4, bits(4, 3, 2, (3, 3), more={"modulation": floats(2, 3, 3)})),
    "bits": ("bits", 20, bits(20, 5, 1, (3, 3), padding=[1, 0, 2, 1])),
    "bits, shared": ("bits", 64, bits(64, 16, 4, (3, 3), padding=[1] * 4)),
    "bits in groups": ("bits", 12, bits(4, 6, 2, (2, 2), groups=3)),
    "wide bits": ("bits", 4200, bits(4200, 2, 1, (4, 4))),
    "levels": ("levels", 16, bits(16, 8, 2, (3, 3), padding=[1] * 4)),
    "levels in groups": ("levels", 8, bits(4, 4, 1, (3, 3), groups=2)),
    "8-bit weights": ("levels", 6, whole(-64, 64, 9, 6, 3, 3)),
    "wide levels": ("levels", 6, whole(126, 127, 3, 6, 2, 2)),
}


def doubled(name, *, shares, to_pool=False):
    """A layer twice, of two inputs, with two things behind it."""
    kind, channels, layer = LAYERS[name]
    given = copy.deepcopy(layer)
    op, tensors = given.pop("op"), given.pop("tensors") | given.pop("more", {})
    net = Chain(channels, 12, 11)
    net.add("affine", "other", ["input"], {"scale": np.linspace(-2, 1, channels, dtype=np.float32)})
    if kind == "bits":
        net.add("sign", "a", ["input"]).add("sign", "b", ["other"])
    elif kind == "levels":
        net.add("quantize", "a", ["input"], per_unit=40.0, low=-128, high=127)
        net.add("quantize", "b", ["other"], per_unit=9.0, low=-128, high=127)
    else:
        net.add("abs", "a", ["input"]).add("relu", "b", ["other"])
    for each in "ab":
        own = tensors if shares else {role: tensor.copy() for role, tensor in tensors.items()}
        net.add(op, f"layer {each}", [each], own, **given)
        net.add("affine", f"norm {each}", tensors={"scale": np.float32([0.5 if each == "a" else -0.25])})
        if to_pool:
            net.add("max_pool2d", f"pool {each}", kernel_size=[3, 3], stride=[2, 2], padding=[1, 1])
    ends = "pool" if to_pool else "norm"
    net.add("clamp", f"clamp {ends}", [f"{ends} b"], low=-1.0)
    return net.add("add", "sum", [f"{ends} a", f"clamp {ends}"]).model()


@pytest.mark.parametrize("to_pool", [False, True])
@pytest.mark.parametrize("name", LAYERS)
@each_isa
def test_shared_weights_make_the_same_and_are_there_once(name, isa, to_pool, monkeypatch):
    monkeypatch.setattr(fusing, "LARGE", 0)  # rows go on to pools
    shared, apart = (doubled(name, shares=shares, to_pool=to_pool) for shares in (True, False))
    assert pack_model(shared) == pack_model(apart), "a file holds equal tensors once"
    x = floats(2, *shared.graph.input_shape)
    one, two = Engine(shared, isa), Engine(apart, isa)
    np.testing.assert_array_equal(one(x), two(x))
    np.testing.assert_array_equal(Engine(unpack_model(pack_model(shared)), isa, min(2, cores()))(x), two(x))
    assert one.info()["steps"] == two.info()["steps"]
    weights = sum(4 * tensor.size for tensor in shared.graph.nodes[-6 if to_pool else -4].tensors.values())
    saved = two.info()["weight_bytes"] - one.info()["weight_bytes"]
    assert saved > 0
    assert saved >= weights / 32  # bits stay bits at the least


@pytest.mark.parametrize("name", LAYERS)
def test_the_reference_lays_them_out_once(name, monkeypatch):
    from onebit import reference

    calls = []
    monkeypatch.setattr(reference, "laid_out", lambda *given, **how: calls.append(given) or laid_out(*given, **how))
    shared, apart = (doubled(name, shares=shares) for shares in (True, False))
    x = floats(1, *shared.graph.input_shape)
    net = Reference(shared)
    found = net(x)
    assert len(calls) == 1
    np.testing.assert_array_equal(net(x), found)
    assert len(calls) == 1
    np.testing.assert_array_equal(Reference(apart)(x), found)
    assert len(calls) == 3
    np.testing.assert_array_equal(copy.deepcopy(net)(x), found)


@each_isa
def test_what_differs_is_laid_out_apart(isa):
    """The same tensor, in layers of other strides, groups, sides, or before a sign that zeros decide."""
    weight = {"weight": floats(4, 2, 3, 3)}
    net = Chain(4, 9, 9)
    net.add("slice", "half", ["input"], start=0, stop=2)
    net.add("conv2d", "plain", ["half"], weight, padding=[1] * 4)
    net.add("conv2d", "strided", ["half"], weight, padding=[1] * 4, stride=[2, 2])
    net.add("conv2d", "in groups", ["input"], weight, padding=[1] * 4, groups=2)
    net.add("conv2d", "of less", ["strided"], weight, padding=[1] * 4, groups=2)
    net.add("conv2d", "to bits", ["half"], weight, padding=[1] * 4).add("sign").bconv(4, 2)
    net.add("affine", "shifted", tensors={"scale": floats(2)})
    ends = ("plain", "strided", "in groups", "of less", "shifted")
    for name in ends:
        net.add("adaptive_avg_pool2d", f"mean {name}", [name], output_size=[1, 1])
    net.add("concatenate", "all", [f"mean {name}" for name in ends])
    model = net.model()
    assert len(set(checking.first_alike(model.graph, model.values).values())) == 5  # zeros are seen at compiling
    x = floats(3, 4, 9, 9)
    np.testing.assert_allclose(Engine(model, isa)(x), Reference(model)(x), rtol=1e-4, atol=1e-4)


def test_the_engine_checks_what_is_to_be_shared():
    def output(channels, to):
        nothing = (None, -np.inf, np.inf)
        return native().Output(
            channels=channels, scale=None, shift=None, first=nothing, residual=-1, second=nothing, numbers_to=to,
            bits_to=-1, thresholds=None, at_most=None,
        )  # fmt: skip

    net = native().Net("scalar")
    for channels, height in ((2, 4), (2, 5), (3, 4), (2, 4)):
        net.value(0, channels, height, 4, 0, 0)
    net.value(0, 2, 4, 4, 512, 0)
    net.pointwise(0, output(2, 1 + 2))
    window = {"kernel": (1, 1), "stride": (1, 1), "dilation": (1, 1), "padding": (0, 0, 0, 0), "groups": 1}
    net.conv2d(0, **window, outputs=2, weight=floats(2, 2, 1, 1), keeps_zeros=False, output=output(2, 4))
    net.again(1, 3, output(2, 4))
    for step, given, to, words in (
        (0, 0, 4, "no weights"), (3, 0, 4, "no weights"), (1, 1, 4, "value 1"), (1, 2, 4, "value 2"),
        (1, 9, 4, "no value 9"), (1, -1, 4, "no value -1"), (1, 0, 1, "another shape"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            net.again(step, given, output(2, to))
    assert net.steps == 3


def projecting(count, planes, masks=None):
    """Layers of 65,536 projections of one kernel: a KB of bits each, and they may all be the same."""
    net = Chain(planes, 1, 1).add("sign", "bits")
    kernels = np.zeros(-(-planes // 8), np.uint8)
    for number in range(count):
        tensors = {"kernels": kernels} | ({"masks": masks[number]} if masks is not None else {})
        sizes = {"out_channels": 1 << 16, "kernel_size": [1, 1], "projections": 1 << 16}
        net.add("bconv2d", f"c{number}", ["bits"], tensors, **sizes)
        net.add("affine", f"n{number}", tensors={"scale": np.ones(1, np.float32)})
    return net


def test_a_small_file_can_not_ask_for_all_memory():
    """Refused before anything is laid out: 16 layers whose weights are 2 ** 28 numbers each, in 100 KB."""
    masks = [np.packbits(RNG.integers(0, 2, 1 << 16).astype(np.uint8)) for _ in range(16)]
    small = [projecting(16, 8, masks).model(), projecting(16, 4040).model()]
    for model in small:  # what is below the limit, or there once, is read
        unpack_model(pack_model(model))
    described = pack_model(small[0])
    assert len(described) < 200_000
    nodes = projecting(16, 4040, masks).nodes
    with pytest.raises(ValueError, match="are 4238352272 numbers, and at most 268435456 are allowed"):
        Model(Graph((4040, 1, 1), nodes))


def test_a_file_beyond_the_limit_raises_one_clear_line(monkeypatch):
    content = pack_model(doubled("floats", shares=False))
    monkeypatch.setattr(checking, "MAX_WEIGHTS", 7 * 5 * 3 * 2 + 2 * 5 + 2 * 2 * 7 - 1)
    with pytest.raises(ModelFileError, match="^its weights, written out with all projections, are 248 numbers"):
        unpack_model(content)
    monkeypatch.setattr(checking, "MAX_WEIGHTS", 248)
    unpack_model(content)


def test_what_every_channel_has_counts():
    """One number for all channels is written out for each of them in the output stage, at every node."""
    one = {"scale": np.ones(1, np.float32)}
    nodes = [Node("wide", "reshape", ("input",), {"shape": [1 << 20]})]
    for number in range(130):
        nodes.append(Node(f"a{number}", "affine", ("wide",), {}, one))
        nodes.append(Node(f"b{number}", "tanh", (f"a{number}",), {}, {}))
    with pytest.raises(ValueError, match="are 272629760 numbers"):
        Model(Graph((1 << 10, 1 << 10, 1), nodes))
    Model(Graph((1 << 10, 1 << 10, 1), nodes[:100]))


def test_thousands_of_layers_may_share_a_weight():
    """They take the memory of one, and are planned and laid out in seconds."""
    weight = {"weight": np.eye(256, dtype=np.float32)[::-1].copy()}
    nodes = [Node("flat", "reshape", ("input",), {"shape": [256]})]
    for number in range(2000):
        nodes.append(Node(f"n{number}", "linear", (nodes[-1].name,), default_attributes("linear"), weight))
    net = Engine(unpack_model(pack_model(Model(Graph((256, 1, 1), nodes)))))
    assert net.info()["weight_bytes"] < 2 * weight["weight"].nbytes + 2000 * 1024
    x = floats(1, 256, 1, 1)
    np.testing.assert_array_equal(net(x), x.reshape(1, 256))


def test_no_memory_for_weights_is_said(monkeypatch):
    class NoMemory:
        def __init__(self, isa):
            self.steps = 0

        def value(self, *given):
            pass

        unary = pointwise = value

        def conv2d(self, *given, **named):
            raise MemoryError

    class Module:
        Net, Output = NoMemory, native().Output

    monkeypatch.setattr(compiling, "native", lambda: Module)
    with pytest.raises(UserError, match="memory for the weights of 'layer [ab]', or they are beyond the 4 GiB"):
        compiling.compile_net(doubled("floats", shares=True), "scalar")


@pytest.mark.parametrize("classes", [31, 32, 33, 49])
@each_isa
def test_projections_of_many_classes_of_taps(isa, classes):
    """7 x 7 taps and J = 8: up to 32 classes share their work, more do not; the numbers are the same."""
    J, taps = 8, 49
    rng = np.random.default_rng(classes)
    patterns = rng.permutation(1 << (J - 1))[:classes]  # which of the 7 others differ from the first projection
    of_tap = np.concatenate([patterns, rng.choice(patterns, taps - classes)])
    first = rng.choice([-1, 1], taps)
    masks = np.stack([first, *(first * np.where(of_tap >> j & 1, -1, 1) for j in range(J - 1))])
    assert len({tuple(column * column[0]) for column in masks.T}) == classes
    net = Chain(64, 9, 8).add("sign")
    tensors = {"kernels": pack_kernels(floats(16, 64, 7, 7)), "masks": pack_signs(masks)}
    net.add("bconv2d", tensors=tensors, out_channels=128, kernel_size=[7, 7], projections=J, padding=[3] * 4)
    net.add("affine", tensors={"scale": np.ones(1, np.float32)})
    x, engine = floats(2, 64, 9, 8), Engine(net.model(), isa)
    np.testing.assert_array_equal(engine(x), Reference(net.model())(x))
    if isa in {"avx2", "avx512"}:
        assert engine.info()["steps"][1]["kernel"] == ("bits, shared by 8" if classes <= 32 else "bits")


def test_a_layer_that_must_keep_zeros_does_not_share_with_one_that_need_not():
    """Winograd's way is fast, but makes something near 0 of sums that are 0; before a sign that decides a bit."""
    weight = {"weight": floats(32, 32, 3, 3)}
    net = Chain(32, 24, 24)
    net.add("conv2d", "to numbers", ["input"], weight, padding=[1] * 4).add("abs", "numbers")
    net.add("conv2d", "to bits", ["input"], weight, padding=[1] * 4).add("sign").bconv(32, 32, padding=[1] * 4)
    net.add("affine", "sums", tensors={"scale": floats(32)}).add("add", "end", ["sums", "numbers"])
    model = net.model()
    kernels = {isa: [step["kernel"] for step in Engine(model, isa).info()["steps"]] for isa in HERE}
    for isa in HERE:
        ways = {kernel for kernel in kernels[isa] if "floats" in kernel}
        assert ways == ({"floats"} if isa in {"scalar", "neon"} else {"floats", "Winograd or floats"})


def test_kernels_that_layers_share_are_unpacked_once(tmp_path, monkeypatch):
    """As arrays and as pictures: thousands of layers may share them."""
    from onebit import pictures, weights

    calls = []
    monkeypatch.setattr(weights, "dense_kernels", lambda *given: calls.append(given) or dense_kernels(*given))
    shared, apart = (doubled("bits", shares=shares) for shares in (True, False))
    one, two = Reference(shared).binary_state_dict(), Reference(apart).binary_state_dict()
    assert len(calls) == 1 + 2
    assert list(one) == list(two) == ["layer a.weight", "layer b.weight"]
    assert one["layer a.weight"] is one["layer b.weight"]
    assert not one["layer a.weight"].flags.writeable
    for name, weight in two.items():
        np.testing.assert_array_equal(weight, one[name])
        assert weight.flags.writeable
    calls.clear()
    drawn = [pictures.draw_kernels(model, tmp_path / name) for name, model in (("1", shared), ("2", apart))]
    assert len(calls) == 1 + 2
    assert [file.name for file in drawn[0]] == ["00-layer_a.png", "01-layer_b.png"]
    assert len({file.read_bytes() for files in drawn for file in files}) == 1


def test_pictures_of_large_kernels_are_small():
    """A file of some MB may have kernels of a million taps: 36 pixels each would take all memory."""
    from onebit.pictures import kernel_grid

    weight = np.where(RNG.random((2, 3, 40, 33)) < 0.5, np.int8(-1), np.int8(1))
    np.testing.assert_array_equal(kernel_grid(weight), kernel_grid(weight[..., :32, :32].copy()))
