"""Files of little size that ask for much: memory, time, sides beyond what arrays have."""

import json
import os
import struct

import numpy as np
import pytest
from PIL import Image

from onebit.arena import Lifetime, place
from onebit.checking import MAX_SIDE
from onebit.compiling import largest_pair
from onebit.errors import ModelFileError
from onebit.jsonfields import json_text, parse_json
from onebit.modelfile import Preprocessing, pack_model, unpack_model, write_model
from onebit.paths import write_whole
from onebit.pictures import draw_kernels
from onebit.shapes import MAX_WINDOW
from packed_nets import small_model
from training_runs import call
from wire_models import Chain


def with_header(content, change):
    """The file, its header changed by hand."""
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + content[8 + size :]


def stated(name, shape):
    return lambda header: header[name].update(shape=shape)


def without_numbers(shape):
    return lambda header: header.update(more={"dtype": "F32", "shape": shape, "data_offsets": [0, 0]})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (stated("norm.scale", [6] + [1] * 64), "'norm.scale' has 65 sides, and at most 4 are allowed"),
        (stated("norm.scale", [6] + [1] * 4), "'norm.scale' has 5 sides"),
        (stated("norm.scale", [1] * 100_000 + [6]), "'norm.scale' has 100001 sides"),
        (without_numbers([0, 2**62, 2**62]), r"'more' has shape \[0, 4611686018427387904, .*: it is empty"),
        (without_numbers([2**62, 0]), "'more' has shape .*: it is empty"),
        (without_numbers([2**62, 2**62]), "safetensors"),
        (stated("norm.scale", []), "safetensors"),
    ],
)
def test_shapes_that_no_array_has(change, words):
    with pytest.raises(ModelFileError, match=words):
        unpack_model(with_header(pack_model(small_model()), change))


def whole_weights(count):
    """Layers of levels that all share one 8-bit weight."""
    net = Chain(8, 1, 1).add("reshape", shape=[8])
    weight = np.full((8, 8), -128, np.int8)
    weight[1:] = 1
    for _ in range(count):
        net.add("quantize", per_unit=1.0, low=-127, high=100).add("linear", tensors={"weight": weight})
        net.add("affine", tensors={"scale": np.ones(1, np.float32)})
    return net.model()


def test_numbers_of_a_shared_tensor_are_looked_at_once(monkeypatch):
    content, calls = pack_model(whole_weights(40)), []
    known = np.abs
    monkeypatch.setattr(np, "abs", lambda *given, **options: calls.append(1) or known(*given, **options))
    model = unpack_model(content)
    assert len(calls) == 1
    assert {(v.low, v.high) for v in model.values.values() if v.kind == "sums"} == {(-8 * 128 * 127, 8 * 128 * 127)}


def test_a_tensor_may_be_sound_for_one_role_only():
    """What was found out about it as a threshold, which may be infinite, says nothing of it as a scale."""
    shared = np.array([np.inf, 0], np.float32)
    net = Chain(2, 1, 1).add("threshold", tensors={"thresholds": shared, "at_most": np.zeros(1, np.uint8)})
    net.add("affine", tensors={"scale": shared})
    with pytest.raises(ValueError, match="scale holds numbers that are not finite"):
        net.model()


def test_pools_are_checked_without_a_look_at_every_window(monkeypatch):
    """A value may have a million rows, and a net ten thousand pools."""
    made, known = [], np.arange
    monkeypatch.setattr(np, "arange", lambda *given: made.append(known(*given)) or made[-1])
    net = Chain(1, MAX_SIDE, 1).add("max_pool2d", kernel_size=[3, 1], stride=[1, 1], padding=[1, 0])
    assert net.model().values["max_pool2d0"].shape == (1, MAX_SIDE, 1)
    assert max(map(len, made), default=0) <= MAX_WINDOW


class Counted(Lifetime):
    reads = 0

    @property
    def first(self):
        Counted.reads += 1
        return self[1]

    @property
    def last(self):
        Counted.reads += 1
        return self[2]


def test_planning_does_not_compare_every_value_with_every_other():
    count = 1000
    place({str(n): Counted(64 * (n % 7 + 1), n, count) for n in range(count)})
    assert Counted.reads <= 4 * count


