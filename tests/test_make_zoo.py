"""tools/make_zoo.py: from a run to a net of the zoo, both files or none."""

import json

import numpy as np
import pytest

import onebit
from onebit import zoo
from onebit.graph import INPUT, Node
from onebit.modelfile import read_model
from onebit.paths import write_whole
from onebit.reference import Reference
from onebit.selfcheck import small_net
from onebit.training.recipes import checked, command_of, without_places
from onebit.zoo.cards import check_images
from tools import make_zoo
from training_runs import call, small_run

COMMIT = "0123456789ab"
WORDS = ["--description", "a small net", "--data-name", "some digits"]


def finished_run(folder, **keys):
    small_run(folder, epochs=1, **keys)
    set_commit(folder, COMMIT)
    return folder


def set_commit(run, commit):
    file = run / "environment.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"commit": commit}))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return finished_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def run_of_bits(tmp_path_factory):
    return finished_run(tmp_path_factory.mktemp("runs") / "bits", activation_bits=1, width=4)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A zoo of our own."""
    folder = tmp_path / "zoo"
    folder.mkdir()
    monkeypatch.setattr(zoo, "FOLDER", folder)
    return folder


def make(run, name="small", *more):
    return make_zoo.main([str(run), name, *WORDS, *more])


def test_a_run_becomes_a_net(run, folder, capsys):
    assert make(run) == 0
    shown = capsys.readouterr().out
    (card,) = zoo.list()
    assert sorted(file.name for file in folder.iterdir()) == ["small.json", "small.onebit"]
    assert (card.name, card.description, card.data, card.data_key) == (
        "small",
        "a small net",
        "some digits",
        "digits",
    )
    assert (card.budget, card.bits, card.commit) == ("1 epoch, cosine, 200 images, one seed", "W1A32", COMMIT)
    assert card.command.startswith("onebit train --model wrn22 --width 2 --method pcnn --data digits --hold-out 40")
    assert shown.startswith("zoo:small: a small net, W1A32\n")
    code, out, _ = call(capsys, "eval", "zoo:small", "--json")
    found = json.loads(out)
    assert (code, round(found["top1"], 4), found["images"]) == (0, card.top1, card.test_images)
    assert card.test_images == 449, "all of them, though the run had fewer"
    x = check_images(card.check.seed, card.check.count, (1, 8, 8))
    assert x.shape == (2, 1, 8, 8)
    np.testing.assert_array_equal(onebit.load("zoo:small")(x), np.array(card.check.logits, np.float32))


def test_options_of_export(run):
    assert make(run, "small", "--activation-bits", "8", "--float-bits", "16") == 0
    (card,) = zoo.list()
    assert card.bits == "W1A8"
    assert card.export == "onebit export RUN --activation-bits 8 --float-bits 16"
    nodes = read_model("zoo:small").graph.nodes
    assert {node.tensors["weight"].dtype for node in nodes if "weight" in node.tensors} == {np.dtype(np.float16)}


def test_a_check_stays_away_from_thresholds(run_of_bits):
    assert make(run_of_bits) == 0
    (card,) = zoo.list()
    assert card.bits == "W1A1"
    net = onebit.load("zoo:small", engine="reference")
    margins = [make_zoo.margin(net, check_images(seed, 2, (1, 8, 8))) for seed in range(make_zoo.SEEDS)]
    assert card.check.seed == int(np.argmax(margins))
    assert margins[card.check.seed] > np.median(margins) > 0


def test_the_margin_is_that_of_the_nearest_value():
    """Of floats: what is made of whole numbers no rounding can turn."""
    model = small_net()
    images = check_images(0, 3, model.graph.input_shape)
    assert make_zoo.margin(Reference(model), images) == np.abs(images).min()
    thresholds = np.array([0.25, -0.5, 4], np.float32)
    model.graph.nodes[0].tensors["thresholds"] = thresholds
    nearest = np.abs(images - thresholds.reshape(3, 1, 1)).min()
    assert make_zoo.margin(Reference(model), images) == nearest > np.abs(images).min()
    model.graph.nodes[0] = Node("bits", "sign", (INPUT,))
    assert make_zoo.margin(Reference(model), images) == np.abs(images).min()


def test_made_again_it_is_the_same(run, folder):
    assert make(run) == 0
    first = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert make(run) == 0
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == first


def test_both_or_none(run, run_of_bits, folder, monkeypatch):
    def fails(file, content):
        if file.suffix == ".json":
            raise OSError("no space")
        write_whole(file, content)

    monkeypatch.setattr(make_zoo, "write_whole", fails)
    with pytest.raises(OSError, match="no space"):
        make(run)
    assert not list(folder.iterdir())
    monkeypatch.setattr(make_zoo, "write_whole", write_whole)
    assert make(run) == 0
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    monkeypatch.setattr(make_zoo, "write_whole", fails)
    with pytest.raises(OSError, match="no space"):
        make(run_of_bits)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def refused(run, capsys, *words):
    capsys.readouterr()
    assert make(run, *words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert not list(zoo.FOLDER.iterdir())
    return err.splitlines()[-1]


def test_a_zoo_that_would_be_too_large(run, capsys, monkeypatch):
    monkeypatch.setattr(zoo, "MAX_BYTES", 5000)
    assert "small: the zoo would have " in refused(run, capsys)


@pytest.mark.parametrize("name", ["../small", "Small", "", "a b", ".hidden"])
def test_names(name, run, capsys):
    assert "use small letters, digits, - and ." in refused(run, capsys, name)


@pytest.mark.parametrize("commit", [None, "0123456789ab-dirty"])
def test_a_run_that_nobody_can_do_again(commit, tmp_path, run, capsys):
    copy = tmp_path / "run"
    copy.mkdir()
    for file in run.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    set_commit(copy, commit)
    assert f"was trained by code of no commit ({commit})" in refused(copy, capsys)
    set_commit(copy, COMMIT)
    (copy / "summary.json").unlink()
    assert "is not finished; onebit train --resume" in refused(copy, capsys)


def test_what_goes_wrong_within_is_said(tmp_path, run, capsys):
    assert "holds no run" in refused(tmp_path / "nowhere", capsys)
    copy = tmp_path / "run"
    copy.mkdir()
    for file in run.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / "last.safetensors").write_bytes(b"weights, honestly")
    assert "onebit export has failed, and nothing was written" in refused(copy, capsys)
    (copy / "last.safetensors").write_bytes((run / "last.safetensors").read_bytes())
    config = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(config.replace('data = "digits"', 'data = "cifar10"\ndata_dir = "/nowhere"'))
    assert "onebit eval has failed" in refused(copy, capsys, "small", "--data-dir", str(tmp_path / "empty" / "x"))


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"data": "cifar10"}, "--data cifar10 --data-dir DATA"),
        ({"data": "cifar10", "data_dir": "/root/data"}, "--data cifar10 --data-dir DATA"),
        ({"data_dir": "/root/data"}, "--data digits"),
        ({"teacher": "/home/me/runs/float-long"}, "--data digits --teacher runs/float-long"),
        (
            {"initial_checkpoint": "/runs/a/best.safetensors"},
            "--data digits --initial-checkpoint runs/a/best.safetensors",
        ),
    ],
)
def test_no_paths_of_this_machine(keys, line):
    command = command_of(without_places(checked(keys)))
    assert command == f"onebit train --model wrn22 --method pcnn {line}"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"epochs": 30, "sched": "cosine", "amp": "bfloat16"}, "30 epochs, cosine, bf16, one seed"),
        ({"epochs": 5, "two_stage": True, "activation_bits": 1}, "5 + 5 epochs, step, one seed"),
        (
            {"epochs": 5, "two_stage": True, "activation_bits": 1, "stage2_epochs": 3},
            "5 + 3 epochs, step, one seed",
        ),
        ({"teacher": "/runs/a", "limit_images": 5000}, "200 epochs, step, 5,000 images, distilled, one seed"),
    ],
)
def test_the_budget_in_words(keys, words):
    assert make_zoo.budget_of(checked(keys)) == words
