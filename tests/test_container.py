"""The container: the same bytes for the same net, and damage is seen wherever it is."""

import hashlib
import json
import struct

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load, save

import onebit
from onebit.container import CHECKSUM, KEY, unpack_container
from onebit.errors import ModelFileError
from onebit.modelfile import pack_model, read_model, unpack_model, write_model
from packed_nets import small_model
from wire_models import wire_models

SMALL = pack_model(small_model())
DAMAGED = "damaged since it was written"


def header_of(content):
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + size]), 8 + size


def test_the_checksum_is_that_of_the_specification(tmp_path):
    """By hand: SHA-256 of the text, then of all bytes behind the header."""
    header, behind = header_of(SMALL)
    metadata = header["__metadata__"]
    assert set(metadata) == {KEY, CHECKSUM} == {"onebit.model", "onebit.sha256"}
    assert metadata[CHECKSUM] == hashlib.sha256(metadata[KEY].encode() + SMALL[behind:]).hexdigest()
    (tmp_path / "a.onebit").write_bytes(SMALL)
    with safe_open(tmp_path / "a.onebit", framework="numpy") as opened:  # any reader of safetensors
        assert opened.metadata() == metadata
        assert set(opened.keys()) == set(load(SMALL))


@pytest.mark.parametrize("model", [*wire_models(), small_model()])
def test_what_is_written_is_aligned_and_the_same_every_time(model):
    content = pack_model(model)
    assert {pack_model(model) for _ in range(20)} == {content}
    header, behind = header_of(content)
    assert behind % 8 == 0
    for name, stated in header.items():
        if name != "__metadata__":
            assert (
                stated["data_offsets"][0] % {"U8": 1, "I8": 1, "F16": 2, "F32": 4, "I32": 4}[stated["dtype"]] == 0
            )


def test_damage_is_said_wherever_it_is(tmp_path):
    """A bit of any byte behind the header; what it would have made of the net does not matter."""
    path = tmp_path / "a.onebit"
    _, behind = header_of(SMALL)
    for place in range(behind, len(SMALL)):
        content = bytearray(SMALL)
        content[place] ^= 1 << place % 8
        with pytest.raises(ModelFileError, match=DAMAGED):
            unpack_model(bytes(content))
    path.write_bytes(content)
    for attempt in (onebit.load, read_model):
        with pytest.raises(ModelFileError) as caught:
            attempt(path)
        assert str(caught.value).startswith(f"{path}: {DAMAGED}")
        assert "copy or export it again" in str(caught.value)


def test_a_description_that_was_changed_on_the_way():
    """It would be another net, and a sound one."""
    for before, after in ((b"875", b"625"), (b"small", b"smell"), (b"pcnn", b"pcnm")):
        assert SMALL.count(before) == 1
        with pytest.raises(ModelFileError, match=DAMAGED):
            unpack_model(SMALL.replace(before, after))


def test_a_file_without_a_checksum_is_read():
    """As those that were written before there was one."""
    header, _ = header_of(SMALL)
    bare = save(load(SMALL), {KEY: header["__metadata__"][KEY]})
    assert pack_model(unpack_model(bare)) == SMALL


@pytest.mark.parametrize("stated", ["", "0" * 64, "none"])
def test_a_checksum_that_is_none(stated):
    header, _ = header_of(SMALL)
    with pytest.raises(ModelFileError, match=DAMAGED):
        unpack_model(save(load(SMALL), {KEY: header["__metadata__"][KEY], CHECKSUM: stated}))


def test_half_a_character():
    text = '{"a": "\ud800"}'
    for checksum in ("0", hashlib.sha256(text.encode("utf-8", "surrogatepass") + bytes(8)).hexdigest()):
        with pytest.raises(ModelFileError, match="not a .onebit file, or damaged"):
            unpack_container(packed_by_hand(text, checksum))
    whole = '{"a": "\U0001f600"}'
    right = hashlib.sha256(whole.encode() + bytes(8)).hexdigest()
    assert unpack_container(packed_by_hand(whole, right))[0] == whole


def packed_by_hand(text, checksum):
    tensor = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    header = json.dumps({"__metadata__": {KEY: text, CHECKSUM: checksum}, "a": tensor}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(8)


def test_a_whole_file_is_written_with_it(tmp_path):
    size = write_model(small_model(), tmp_path / "a.onebit")
    content = (tmp_path / "a.onebit").read_bytes()
    assert content == SMALL
    assert size == len(SMALL)
    np.testing.assert_array_equal(load(content)["norm.scale"], small_model().graph.nodes[3].tensors["scale"])
