"""The zoo: every net is what its card says, damage is said, zoo:NAME goes wherever a model file can be named."""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import onebit
from engines import HERE
from onebit import zoo
from onebit.commands import _parse
from onebit.commands.eval import DATA_NAMES
from onebit.commands.train import config_flags
from onebit.data.digits import load_digit_pixels
from onebit.engine import Engine
from onebit.errors import ModelFileError, UserError
from onebit.modelfile import read_model
from onebit.reference import Reference
from onebit.summary import summarize
from onebit.training.recipes import resolve
from onebit.zoo.cards import check_images, parse_card
from training_runs import call

NAMES = zoo.names()
DIGITS = "digits-w1a1"
each_net = pytest.mark.parametrize("name", NAMES)


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """The zoo, in a folder where it may be harmed."""
    folder = tmp_path / "zoo"
    folder.mkdir()
    for name in NAMES:
        for kind in ("onebit", "json"):
            shutil.copy(zoo.FOLDER / f"{name}.{kind}", folder)
    monkeypatch.setattr(zoo, "FOLDER", folder)
    return folder


def test_the_zoo_has_nets_and_stays_small():
    assert DIGITS in NAMES
    assert [card.name for card in zoo.list()] == sorted(NAMES)
    files = [file for file in zoo.FOLDER.iterdir() if file.suffix in {".json", ".onebit"}]
    assert {file.name for file in files} == {f"{name}.{kind}" for name in NAMES for kind in ("json", "onebit")}
    assert sum(file.stat().st_size for file in files) < zoo.MAX_BYTES <= 1_000_000


def assert_as_on_the_card(net, card):
    """To rounding; which level a value is rounded to may turn on it."""
    check = card.check
    found = net(check_images(check.seed, check.count, net.model.graph.input_shape))
    has_levels = any(value.kind == "levels" for value in net.model.values.values())
    error = np.abs(found - np.array(check.logits)).max() / np.abs(check.logits).max()
    assert error < (1e-2 if has_levels else 1e-4), error


@each_net
@pytest.mark.parametrize("isa", [*HERE, "reference"])
def test_outputs_are_those_of_the_card(name, isa):
    model = read_model(f"zoo:{name}")
    assert_as_on_the_card(Reference(model) if isa == "reference" else Engine(model, isa), zoo.card(name))


def test_a_kernel_that_is_another_gives_other_outputs():
    model = read_model(zoo.path(DIGITS))
    assert_as_on_the_card(Engine(model), zoo.card(DIGITS))
    conv = next(node for node in model.graph.nodes if node.op == "bconv2d")
    conv.tensors["kernels"] = conv.tensors["kernels"] ^ np.uint8(1)
    with pytest.raises(AssertionError):
        assert_as_on_the_card(Engine(model), zoo.card(DIGITS))


