"""The machine that reads CIFAR's pickles: all that NumPy and plain Python write, and nothing that harms."""

import pickle
import pickletools
import random
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_files import cifar10_python
from onebit.data import pickled, pickles
from onebit.data.catalog import load_data
from onebit.data.pickles import read_pickle
from onebit.errors import UserError

PLAIN = st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(max_size=20)
PROTOCOLS = range(6)


def read(tmp_path, content):
    file = tmp_path / "batch"
    file.write_bytes(content)
    return read_pickle(file)


def refused(tmp_path, content, words="not a batch of CIFAR"):
    with pytest.raises(UserError, match=words) as caught:
        read(tmp_path, content)
    assert len(str(caught.value)) < 400


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("pickles")


@given(
    st.dictionaries(st.text(max_size=9), PLAIN | st.lists(PLAIN, max_size=5) | st.binary(max_size=300)),
    st.sampled_from(PROTOCOLS),
)
def test_plain_values_are_what_python_reads(place, content, protocol):
    """Bytes become text, as those of Python 2 are meant."""

    def plain(value):
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    expected = {key: plain(value) for key, value in content.items()}
    assert read(place, pickle.dumps(content, protocol)) == expected


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dtype", ["u1", "i1", "<i4", "<i8", ">i4", ">u8"])
def test_arrays_are_what_python_reads(tmp_path, protocol, dtype):
    rng = np.random.default_rng(0)
    whole = rng.integers(0, 100, (3, 4, 2)).astype(dtype)
    for array in (whole, np.asfortranarray(whole), whole[::2], whole[:0], whole.reshape(-1), np.full((), 7, dtype)):
        found = read(tmp_path, pickle.dumps({"data": array, "again": array}, protocol))
        for key in ("data", "again"):
            assert found[key].dtype == array.dtype
            assert found[key].shape == array.shape
            assert np.array_equal(found[key], array)


def test_what_python_2_wrote(tmp_path):
    """Byte for byte as its pickle module wrote protocol 0, and its cPickle protocol 2, as CIFAR has it."""
    text = b"(dp0\nS'labels'\np1\n(lp2\nI6\naI9\nasS'batch_label'\np3\nS'it\\'s \\x00\\\\n \\n\"'\np4\ns."
    assert read(tmp_path, text) == {"labels": [6, 9], "batch_label": "it's \0\\n \n\""}
    text = b"(dp0\nS\"a'b\"\np1\nI01\nsS'c'\nI00\nsS'd'\nL-5L\nsS'e'\n(I1\nI2\ntsS'f'\nNs."
    assert read(tmp_path, text) == {"a'b": True, "c": False, "d": -5, "e": (1, 2), "f": None}
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85U\x01b\x87Rq\x04(K\x01K\x02K\x03"
        b"\x86cnumpy\ndtype\nq\x05U\x02u1K\x00K\x01\x87Rq\x06(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89U\x06abcdeftb"
    )
    found = read(tmp_path, b"\x80\x02}q\x01(U\x04dataq\x07" + array + b"U\x06labelsq\x08]q\x09(K\x06K\x09eu.")
    assert found["data"].tolist() == [[97, 98, 99], [100, 101, 102]]
    assert found["labels"] == [6, 9]


def nested(opening, closing, depth):
    return opening * depth + closing * depth


@pytest.mark.parametrize(
    "value",
    [
        b")" + b"\x85" * 50_000,  # tuples in tuples: to hash them, or to write them, kills Python's reader
        nested(b"(", b"t", 50_000),
        b"]" * 50_000 + b"a" * 49_999,
        b"}" + b"U\x00}" * 20_000 + b"s" * 20_000,
        nested(b"(", b"l", 50_000),
        b"]q\x00h\x00a",  # a list that holds itself
    ],
)
def test_what_is_nested_deeply_does_no_harm(tmp_path, value):
    for place in (b"}U\x06labels%sU\x04data)s.", b"}(U\x06labels%bU\x04data)u."):
        content = b"\x80\x02" + place.replace(b"%s", value + b"s").replace(b"%b", value)
        assert read(tmp_path, content)["data"] == ()
    refused(tmp_path, b"\x80\x02}" + value + b"Ns.", "a key that is no text")
    if value[:1] != b"}":
        refused(tmp_path, b"\x80\x02" + value + b".", "it holds a|damaged")
    refused(tmp_path, b"\x80\x02cnumpy\ndtype\n" + value + b"\x85R.")
    refused(tmp_path, b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n)R" + value + b"b.")
    refused(tmp_path, b"\x80\x02cnumpy\ndtype\nU\x02u1\x85RK\x03" + value + b"\x86b.", "holds a Pick|not expected")


