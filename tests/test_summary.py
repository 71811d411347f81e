"""What is said of a packed net, in words and numbers: all of it, of nets that are counted by hand."""

import dataclasses
import json

import numpy as np
import pytest

from onebit.modelfile import Counts, Model, Preprocessing
from onebit.pictures import kernel_grid
from onebit.summary import summarize
from packed_nets import small_model
from wire_models import Chain


def without_values(model, **changes):
    fields = {field.name: getattr(model, field.name) for field in dataclasses.fields(model) if field.init}
    return Model(**fields | changes)


SMALL = without_values(
    small_model(), producer="onebit 1.2", preprocessing=Preprocessing((0.5, 0.25), (0.2, 0.3), 0.875),
    counts=Counts(2_000_000, 100_000),
)  # fmt: skip
TEXT = """\
small (onebit 1.2)
input 2 x 6 x 5, 3 classes
pictures: crop 0.875, (pixel / 255 - (0.5, 0.25)) / (0.2, 0.3)

layer     operation  bits    makes      method  J  1-bit weights  bytes   MACs
stem      conv2d     W32A32  4 x 6 x 5                              304  2,160
conv      bconv2d    W1A1    6 x 6 x 5  pcnn    2            126     17  6,480
fc        linear     W8A32   3                                       42     18
5 others                                                             89
all                                                          126    452  8,658

multiply-adds an image: W32A32 2,160, W1A1 6,480, W8A32 18
on disk: 100,452 bytes, of which graph, names and shapes 100,000
the same net in float: 8,000,000 bytes, 79.64 times as much
as the paper counts: 64.0 -> 3.2 Mbit, 19.99 x"""


def test_everything_that_is_said():
    assert str(summarize(SMALL, 100_452)) == TEXT


def test_the_same_for_programs():
    found = json.loads(json.dumps(summarize(SMALL, 100_452).as_json()))
    assert found["preprocessing"] == {"mean": [0.5, 0.25], "std": [0.2, 0.3], "crop": 0.875}
    assert (found["description"], found["producer"]) == ("small", "onebit 1.2")
    assert (found["input_shape"], found["classes"]) == ([2, 6, 5], ["a", "b", "c"])
    assert (found["file_bytes"], found["header_bytes"]) == (100_452, 100_000)
    assert (found["float_bits"], found["paper_bits"]) == (64_000_000, 216 + 32 * (100_000 + 4 * 6))
    assert found["file_compression"] == pytest.approx(8_000_000 / 100_452)
    assert found["paper_compression"] == pytest.approx(64_000_000 / found["paper_bits"])
    assert found["totals"] == {"bits": 126, "bytes": 452, "one_bit_macs": 6480, "float_macs": 2178}
    rows = {row["name"]: row for row in found["rows"]}
    assert (rows["conv"]["kind"], rows["conv"]["shape"], rows["conv"]["inputs"]) == ("sums", [6, 6, 5], ["bits"])


def test_a_net_that_says_nothing_of_itself():
    model = without_values(Chain(1, 2, 3).add("reshape", shape=[6]).model(), producer="p")
    lines = str(summarize(model, 1234)).splitlines()
    assert lines[:3] == ["a net (p)", "input 1 x 2 x 3", ""]
    assert lines[4].split() == ["1", "other", "0"]
    assert lines[-2:] == [
        "multiply-adds an image: none",
        "on disk: 1,234 bytes, of which graph, names and shapes 1,234",
    ]
    found = summarize(model, 1234).as_json()
    assert found["preprocessing"] is found["paper_compression"] is found["file_compression"] is None


def test_masks_count_where_there_are_some():
    for masks, bits in ((True, 3 * 4 * 6 + 2 * 6), (False, 3 * 4 * 6)):
        net = Chain(4, 5, 5).add("sign").bconv(4, 3, J=2, taps=(2, 3), masks=masks)
        net.add("affine", tensors={"scale": np.ones(1, np.float32)})
        assert summarize(net.model()).total("bits") == bits


def test_the_first_kernels_and_planes_are_drawn():
    """White is +1; a row for each kernel, a column for each plane, grey lines around all."""
    weight = np.where(np.random.default_rng(0).normal(size=(3, 4, 2, 1)) > 0, 1, -1).astype(np.int8)
    pixels = kernel_grid(weight, shown=3, tap=2)
    assert pixels.shape == (3 * 5 + 1, 3 * 3 + 1)
    for kernel, plane, row in np.ndindex(3, 3, 2):
        y, x = 5 * kernel + 1 + 2 * row, 3 * plane + 1
        assert (pixels[y : y + 2, x : x + 2] == (255 if weight[kernel, plane, row, 0] > 0 else 0)).all()
    assert (pixels[::5] == 128).all()
    assert (pixels[:, ::3] == 128).all()