@each_net
def test_a_card_is_true(name):
    card, content = zoo.card(name), zoo.path(name).read_bytes()
    assert (card.bytes, card.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    model = read_model(f"zoo:{name}")
    rows = summarize(model).rows
    assert card.bits in ({row.precision for row in rows if row.one_bit_macs} or {"W32A32"})
    assert model.preprocessing is not None
    assert len(card.check.logits) == card.check.count >= 1
    assert {len(row) for row in card.check.logits} == {len(model.classes)}
    assert len(card.description) <= 60
    assert parse_card(card.as_json().encode(), name) == card


@each_net
def test_the_command_of_a_card_trains_such_a_net(name):
    card = zoo.card(name)
    words = shlex.split(card.command)
    arguments = _parse("train", words[1:])
    config = resolve(arguments.recipe, arguments.budget, config_flags(arguments))
    assert card.data_key == config.data
    assert card.data_key in DATA_NAMES
    assert f"{config.epochs}" in card.budget
    assert not [word for word in words if word.startswith(("/", "~"))], "a path of somebody's machine"
    assert ("--data-dir DATA" in card.command) == (config.data != "digits")
    assert f"{config.method} {config.model}" in read_model(f"zoo:{name}").description


def evaluated(capsys, *words):
    code, out, err = call(capsys, "eval", *words, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.mark.parametrize("name", [card.name for card in zoo.list() if card.data_key == "digits"])
def test_accuracy_on_digits(name, capsys):
    """Without --data: the card says which."""
    found, card = evaluated(capsys, f"zoo:{name}"), zoo.card(name)
    assert (found["data"], found["images"]) == ("digits", card.test_images)
    assert found["top1"] == pytest.approx(card.top1, abs=0.5)  # two images: signs may turn on other machines


ROOT = Path(__file__).parent.parent
# Which record says how many images a net has right that was not measured on what comes along.
RECORDED = {
    "cifar10-w1a1": ("pcnn wrn22, width 16, J = 1, W1A1, shortcuts round every conv", "as trained"),
    "cifar10-w1a32": ("pcnn wrn22, width 16, J = 1, W1A32", "as trained"),
    "cifar10-w1a8": ("pcnn wrn22, width 16, J = 1, W1A32", "inputs of 1-bit layers in 8 bits"),
}


@each_net
def test_accuracy_is_that_of_the_records_and_the_readme(name):
    """Photographs don't come along: what a card says of them is what was recorded when they were measured."""
    card = zoo.card(name)
    assert (name in RECORDED) != (card.data_key == "digits")
    if name in RECORDED:
        rows = json.loads((ROOT / "results" / "cpu" / "table-w1a8.json").read_text())["rows"]
        (row,) = [row for row in rows if (row["net"], row["file"]) == RECORDED[name]]
        assert (card.top1, card.test_images) == (row["file_top1"], row["images"])
    stated = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith(f"| `zoo:{name}`")]
    for line in stated:
        assert line.endswith(f"| {card.top1:.2f} % | {card.bytes:,} |")
    assert len(stated) == (name in RECORDED)


@pytest.mark.slow
@pytest.mark.parametrize("name", [card.name for card in zoo.list() if card.data_key != "digits"])
def test_accuracy_on_photographs(name, capsys, request):
    card, own = zoo.card(name), os.environ.get("ONEBIT_DATA")
    folder = own or str(request.getfixturevalue("unpacked"))
    if card.data_key == "imagefolder" and not own:
        folder += "/tiny-imagenet-20"
    found = evaluated(capsys, f"zoo:{name}", "--data-dir", folder)
    assert (found["data"], found["images"]) == (card.data_key, card.test_images)
    # Somebody's own data may be the published images, of which the card's are copies.
    assert found["top1"] == pytest.approx(card.top1, abs=3 if own else 0.3)


def harm(file, how):
    content = bytearray(file.read_bytes())
    if how == "a byte":
        content[len(content) // 2] ^= 1
    elif how == "the last byte":
        content[-1] ^= 128
    elif how == "cut":
        del content[-100:]
    file.write_bytes(content)
    if how == "gone":
        file.unlink()


@pytest.mark.parametrize("how", ["a byte", "the last byte", "cut", "gone"])
def test_a_damaged_net(how, copied, capsys):
    file = copied / f"{DIGITS}.onebit"
    harm(file, how)
    what = "missing" if how == "gone" else "damaged: its sha256 is not that of its card"
    line = f"zoo:{DIGITS}: {file} is {what}; install onebit again"
    for attempt in (zoo.path, onebit.load, read_model):
        with pytest.raises(ModelFileError) as caught:
            attempt(f"zoo:{DIGITS}")
        assert str(caught.value) == line
    for command in ("run", "inspect", "bench", "eval", "export", "zoo"):
        words = [f"zoo:{DIGITS}", *(["x.png"] if command == "run" else [])]
        assert call(capsys, command, *words) == (2, "", f"onebit {command}: {line}\n")
    assert zoo.card(DIGITS).name == DIGITS


def changed(**keys):
    return lambda card: json.dumps(card | keys)


def without(key):
    return lambda card: json.dumps({name: value for name, value in card.items() if name != key})


def check_with(**keys):
    return lambda card: json.dumps(card | {"check": card["check"] | keys})


BROKEN = {
    "no JSON": (lambda card: "a card, honestly", "is not sound JSON"),
    "cut": (lambda card: json.dumps(card)[:-9], "is not sound JSON"),
    "a list": (lambda card: "[]", "must be a JSON object"),
    "NaN": (lambda card: json.dumps(card | {"top1": float("nan")}), "NaN is no number"),
    "a key twice": (lambda card: json.dumps(card).replace("{", '{"name": "x", ', 1), "a key that is there twice"),
    **{f"no {key}": (without(key), f"{key!r} is missing or of another type") for key in asdict(zoo.card(DIGITS))},
    "an unknown key": (changed(colour="red"), "'colour' is unknown"),
    "another name": (changed(name="other"), "is that of 'other'"),
    "a name that is a path": (changed(name="../x"), "'name' can't be '../x'"),
    "an empty text": (changed(command=""), "'command' can't be ''"),
    "text with a new line": (changed(description="a\nb"), "'description' must be text of at most 1024 printable"),
    "a long text": (changed(description="a" * 2000), "'description' must be text of at most 1024 printable"),
    "bits": (changed(bits="1"), "'bits' can't be '1'"),
    "sha256": (changed(sha256="0" * 63), "'sha256' can't be"),
    "top1": (changed(top1=101), "'top1' must be a percentage"),
    "top1 as text": (changed(top1="95"), "'top1' is missing or of another type"),
    "a true number": (changed(bytes=True), "'bytes' is missing or of another type"),
    "no bytes": (changed(bytes=0), "'bytes' more than 0"),
    "no images": (changed(test_images=0), "'test_images' and 'bytes' more than 0"),
    "check": (changed(check={}), "the card's check: 'seed' is missing or of another type"),
    "more in check": (check_with(more=1), "the card's check: 'more' is unknown"),
    "seed": (check_with(seed=-1), "a row of numbers for each of 'count' images"),
    "count": (check_with(count=3), "a row of numbers for each of 'count' images"),
    "a row too short": (check_with(count=2, logits=[[1, 2], [1]]), "a row of numbers"),
    "empty rows": (check_with(count=2, logits=[[], []]), "a row of numbers"),
    "no rows": (check_with(count=0, logits=[]), "a row of numbers"),
    "one row and no other": (check_with(count=1, logits=[[1.5], 7]), "a row of numbers"),
    "rows for more images": (check_with(count=1, logits=[[1.5], [2.5]]), "a row of numbers"),
    "rows of text": (check_with(count=1, logits=[["1"]]), "a row of numbers"),
    "no rows at all": (check_with(count=1, logits=[1]), "a row of numbers"),
    "an infinite number": (lambda card: json.dumps(card).replace("[[", "[[1e999, ", 1), "a row of numbers"),
    "an endless number": (check_with(count=1, logits=[[10**400]]), "a row of numbers"),
    "a true logit": (check_with(count=1, logits=[[True]]), "a row of numbers"),
}  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_card(broken, copied, capsys):
    change, said = BROKEN[broken]
    file = copied / f"{DIGITS}.json"
    file.write_text(change(json.loads(file.read_text())))
    for attempt in (lambda: zoo.card(DIGITS), zoo.list, lambda: onebit.load(f"zoo:{DIGITS}")):
        with pytest.raises(ModelFileError) as caught:
            attempt()
        assert str(caught.value).startswith(f"{file}: the card")
        assert said in str(caught.value)
    code, out, err = call(capsys, "zoo")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.endswith("; install onebit again\n")


def test_a_broken_card_harms_no_other_net(copied):
    (copied / "other.json").write_text("{}")
    assert zoo.card(DIGITS) == parse_card((copied / f"{DIGITS}.json").read_bytes(), DIGITS)
    assert onebit.load(f"zoo:{DIGITS}").model.classes


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("digit-w1a1", f"no such net; did you mean {DIGITS}? there are "),
        ("zzz", "no such net; there are "),
        ("", "no such net; there are "),
        (f"../zoo/{DIGITS}", "no such net; did you mean"),
        (f"{DIGITS}.onebit", "no such net; did you mean"),
    ],
)
def test_a_name_that_is_none(name, hint, capsys):
    for attempt in (onebit.load, zoo.card, zoo.path):
        with pytest.raises(UserError, match=f"zoo:{name}: {hint}".replace("?", r"\?")) as caught:
            attempt(f"zoo:{name}")
        assert str(caught.value).endswith(", ".join(NAMES))
    for command in ("inspect", "eval", "bench", "zoo", "export"):
        code, out, err = call(capsys, command, f"zoo:{name}")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"onebit {command}: zoo:{name}: {hint}")