def test_names_of_classes_that_are_nested_deeply(tmp_path):
    folder, _ = cifar10_python(tmp_path)
    names = b"(" + (b")" + b"\x85" * 30_000) * 10 + b"l"
    (folder / "batches.meta").write_bytes(b"\x80\x02}U\x0blabel_names" + names + b"s.")
    assert load_data("cifar10", str(tmp_path)).class_names == [str(digit) for digit in range(10)]


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02Nr\xff\xff\xff\x7f.",  # kept under the number 2^31 - 1: Python's reader makes room for all before
        b"\x80\x02Nr\xff\xff\xff\x07.",
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x3f.",  # 2^62 bytes
        b"\x80\x02T\xff\xff\xff\xff.",
        b"\x80\x05\x96\x00\x00\x00\x00\x01\x00\x00\x00.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80\x02\x8b\xff\xff\xff\x7f.",
        b"I" + b"9" * 20_000 + b"\n.",
        b"L" + b"9" * 20_000 + b"L\n.",
    ],
)
def test_a_few_bytes_take_no_memory(tmp_path, content):
    tracemalloc.start()
    refused(tmp_path, content)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20 * len(content) + 200_000


LONG = b"T" + struct.pack("<I", 100_000) + b"x" * 100_000


def pairs(count, value):
    """Different keys, each with the value."""
    return b"(" + b"".join(b"U\x04%04x%s" % (number, value) for number in range(count)) + b"u"


@pytest.mark.parametrize(
    ("content", "most"),
    [
        (b"}U\x01a]" + LONG + b"q\x00a(" + b"h\x00" * 20_000 + b"es", 3_000_000),
        (b"}U\x01a" + LONG + b"q\x00s" + pairs(20_000, b"h\x00"), 8_000_000),
        (b"}U\x01a](" + b"N" * 10_000 + b"eq\x00s" + pairs(5000, b"h\x00"), 3_000_000),
        (b"}U\x01a](" + b"U\x01b" * 10_000 + b"eq\x00s" + pairs(5000, b"h\x00"), 5_000_000),
    ],
    ids=["bytes in a list", "bytes in a dictionary", "a list", "a list of bytes"],
)
def test_what_is_referred_to_many_times_is_there_once(tmp_path, content, most):
    """A reference is two bytes of the file: 20,000 of 100 KB would be 2 GB."""
    tracemalloc.start()
    try:
        found = read(tmp_path, b"\x80\x02" + content + b".")
        _, taken = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < most
    values = list(found["a"] if len(found) == 1 else found.values())
    assert len(values) > 5000
    assert all(value is values[0] for value in values)


def test_memory_that_is_not_there_for_text_is_a_refusal(tmp_path, monkeypatch):
    def none_left(value):
        raise MemoryError

    content = b"}U\x01aU\x01bs."
    assert read(tmp_path, content) == {"a": "b"}
    monkeypatch.setattr(pickles, "_text", none_left)
    refused(tmp_path, content, "out of memory")