def test_values_are_placed_as_one_by_one():
    """The largest first, each at the lowest place that is free: by the simplest way to say it."""
    rng = np.random.default_rng(0)
    for _ in range(150):
        first = rng.integers(0, 12, int(rng.integers(0, 25)))
        lives = {
            str(n): Lifetime(int(rng.integers(0, 500)), int(f), int(f + rng.integers(6)))
            for n, f in enumerate(first)
        }
        placed = []
        for name, life in sorted(lives.items(), key=lambda item: (-item[1].size, item[1].first)):
            size = -(-life.size // 64) * 64
            taken = [
                (at, at + s) for at, s, other in placed if other.first <= life.last and life.first <= other.last
            ]
            lowest = next(
                at for at in range(0, 64 * 500, 64) if all(at + size <= start or end <= at for start, end in taken)
            )
            placed.append((lowest, size, life))
            assert place(lives)[name] == lowest


def test_the_largest_pair_of_many_values_that_live_long():
    net = Chain(1, 4, 4)
    names = [f"v{n}" for n in range(300)]
    for name in names:
        net.add("relu", name, ["input"])
    net.add("concatenate", "all", names).add("slice", start=0, stop=1)
    assert largest_pair(net.model()) == (300 + 1) * 16 * 4


def test_the_padded_image_of_a_layer_is_bounded_too():
    """What it makes may be small: a stride skips most of it."""
    net = Chain(1, 16_380, 16_380)
    net.add("conv2d", tensors={"weight": np.ones((1, 1, 1, 1), np.float32)}, stride=[64, 64])
    assert net.model().values["conv2d0"].shape == (1, 256, 256)
    net.nodes[0].attributes.update(padding=[4, 0, 0, 4])
    net.model()  # 16,384 x 16,384 are as many as there may be
    for wide in ([8, 0, 8, 0], [8, 0, 0, 8], [0, 8, 8, 0], [0, 8, 0, 8], [1, 7, 3, 5]):
        net.nodes[0].attributes.update(padding=wide)
        with pytest.raises(
            ValueError, match="a value of 268566544 numbers, and at most 268435456 are allowed"
        ) as raised:
            net.model()
        assert "'conv2d0' (conv2d)" in str(raised.value)


@pytest.mark.parametrize(
    ("low", "high", "is_right"),
    [(0, 255, True), (-128, 127, True), (-1, 254, True), (-1, 255, False), (-128, 128, False), (-128, 255, False)],
)
def test_levels_fit_a_byte(low, high, is_right):
    net = Chain(1, 1, 1).add("quantize", per_unit=1.0, low=low, high=high).bconv(1, 1, taps=(1, 1))
    net.add("affine", tensors={"scale": np.ones(1, np.float32)})
    if is_right:
        assert net.model().values["quantize0"][2:] == (low, high)
    else:
        with pytest.raises(ValueError, match="high at most 255 more than low"):
            net.model()


def test_the_input_is_one_of_the_largest_pair():
    net = Chain(3, 9, 9).add("adaptive_avg_pool2d", output_size=[2, 2]).add("abs")
    assert largest_pair(net.model()) == (3 * 81 + 3 * 4) * 4


def test_pictures_of_layers_with_long_names(tmp_path):
    """Systems count a name's bytes, and a character may have four."""
    layer = {"projections": 1, "out_channels": 8, "kernel_size": [1, 1]}
    net = Chain(8, 4, 4)
    for name in ("\U0001d518" * 100, "é" * 1000, "a" * 1000):
        net.add("bconv2d", name, tensors={"kernels": np.zeros(8, np.uint8)}, **layer)
    files = draw_kernels(net.model(), tmp_path)
    assert [file.name[:5] for file in files] == ["00-\U0001d518\U0001d518", "01-éé", "02-aa"]
    assert all(file.is_file() and len(os.fsencode(file.name)) <= 107 for file in files)


def test_files_with_the_longest_names_are_written(tmp_path):
    for name in ("\U0001d518" * 63, "a" * 255, os.fsdecode(b"\xff" * 255)):
        write_whole(tmp_path / name, b"content")
        assert (tmp_path / name).read_bytes() == b"content"
    assert len(list(tmp_path.iterdir())) == 3


def test_probabilities_that_are_no_numbers_are_null_in_json(tmp_path, capsys):
    """JSON has no NaN; programs that read it would stop there."""
    net = Chain(3, 4, 4).add("adaptive_avg_pool2d", output_size=[1, 1]).add("reshape", shape=[3])
    net.add("affine", "large", tensors={"scale": np.full(1, 1e30, np.float32)})
    net.add("multiply", "infinite", ["large", "large"]).add("affine", tensors={"scale": np.zeros(1, np.float32)})
    write_model(net.model(preprocessing=Preprocessing((0.5,) * 3, (0.5,) * 3)), tmp_path / "net.onebit")
    Image.new("RGB", (4, 4), (9, 9, 200)).save(tmp_path / "a.png")
    code, out, _ = call(capsys, "run", str(tmp_path / "net.onebit"), str(tmp_path / "a.png"), "--json")
    assert code == 0
    found = parse_json(out, "the output")  # which refuses NaN
    assert [guess["probability"] for guess in found["top"]] == [None] * 3


def test_json_says_what_it_can():
    value = {"a": [1, (2.5, np.float64("nan")), {"b": float("inf")}], "c": True, "d": None, "e": "NaN"}
    assert json.loads(json_text(value)) == {
        "a": [1, [2.5, None], {"b": None}],
        "c": True,
        "d": None,
        "e": "NaN",
    }


def test_too_little_memory_is_said_in_one_line(monkeypatch, capsys):
    def none_left(*_):
        raise MemoryError

    monkeypatch.setattr("onebit.modelfile.unpack_model", none_left)
    code, out, err = call(capsys, "inspect", "zoo:digits-w1a1")
    assert (code, out) == (1, "")
    assert err == "onebit inspect: there is not enough memory for this\n"
