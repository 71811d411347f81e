"""`onebit demo`: from training to the table and the page, as a real process."""

import itertools
import json
import re
import signal
import subprocess
import time

import numpy as np
import pytest
import torch

from data_files import cifar10_python
from onebit import demonstration
from onebit.demonstration import config_of, contestants
from onebit.imagefiles import read_pixels
from onebit.modelfile import read_model
from onebit.summary import summarize
from terminals import piped
from training_runs import call, command, small_config, start


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The whole of it, as a newcomer runs it."""
    folder = tmp_path_factory.mktemp("demo")
    code, out, err = command("demo", "--quiet", "-o", str(folder / "demo"), timeout=600)
    assert (code, err) == (0, "")
    return folder / "demo", out


def test_the_table(demo):
    folder, out = demo
    rows = [re.split(r"\s*│\s*", line.strip("│ ")) for line in out.splitlines() if line.startswith("│")]
    assert [row[0] for row in rows] == ["float", "W1A32", "W1A1"]
    accuracies = [float(row[1].split()[0]) for row in rows]
    assert max(len(line) for line in out.splitlines() if str(folder) not in line) <= 110
    assert max(len(line) for line in out.splitlines() if "│" in line) == 80, "fits a terminal"
    assert accuracies[0] > 94
    assert accuracies[1] > accuracies[0] - 3
    assert accuracies[2] > 90
    for row, run in zip(rows, ("float", "w1a32", "w1a1"), strict=True):
        assert int(row[2].replace(",", "")) == (folder / run / "net.onebit").stat().st_size
        assert float(row[7].split()[0]) >= 99.5, "engine and PyTorch agree"
    sizes = [int(row[2].replace(",", "")) for row in rows]
    in_float = [
        summarize(read_model(folder / run / "net.onebit")).float_bits / 8 for run in ("float", "w1a32", "w1a1")
    ]
    assert [row[3] for row in rows] == [f"{own / size:.1f} x" for own, size in zip(in_float, sizes, strict=True)]
    assert sizes[0] > 16 * sizes[1]
    times = [(float(row[4]), float(row[5]), float(row[6].split()[0])) for row in rows]
    for _, ours, faster in times:
        assert abs(faster - times[0][0] / ours) < 0.1 * faster, "but for rounding"
    assert f"the page to look at: {folder / 'report.html'}" in out


def test_images_to_try(demo, capsys):
    folder, _ = demo
    code, out, err = call(capsys, "run", str(folder / "w1a1" / "net.onebit"), str(folder / "images"), "--json")
    assert (code, err) == (0, "")
    found = [json.loads(line) for line in out.splitlines()]
    right = sum(each["image"].endswith(f"-is-{each['top'][0]['class']}.png") for each in found)
    assert len(found) == 20
    assert right >= 15


def test_the_page(demo):
    folder, out = demo
    page = (folder / "report.html").read_text()
    for line in out.splitlines():
        if line.startswith("│"):
            for cell in re.split(r"\s*│\s*", line.strip("│ ")):
                assert f">{cell}</td>" in page
    for words in ("confusion matrix", "Feature maps before and after binarization", "input as 1 bit", "accuracy"):
        assert words in page
    assert 'src="http' not in page


def test_again_it_shows_what_was_trained(demo, capsys):
    folder, _ = demo
    before = (folder / "w1a1" / "last.safetensors").stat().st_mtime_ns
    code, out, err = call(capsys, "demo", "--quiet", "--json", "-o", str(folder))
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["report"] == str(folder / "report.html")
    for row in found["rows"]:
        assert row["same_class"] >= 0.995 * row["test_images"]
        assert row["test_images"] == 449
        assert min(row["torch_ms"], row["engine_ms"], row["times_faster"]) > 0
    assert (folder / "w1a1" / "last.safetensors").stat().st_mtime_ns == before
    code, _, err = call(capsys, "demo", "--quiet", "--epochs", "2", "-o", str(folder))
    assert code == 2
    assert "holds another run: use another --out, or remove it" in err


def test_ctrl_c_and_on(tmp_path):
    folder = tmp_path / "demo"
    words = ("demo", "--epochs", "2", "-o", str(folder))
    process = start(*words)
    limit = time.monotonic() + 120
    while not (folder / "float" / "last.safetensors").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "stopped" in err.splitlines()[-1]
    assert "Traceback" not in err
    code, out, err = piped(*words, PATH="/usr/bin:/bin")  # nobody has activated the environment
    assert code == 0, err
    assert "│ W1A1 " in out
    advised = [re.split(r"\s{2,}", line.strip()) for line in err.partition("go on with:\n")[2].splitlines()]
    assert [what for _, what in advised][:2] == ["what the net sees in image files", "what is in the file"]
    for line, _ in advised:
        quick = " --rounds 1 --seconds 0.001" if " bench " in line else ""
        done = subprocess.run(["sh", "-c", line + quick], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (line, done.stderr)


def test_projections_share_their_bits(tmp_path, capsys):
    code, out, _ = call(
        capsys, "demo", "--quiet", "--epochs", "1", "--projections", "2", "--json", "-o", str(tmp_path)
    )
    assert code == 0
    _, w1a32, w1a1 = json.loads(out)["rows"]
    for row, bits in ((w1a32, 32), (w1a1, 1)):
        model = read_model(f"{row['run']}/net.onebit")
        assert model.description == f"pcnn wrn22, width 8, J = 2, W1A{bits}, digits"
        kernels = sum(node.tensors["kernels"].nbytes for node in model.graph.nodes if node.op == "bconv2d")
        assert kernels == 267_264 // 2 // 8


def test_cifar10(tmp_path, capsys):
    """On a few images in the published layout."""
    cifar10_python(tmp_path / "data", count=32)
    words = [
        "demo",
        "--data",
        "cifar10",
        "--data-dir",
        str(tmp_path / "data"),
        "--epochs",
        "1",
        "--quiet",
        "--json",
    ]
    code, out, err = call(capsys, *words, "-o", str(tmp_path / "demo"))
    assert (code, err) == (0, "")
    rows = json.loads(out)["rows"]
    assert [row["test_images"] for row in rows] == [rows[0]["test_images"]] * 3
    assert all(row["same_class"] >= 0.9 * row["test_images"] for row in rows)
    assert read_model(tmp_path / "demo" / "w1a1" / "net.onebit").graph.input_shape == (3, 32, 32)


def test_the_nets_differ_in_nothing_but_their_bits_and_rate():
    configs = [config_of(each, "digits", {"seed": 3}) for each in contestants("digits", 1)]
    keys = [{k for k, v in config.model_dump().items() if v != getattr(configs[0], k)} for config in configs]
    assert keys == [set(), {"method", "lr"}, {"method", "lr", "activation_bits"}]
    assert {config.seed for config in configs} == {3}


@pytest.mark.parametrize(("data", "epochs", "rate"), [("digits", 24, 1.0), ("cifar10", 3, 0.1)])
def test_each_data_set_has_its_length_and_rate(data, epochs, rate):
    in_float, *one_bit = (config_of(each, data, {}) for each in contestants(data, 1))
    assert {config.epochs for config in (in_float, *one_bit)} == {epochs}
    assert [config.lr for config in one_bit] == [rate, rate]
    assert config_of(contestants(data, 1)[0], data, {"epochs": 2}).epochs == 2


def test_images_to_try_are_the_first_test_images_named_for_what_they_are(tmp_path):
    cifar10_python(tmp_path / "data", count=32)
    config = small_config(data="cifar10", data_dir=str(tmp_path / "data"))
    data = demonstration.data_of(config)
    folder = demonstration.write_samples(tmp_path, config)
    count = min(20, len(data.test.labels))
    names = [f"{row:02d}-is-{data.class_names[data.test.labels[row]]}.png" for row in range(count)]
    assert sorted(file.name for file in folder.iterdir()) == names
    for row, name in enumerate(names):
        assert np.array_equal(read_pixels(folder / name, data.image_shape), data.test.images[row])


def test_figures_are_what_was_measured(demo, monkeypatch):
    """Times by a clock of ours; a PyTorch net that sees otherwise agrees no more."""
    folder, _ = demo
    chosen = contestants("digits", 1)
    configs = [config_of(each, "digits", {}) for each in chosen]
    torch_seconds = itertools.cycle([0.004, 0.005, 0.006])

    def burst(run, x, seconds, most):
        return [next(torch_seconds) if isinstance(x, torch.Tensor) else 0.002]

    monkeypatch.setattr(demonstration, "burst", burst)
    rows = demonstration.measure(folder, chosen, configs)
    assert [row.torch_ms for row in rows] == pytest.approx([4, 5, 6])
    assert [row.engine_ms for row in rows] == pytest.approx([2, 2, 2])
    assert [row.times_faster for row in rows] == pytest.approx([2, 2, 2]), "than PyTorch with the float net"
    assert [row.same_class for row in rows] == [449] * 3
    build = demonstration.build_trained

    def build_other(weights):
        net = build(weights)
        net.classifier.weight.data.neg_()
        return net

    def export_true(spec, net, file):
        return demonstration_export(spec, build(demonstration.read_weights(file.parent)).eval(), file)

    demonstration_export = demonstration.export_trained
    monkeypatch.setattr(demonstration, "export_trained", export_true)
    monkeypatch.setattr(demonstration, "build_trained", build_other)
    assert all(row.same_class < 200 for row in demonstration.measure(folder, chosen, configs))