def test_nothing_long_is_looked_at_again_and_again(tmp_path):
    """A step that takes two bytes of the file must not take the time of megabytes."""
    dtype = b"cnumpy\ndtype\n"
    for length, words in ((32, "numbers that are not whole"), (33, "numbers that are not whole")):
        assert pickled._word(b"x" * length) == ("x" * 32 if length == 32 else None)
        refused(tmp_path, dtype + b"U" + bytes([length]) + b"x" * length + b"\x85R.", words)
    assert read(tmp_path, b"}U\x01a" + dtype + b"U\x02u1\x85R(K\x03U\x01>tbs.")["a"].dtype == "u1"
    names = b"}T" + struct.pack("<I", 1000) + b"x" * 1000 + b"Ns."
    assert read(tmp_path, names) == {"x" * 1000: None}
    refused(tmp_path, b"}T" + struct.pack("<I", 1001) + b"x" * 1001 + b"Ns.", "a key that is too long")
    made = b"}U\x01acnumpy.core.multiarray\n_reconstruct\n(%stRs."
    assert read(tmp_path, made % (b"N" * 10))["a"].shape == (0,)
    refused(tmp_path, made % (b"N" * 11), "a call with too many arguments")


def test_work_and_bytes_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(pickles, "MOST_STEPS", 100)
    assert read(tmp_path, b"}" + b"N0" * 49 + b".") == {}
    refused(tmp_path, b"}" + b"N0" * 50 + b".", "more than 100 instructions")
    monkeypatch.setattr(pickles, "LARGEST", 1000)
    encode = b"c_codecs\nencode\nq\x00)X\x64\x00\x00\x00" + b"x" * 100 + b"X\x06\x00\x00\x00latin1\x86q\x01"
    assert read(tmp_path, encode + b"00" + b"h\x00h\x01R" * 10 + b"0" * 11 + b"}.") == {}
    refused(tmp_path, encode + b"00" + b"h\x00h\x01R" * 11 + b"}.", "more bytes than a batch of CIFAR has")
    refused(tmp_path, b"}" + b"N0" * 10 + b"U\xf0" + bytes(1000), "too large")


def array(shape, data=b"ab"):
    """An array of that shape, of `data`."""
    whole = pickle.dumps(np.frombuffer(data, np.uint8), 2)
    usual = b"K" + bytes([len(data)]) + b"\x85"
    assert whole.count(usual) == 1
    return b"\x80\x02}U\x04data" + whole[2:-1].replace(usual, shape) + b"s."


def long(number):
    digits = number.to_bytes(32, "little", signed=True)
    return b"\x8a\x20" + digits


@pytest.mark.parametrize(
    "shape",
    [
        b"K\x03\x85",
        b"J\xfe\xff\xff\xff\x85",
        b"J\xff\xff\xff\xffJ\xfe\xff\xff\xff\x86",
        long(2**70) + b"\x85",
        long(2**70) + b"K\x00\x86",
        long(-(2**70)) + b"\x85",
        b"NK\x02\x86",
        b"\x88K\x02\x86",
        b"U\x012\x85",
        b"K\x02",
        b"(" + b"K\x01" * 8 + b"K\x02t",
    ],
)
def test_an_array_of_a_shape_that_none_has(tmp_path, shape):
    assert read(tmp_path, array(b"K\x01K\x02\x86"))["data"].tolist() == [[97, 98]]
    refused(tmp_path, array(shape), "an array")


