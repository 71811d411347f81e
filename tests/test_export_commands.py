"""`onebit export` and `onebit inspect`, from a run to a file to what is in it."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import onebit
from onebit.data.catalog import load_data
from onebit.modelfile import read_model, write_model
from onebit.training.evaluation import Feed
from onebit.training.exports import calibration_images, crop_of
from onebit.training.nets import build_trained, read_weights
from packed_nets import small_model
from training_runs import call, command, small_run


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    small_run(folder, epochs=1, projections=2)
    return folder


def test_from_a_run_to_a_file(run_folder, capsys):
    code, out, _ = call(capsys, "export", str(run_folder))
    assert code == 0
    path = run_folder / "net.onebit"
    assert f"{path}: pcnn wrn22, width 2, J = 2, W1A32, digits\n" in out
    assert "8 of 8 random images in the same class" in out
    model = read_model(path)
    assert model.classes == tuple("0123456789")
    assert model.graph.input_shape == (1, 8, 8)
    assert len(model.preprocessing.mean) == 1

    code, out, _ = call(capsys, "inspect", str(path))
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("pcnn wrn22, width 2, J = 2, W1A32, digits (onebit ")
    assert lines[1:3] == ["input 1 x 8 x 8, 10 classes", "pictures: crop 1, (pixel / 255 - (0.288)) / (0.354)"]
    (first,) = [line.split() for line in lines if line.startswith("blocks.0.conv1 ")]
    assert first == [
        "blocks.0.conv1",
        "bconv2d",
        "W1A32",
        "4",
        "x",
        "8",
        "x",
        "8",
        "pcnn",
        "2",
        "90",
        "12",
        "9,216",
    ]
    assert any(line.startswith("all ") for line in lines)
    assert f"on disk: {path.stat().st_size:,} bytes" in out
    assert "multiply-adds an image: W32A32 3,488, W1A32 156,672\n" in out
    assert "as the paper counts" in out

    code, out, _ = call(capsys, "inspect", str(path), "--json")
    found = json.loads(out)
    assert found["file_bytes"] == path.stat().st_size
    assert found["totals"]["bytes"] + found["header_bytes"] == found["file_bytes"]
    assert {"paper_compression", "file_compression", "rows", "float_bits", "paper_bits"} <= set(found)

    code, out, _ = call(capsys, "inspect", str(path), "--graph")
    assert "blocks.0.add" in out
    assert "bconv2d(blocks.0.relu1" in out


def test_the_crop_is_that_of_the_test_images(run_folder):
    spec = read_weights(run_folder).spec
    assert crop_of(spec) == 1
    for data in ("imagefolder", "imagenet"):
        assert crop_of(spec.model_copy(update={"data": data})) == 0.875


def test_eight_bits(run_folder, tmp_path, capsys):
    path = tmp_path / "small.onebit"
    words = [
        "export",
        str(run_folder),
        "--which",
        "best",
        "-o",
        str(path),
        "--float-bits",
        "8",
        "--activation-bits",
        "8",
    ]
    code, out, _ = call(capsys, *words, "--calibrate", "70", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["file"] == str(path)
    assert found["file_bytes"] == path.stat().st_size
    assert 0 < found["difference"] < 0.2
    model = read_model(path)
    assert model.description.endswith("W1A8, digits")
    assert (found["images"], found["of"]) == ("training", 35)
    weights = [node.tensors["weight"] for node in model.graph.nodes if "weight" in node.tensors]
    assert {weight.dtype for weight in weights} == {np.dtype(np.int8)}
    first = next(node for node in model.graph.nodes if node.op == "quantize")
    code, _, _ = call(capsys, *words, "--calibrate", "0")
    assert code == 0
    by_norms = next(node for node in read_model(path).graph.nodes if node.op == "quantize")
    assert by_norms.attributes["per_unit"] != first.attributes["per_unit"]


def test_other_layers_in_eight_bits(run_folder, tmp_path, capsys):
    """By training images, and by norms and preprocessing; nothing of the run itself is written over."""
    path = tmp_path / "small.onebit"
    words = ["export", str(run_folder), "-o", str(path), "--int8-layers"]
    scales = []
    for images in ("70", "0"):
        code, out, _ = call(capsys, *words, "--calibrate", images, "--json")
        assert code == 0
        assert 0 < json.loads(out)["difference"] < 0.3
        model = read_model(path)
        kinds = {model.values[node.inputs[0]].kind for node in model.graph.nodes if node.op in {"conv2d", "linear"}}
        assert kinds == {"levels"}
        assert model.description.endswith("W1A32, other layers in 8 bits, digits")
        scales.append([node.attributes["per_unit"] for node in model.graph.nodes if node.op == "quantize"])
    assert scales[0] != scales[1]
    code, out, _ = call(capsys, "inspect", str(path))
    assert "multiply-adds an image: W8A8 3,488, W1A32 156,672\n" in out
    code, _, err = call(capsys, "export", str(run_folder), "-o", str(path), "--calibrate", "5")
    assert code == 2
    assert "--calibrate 5: a number of images, with --activation-bits 8 or --int8-layers" in err


@pytest.mark.parametrize("bits", [32, 1])
def test_the_file_sees_what_the_net_sees_on_real_images(bits, tmp_path, capsys):
    """On every test image of the digits: the class is the same for 99.5 % of them (of 1-bit inputs), or for all."""
    small_run(tmp_path / "run", epochs=2, limit_images=0, activation_bits=bits, width=4)
    assert call(capsys, "export", str(tmp_path / "run"))[0] == 0
    weights = read_weights(tmp_path / "run")
    net, test = build_trained(weights).eval(), load_data("digits").test
    feed = Feed(weights.spec.mean, weights.spec.deviation, torch.device("cpu"))
    ((images, labels),) = [feed(batch) for batch in test.batches([np.arange(len(test.labels))])]
    with torch.inference_mode():
        expected = net(images).numpy()
    found = onebit.load(tmp_path / "run" / "net.onebit")(images.numpy())
    same = (found.argmax(1) == expected.argmax(1)).mean()
    assert same >= (0.995 if bits == 1 else 1)
    assert (found.argmax(1) == labels.numpy()).mean() > 0.2, "it has learned something"


def test_pictures_of_kernels(tmp_path, capsys):
    path, folder = tmp_path / "small.onebit", tmp_path / "kernels"
    model = small_model(J=2)
    write_model(model, path)
    code, out, _ = call(capsys, "inspect", str(path), "--images", str(folder))
    assert code == 0
    assert "1 picture in " in out
    assert "white +1, black -1" in out
    assert [file.name for file in folder.iterdir()] == ["00-conv.png"]
    weight = onebit.load(path).binary_state_dict()["conv.weight"]
    pixels = np.asarray(Image.open(folder / "00-conv.png"))
    step = pixels.shape[0] // 6
    for kernel, plane, row, column in np.ndindex(6, 4, 3, 3):
        y, x = kernel * step + 1 + 6 * row + 3, plane * step + 1 + 6 * column + 3
        assert pixels[y, x] == (255 if weight[kernel, plane, row, column] > 0 else 0)


def test_names_in_a_file_choose_no_folders(tmp_path, capsys):
    model = small_model()
    next(node for node in model.graph.nodes if node.op == "bconv2d").name = "../../evil/conv"
    model.graph.nodes[3].inputs = ("../../evil/conv",)
    path, folder = tmp_path / "small.onebit", tmp_path / "in" / "kernels"
    write_model(type(model)(model.graph), path)
    code, _, _ = call(capsys, "inspect", str(path), "--images", str(folder))
    assert code == 0
    assert [file.name for file in folder.iterdir()] == ["00-_.._evil_conv.png"]
    assert {file.name for file in tmp_path.iterdir()} == {"small.onebit", "in"}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["export", "RUN/none"], "no such file or run folder"),
        (["export", "."], "has no last.safetensors"),
        (["export", "RUN", "--out", "none/net.onebit"], "there is no folder none"),
        (["export", "RUN", "--out", "."], "a folder; name a file in it"),
        (["export", "RUN", "--calibrate", "9"], "--activation-bits 8"),
        (["export", "RUN", "--activation-bits", "4"], "invalid choice"),
        (["export", "RUN", "--float-bit", "8"], "did you mean --float-bits?"),
        (["inspect", "none.onebit"], "none.onebit: no such file"),
        (["inspect", "."], "a folder, not a file"),
        (["inspekt", "."], "did you mean inspect?"),
        (["inspect", "RUN/last.safetensors"], "`onebit export` makes one of it"),
        (["inspect", "RUN/config.toml"], "not a .onebit file"),
    ],
)
def test_mistakes(words, line, run_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, *(word.replace("RUN", str(run_folder)) for word in words))
    assert code == 2
    assert out == ""
    assert line in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_file(tmp_path, capsys):
    path = tmp_path / "small.onebit"
    write_model(small_model(), path)
    path.write_bytes(path.read_bytes()[:-5])
    code, _, err = call(capsys, "inspect", str(path))
    assert code == 2
    assert err.startswith(f"onebit inspect: {path}: not a .onebit file, or damaged")


def test_as_a_process_into_a_pipe(tmp_path):
    path = tmp_path / "small.onebit"
    write_model(small_model(), path)
    code, out, err = command("inspect", str(path), "--graph")
    assert (code, err) == (0, "")
    assert "bconv2d(bits, " in out
    assert "projections=2" in out
    assert "kernels: uint8[14], masks: uint8[3])" in out


def test_help_says_when_8_bit_layers_are_for_a_net(capsys):
    code, out, _ = call(capsys, "export", "--help")
    told = " ".join(out.partition("--int8-layers  ")[2].partition("--calibrate")[0].split())
    assert code == 0
    assert all(words in told for words in ("W1A1 net", "many may change", "nearly all answers stay", "onebit eval"))


def test_help_says_what_to_leave_as_it_is(capsys):
    code, out, _ = call(capsys, "train", "--help")
    assert code == 0
    for flag, following, more in (("lam", "eta", "much more does harm"), ("w-init", "scale", "for studies of W")):
        told = " ".join(out.partition(f"  --{flag} ")[2].partition(f"  --{following} ")[0].split())
        assert f"Leave it: {more}" in told, flag


def test_calibration_takes_images_that_the_net_was_trained_on():
    """And never one that it is measured on; the same ones each time, from all over."""
    data = load_data("digits")
    spec = SimpleNamespace(mean=data.mean, deviation=data.deviation)
    feed = Feed(data.mean, data.deviation, torch.device("cpu"))

    def seen(split):
        (batch,) = split.batches([np.arange(len(split.labels))])
        return {image.numpy().tobytes(): row for row, image in enumerate(feed(batch)[0])}

    trained, measured = seen(data.train), seen(data.test)
    found = torch.cat(calibration_images(spec, data, 200))
    images = [image.numpy().tobytes() for image in found]
    assert len(images) == 200
    assert set(images) <= set(trained)
    assert not set(images) & (set(measured) - set(trained))
    rows = [trained[image] for image in images]
    assert min(rows) < len(trained) / 4 < len(trained) * 3 / 4 < max(rows)
    assert torch.equal(torch.cat(calibration_images(spec, data, 200)), found)
    everything = torch.cat(calibration_images(spec, data, 10**6))
    assert len(everything) == len(data.train.labels)