def test_an_empty_zoo(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(zoo, "FOLDER", tmp_path)
    assert zoo.list() == []
    assert call(capsys, "zoo")[0] == 0
    with pytest.raises(UserError, match="zoo:x: no such net; there are none"):
        zoo.card("x")


@each_net
def test_loading(name):
    x = check_images(3, 2, read_model(zoo.path(name)).graph.input_shape)
    expected = onebit.load(zoo.path(name))(x)
    np.testing.assert_array_equal(onebit.load(f"zoo:{name}")(x), expected)
    np.testing.assert_array_equal(onebit.load(f"zoo:{name}", threads=1, isa="scalar")(x).shape, expected.shape)
    assert isinstance(onebit.load(f"zoo:{name}", engine="reference"), Reference)


@each_net
def test_commands_take_its_name_for_its_file(name, tmp_path, capsys):
    path, image = str(zoo.path(name)), tmp_path / "image.png"
    Image.fromarray(load_digit_pixels()[1].images[0, 0]).save(image)
    for words in (["inspect", "NET"], ["inspect", "NET", "--json"], ["run", "NET", str(image), "--json"]):
        by_name, by_path = (
            call(capsys, *(word.replace("NET", net) for word in words)) for net in (f"zoo:{name}", path)
        )
        assert by_name == by_path
        assert by_name[0] == 0
    words = ["bench", f"zoo:{name}", "--against", "none", "--rounds", "1", "--seconds", "0.001", "--batch", "1"]
    code, out, err = call(capsys, *words, "--threads", "1", "--json")
    assert code == 0, err
    assert json.loads(out)["file"] == f"zoo:{name}"


def test_what_is_in_an_image(tmp_path, capsys):
    pixels = load_digit_pixels()[1]
    for number in range(12):
        Image.fromarray(pixels.images[number, 0]).save(tmp_path / f"{number:02d}.png")
    code, out, err = call(capsys, "run", f"zoo:{DIGITS}", str(tmp_path), "--json")
    assert (code, err) == (0, "")
    found = [json.loads(line)["top"][0]["index"] for line in out.splitlines()]
    assert sum(guess == label for guess, label in zip(found, pixels.labels, strict=False)) >= 10


def test_eval_has_its_data_from_the_card(copied, monkeypatch, capsys):
    monkeypatch.delenv("ONEBIT_DATA", raising=False)
    file = copied / f"{DIGITS}.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"data_key": "cifar100"}))
    code, _, err = call(capsys, "eval", f"zoo:{DIGITS}")
    assert (code, "--data cifar100 needs a folder: --data-dir DIR" in err) == (2, True)
    assert evaluated(capsys, f"zoo:{DIGITS}", "--data", "digits")["data"] == "digits"


def test_the_table(capsys):
    code, out, err = call(capsys, "zoo")
    assert (code, err) == (0, "")
    heads, *lines = out.splitlines()
    assert heads.split() == ["name", "net", "data", "bits", "top-1", "bytes"]
    assert len(lines) == len(NAMES)
    for line, card in zip(lines, zoo.list(), strict=True):
        assert len(line) <= 120
        for cell in (f"zoo:{card.name} ", card.description, card.data, card.bits, f"{card.top1:.2f} %"):
            assert cell in line
        assert line.endswith(f" {card.bytes:,}")


@each_net
def test_a_card_in_words(name, capsys):
    card = zoo.card(name)
    code, out, err = call(capsys, "zoo", name)
    assert (code, err) == (0, "")
    assert call(capsys, "zoo", f"zoo:{name}") == (0, out, "")
    words = (card.description, card.bits, card.data, card.budget, card.command, card.commit, card.sha256)
    for word in (*words, f"{card.top1:.2f} % of {card.test_images:,} test images", f"{card.bytes:,} bytes"):
        assert word in out
    for line in out.splitlines():
        if line.startswith(("onebit run", "onebit eval", "onebit inspect", "onebit bench")):
            words = shlex.split(line.split("  ")[0])
            assert f"zoo:{name}" in _parse(words[1], words[1:]).__dict__.values()


def test_as_json(capsys):
    code, out, _ = call(capsys, "zoo", "--json")
    assert code == 0
    assert json.loads(out) == [json.loads(card.as_json()) for card in zoo.list()]
    code, out, _ = call(capsys, "zoo", DIGITS, "--json")
    assert json.loads(out) == json.loads(zoo.card(DIGITS).as_json()) | {"path": str(zoo.path(DIGITS))}


WITHOUT = """
import sys
for name in ("torch", "pydantic", "rich"):
    sys.modules[name] = None  # as if it were not installed
import onebit
assert "zoo" in onebit.__all__ and "onebit.zoo" not in sys.modules
card = onebit.zoo.card("digits-w1a1")
import numpy
x = numpy.random.default_rng(card.check.seed).standard_normal((card.check.count, 1, 8, 8), dtype=numpy.float32)
assert numpy.allclose(onebit.load("zoo:digits-w1a1")(x), card.check.logits, atol=1e-3)
assert [each.name for each in onebit.zoo.list()].count(card.name) == 1
from onebit.commands import main
for words in ("zoo", "zoo digits-w1a1", "inspect zoo:digits-w1a1", f"run zoo:digits-w1a1 {sys.argv[1]}"):
    assert main(words.split()) == 0
"""


def test_without_torch(tmp_path):
    """As the specification of a card has it, by hand."""
    Image.new("L", (8, 8)).save(tmp_path / "image.png")
    words = [sys.executable, "-c", WITHOUT, str(tmp_path / "image.png")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