@pytest.mark.parametrize("sizes", [(2**70,), (2**40, 2**40), (2**31,)])
def test_an_array_without_numbers_whose_other_sizes_are_large(tmp_path, sizes):
    """NumPy multiplies them before it sees the 0, and says OverflowError or worse."""

    def empty(*shape):
        sizes = b"(" + b"".join(map(long, shape)) + b"t"
        made = b"cnumpy.core.multiarray\n_reconstruct\n)R(K\x01" + sizes + b"cnumpy\ndtype\nU\x02u1\x85R\x89U\x00tb"
        return b"\x80\x02}U\x04data" + made + b"s."

    assert read(tmp_path, empty(3, 0))["data"].shape == (3, 0)
    refused(tmp_path, empty(*sizes, 0), "an array of a size that is not expected")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"cnumpy\ndtype\n}U\x05dtypeNsb.", "a state for what has none"),  # would change the reader's own classes
        (b"cnumpy\nndarray\n}U\x01aNsb.", "a state for what has none"),
        (b"c_codecs\nencode\nN}U\x08__code__Ns\x86b.", "a state for what has none"),
        (b"]N b.", "not a batch"),
        (b"cnumpy\nndarray\n)R.", "a call of what is no function"),
        (b"N)R.", "a call of what is no function"),
        (b"cnumpy\ndtype\nNR.", "a call of what is no function"),
        (b"cnumpy\ndtype\n)R.", "whole"),
        (b"cnumpy\ndtype\nU\x02u1\x85R)b.", "a dtype"),
        (b"cnumpy.core.numeric\n_frombuffer\n)R.", "an array"),
        (b"c_codecs\nencode\n)R.", "text of a kind"),
        (b"c__builtin__\nbytes\nK\x09\x85R.", "bytes of a kind"),
        (b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00rot\x86R.", "text of a kind"),
        (b"c_codecs\nencode\nX\x03\x00\x00\x00\xe2\x82\xacX\x06\x00\x00\x00latin1\x86R.", "latin-1"),
        (b"cos\nsystem\n.", r"refused, for its pickle names os.system"),
        (b"cnumpy\nload\n.", r"refused, for its pickle names numpy.load"),
        (b"\x8c\x02os\x8c\x06system\x93.", r"refused, for its pickle names os.system"),
        (b"\x8c\x05numpy]\x93.", "a name that is no text"),
        (b"c" + b"x" * 20_000 + b"\ny\n.", "refused"),
        (b"ios\nsystem\n.", r"an instruction that arrays do not need, b'i'"),
        (b"\x82\x01.", "an instruction that arrays do not need"),
        (b"Pid\n.", "an instruction that arrays do not need"),
        (b"NNa.", "appended to what is no list"),
        (b"N(NNu.", "an item of what is no dictionary"),
        (b"}(U\x01au.", "an item of what is no dictionary"),
        (b"S'abc\n.", "a string that is none"),
        (b"S'\n.", "a string that is none"),
        (b"S\n.", "a string that is none"),
        (b"S'a\\q'\n.", "a string that is none"),
        (b"S'a'b'\n.", "it holds a bytes"),  # Python's reader is no stricter
        (b"I1.5\n.", "a number that is none"),
        (b"V\\u12\n.", "not a batch"),
        (b"X\x01\x00\x00\x00\xff.", "not a batch"),
        (b"Nabc", "appended|cut off|damaged"),
        (b"", "cut off"),
        (b"}", "cut off"),
    ],
)  # fmt: skip
def test_a_program_that_is_wrong(tmp_path, content, words):
    refused(tmp_path, content, words)


@pytest.mark.parametrize("code", sorted(pickles.INSTRUCTIONS.keys() - {b"}", b"d"}))
def test_an_instruction_that_has_nothing_to_work_on(tmp_path, code):
    for content in (code, code + b".", b"(" + code + b".", b"N" + code + b"."):
        refused(tmp_path, content)


def test_no_change_of_some_bytes_does_harm(tmp_path):
    """Of batches in every protocol, bytes changed, left out and doubled at random: read, or refused in one line."""
    rng = random.Random(0)
    contents = [
        pickle.dumps(
            {"data": np.arange(12, dtype=np.uint8).reshape(3, 4), "labels": [1, 2, 300], b"x": "é"}, protocol
        )
        for protocol in PROTOCOLS
    ]
    codes = [ord(opcode.code) for opcode in pickletools.opcodes]
    outcomes = []
    for _ in range(6000):
        content = bytearray(rng.choice(contents))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(content))
            new = rng.choice([b"", bytes([rng.randrange(256), rng.choice(codes)]), content[at : at + 3] * 2])
            content[at : at + rng.choice([0, 1, 1, 2, 5])] = new or struct.pack("<i", -1)
        try:
            outcomes.append(type(read(tmp_path, bytes(content))))
        except UserError:
            outcomes.append(UserError)
    assert set(outcomes) == {dict, UserError}


def test_stock_pickle_is_not_at_work():
    """Its reader is what these files attack."""
    source = Path(pickles.__file__).read_text()
    assert "import pickle" not in source
    assert "Unpickler" not in source
