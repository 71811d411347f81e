"""What a report draws, number by number and pixel by pixel; and that nothing in a run's files can become HTML."""

import base64
import io
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from onebit.pictures import kernel_grid
from onebit.report.gathering import Seen, gather
from onebit.report.images import strip
from onebit.report.writing import write_report
from onebit.training.kernels import histograms, sign_bits
from onebit.training.nets import build_trained, read_weights
from test_report import Elements
from training_runs import records, small_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "w1a1"
    small_run(folder, epochs=2, activation_bits=1, projections=2, lr=1)
    return folder


@pytest.fixture(scope="module")
def gathered(run):
    return gather(run)


def page_of(gathered, folder):
    write_report(folder / "page.html", [gathered])
    return Elements((folder / "page.html").read_text())


def pixels_of(element):
    data = element["attributes"]["src"].removeprefix("data:image/png;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def test_rows_of_the_confusion_matrix_are_what_images_are(gathered, tmp_path):
    seen = Seen(np.arange(6), np.array([3, 3, 3, 5, 7, 7]), np.array([4, 4, 3, 1, 7, 7]))
    elements = page_of(replace(gathered, seen=seen, pixels={}), tmp_path)
    title = "confusion matrix: a row for what an image is, a column for what the net says"
    cells = {e["text"] for e in elements.all("title", elements.figure(title))}
    assert {"3, 4: 2", "3, 3: 1", "5, 1: 1", "7, 7: 2", "4, 3: 0"} <= cells


def test_samples_say_what_is_right(gathered, tmp_path):
    pixels = {row: np.zeros((1, 8, 8), np.uint8) for row in (0, 1)}
    seen = Seen(np.array([0, 1]), np.array([3, 4]), np.array([3, 9]))
    elements = page_of(replace(gathered, seen=seen, pixels=pixels), tmp_path)
    kinds = [(e["attributes"].get("class"), e["text"]) for e in elements.all("div")]
    shown = {kind: text for kind, text in kinds if kind in {"right", "wrong"}}
    assert shown == {"right": "3", "wrong": "9, not 4"}
    assert any("1 of 2 test images right" in e["text"] for e in elements.all("p"))


def test_no_name_becomes_html(gathered, tmp_path):
    evil = '"><img src=x onerror="alert(1)"><script>alert(2)</script>'
    spec = gathered.spec.model_copy(update={"class_names": tuple(f"{evil}{n}" for n in range(10)), "data": evil})
    summary = gathered.packed._replace(rows=[row._replace(name=evil) for row in gathered.packed.rows])
    elements = page_of(
        replace(gathered, name=evil, spec=spec, notes=[evil], packed=summary,
                last_kernels={evil: next(iter(gathered.last_kernels.values()))},
                pictured=[each._replace(layer=evil) for each in gathered.pictured],
                kernels=[each._replace(layer=evil) for each in gathered.kernels]),
        tmp_path,
    )  # fmt: skip
    assert not elements.all("script")
    for element in elements.found:
        assert not any(name.startswith("on") for name in element["attributes"])
    assert all(e["attributes"]["src"].startswith("data:image/png;base64,") for e in elements.all("img"))
    (policy,) = [e["attributes"]["content"] for e in elements.all("meta") if "http-equiv" in e["attributes"]]
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "script" not in policy


def test_kernels_as_learned_and_as_bits(run, gathered, tmp_path):
    elements = page_of(gathered, tmp_path)
    layer = build_trained(read_weights(run)).blocks[0].conv1
    (shown,) = [
        e for e in elements.all("img") if e["attributes"]["alt"] == "blocks.0.conv1: kernels, learned and as bits"
    ]
    pixels = pixels_of(shown)
    with torch.no_grad():
        bits = layer.quantized_weight()[::2].sign().numpy()
        learned = (layer.C * layer.W[0]).numpy()
    expected = kernel_grid(bits, 16, 3)
    assert np.array_equal(pixels[:, -expected.shape[1] :], expected)
    grey = kernel_grid(np.clip(learned / (2 * np.abs(learned).mean()), -1, 1), 16, 3)
    assert np.array_equal(pixels[:, : grey.shape[1]], grey)
    assert np.array_equal(np.sign(gathered.kernels[0].learned), gathered.kernels[0].used)


def test_rows_of_the_epochs(run, gathered, tmp_path):
    elements = page_of(gathered, tmp_path)
    kept = [record["layers"]["blocks.8.conv2"] for record in records(run, "kernels")]
    pixels = pixels_of(elements.all("img", elements.figure("blocks.8.conv2, over epochs (downwards)"))[0])
    counts = np.array([layer["counts"] for layer in kept], float)
    assert np.array_equal(pixels[:, :, 1], (255 * counts / counts.max(axis=1, keepdims=True)).astype(np.uint8))
    assert not np.array_equal(counts[0], counts[-1])
    titles = [e["text"] for e in elements.all("title", elements.figure("bits turned in an epoch, by layer, %"))]
    layers = [record["layers"] for record in records(run, "kernels")][1:]
    turned = [
        (name, epoch, layer["flipped"]) for epoch, each in enumerate(layers, 1) for name, layer in each.items()
    ]
    assert any(share > 0 for *_, share in turned)
    assert sorted(titles) == sorted(f"{name}, {epoch}: {100 * share:.2f} %" for name, epoch, share in turned)


def test_maps_with_learned_kernels(run, gathered):
    layer = build_trained(read_weights(run)).blocks[0].conv1
    first = gathered.pictured[0]
    with torch.no_grad():
        x = torch.from_numpy(np.array(first.signs))[None]
        expected = F.conv2d(x, layer.C * layer.W[0], padding=1, stride=layer.stride)[0]
    np.testing.assert_allclose(np.array(first.learned), expected.numpy(), rtol=1e-4, atol=1e-5)


def test_strips_from_black_to_white():
    ramp = np.array([[0.0, 1.0], [2.0, 4.0]])
    shown = strip([ramp, ramp])
    assert shown.shape == (2, 5, 3)
    assert shown[:, :2, 0].tolist() == [[0, 63], [127, 255]]
    assert shown[0, 2].tolist() == [9, 105, 218]
    ones = strip([np.ones((2, 2)), -np.ones((2, 2))], signs=True)
    assert (ones[0, 0, 0], ones[0, 3, 0]) == (255, 0)


@pytest.mark.parametrize(("method", "says"), [
    ("bnn", lambda layer: 1.0),
    ("bwn", lambda layer: float(layer.weight.detach().abs().mean())),
    ("mcn", lambda layer: float(layer.b * layer.M.detach().mean())),
    ("abc", lambda layer: None),
])  # fmt: skip
def test_what_bits_stand_for(method, says, tmp_path):
    options = {"weight_bases": 3} if method == "abc" else {}
    small_run(tmp_path / "run", method=method, epochs=1, **options)
    net = build_trained(read_weights(tmp_path / "run"))
    found = histograms(sign_bits(net), net)
    layer, expected = found["blocks.0.conv1"], says(net.blocks[0].conv1)
    assert layer["scale"] == (expected if expected is None else pytest.approx(expected, rel=1e-5))
    elements = page_of(gather(tmp_path / "run", most_images=0), tmp_path)
    text = elements.figure("blocks.0.conv1")["text"]
    assert ("bits stand for" in text) == (expected is not None)
    assert [e["attributes"]["x1"] for e in elements.all("line", elements.figure("blocks.0.conv1"))] == [
        "90.0",
        "150.0",
    ]


def test_forward_with_the_mean_of_w_turns_nothing(tmp_path):
    small_run(tmp_path / "run", projections=2, forward_w="mean", w_init="normal", epochs=1)
    net = build_trained(read_weights(tmp_path / "run"))
    (first, *_) = gather(tmp_path / "run", most_images=0).kernels
    assert np.array_equal(first.learned, net.blocks[0].conv1.C.detach().numpy())
    assert np.array_equal(first.used, np.where(first.learned >= 0, 1, -1))


def test_a_report_leaves_alone_what_a_training_writes(run, tmp_path):
    """It may be at work in the same folder, between the moves of a checkpoint."""
    waiting = [run / ".last.safetensors.next", run / ".commit.next", run / ".notes.next"]
    for file in waiting:
        file.write_bytes(b"half written")
    write_report(run / "report.html", [gather(run, most_images=0)])
    assert all(file.read_bytes() == b"half written" for file in waiting)
    for file in waiting:
        file.unlink()
    assert not [file for file in run.iterdir() if re.match(r"\.report", file.name)]


def test_a_part_of_the_test_images_is_of_all_classes(run):
    found = gather(run, most_images=100)
    assert len(found.seen.rows) == 100
    assert set(found.seen.labels.tolist()) == set(range(10))
    assert found.seen.rows[-1] > 300
    assert "100 of 449 test images were looked at (--images)." in found.notes


def rows_of(elements, heading):
    """The rows of the first table that has this heading: a dict each, by heading."""
    tables = []
    for element in elements.found:
        if element["tag"] == "table":
            tables.append(([], []))
        elif element["tag"] == "th":
            tables[-1][0].append(element["text"])
        elif element["tag"] == "tr":
            tables[-1][1].append([])
        elif element["tag"] == "td":
            tables[-1][1][-1].append(element["text"])
    heads, rows = next(table for table in tables if heading in table[0])
    return [dict(zip(heads, row, strict=True)) for row in rows if row]


def test_the_overview_has_each_number_under_its_heading(gathered, tmp_path):
    """Top-1, top-5 and the best epoch on held-out images, which is not the last."""
    epochs = [dict(record) for record in gathered.epochs]
    for record, held_out in zip(epochs, (61.25, 12.5), strict=True):
        record["held_out_top1"] = held_out
    summary = gathered.summary | {"test_top1": 43.21, "test_top5": 87.65}
    (row,) = rows_of(page_of(replace(gathered, epochs=epochs, summary=summary), tmp_path), "best held out")
    assert (row["top-1"], row["top-5"], row["best held out"]) == ("43.21 %", "87.65 %", "61.25 %")
    assert row["bytes on disk"] == f"{gathered.packed.file_bytes:,}"
    unfinished = [record | {"test_top1": 1.5, "test_top5": 2.5} for record in epochs]
    (row,) = rows_of(page_of(replace(gathered, epochs=unfinished, summary=None), tmp_path), "best held out")
    assert (row["top-1"], row["top-5"], row["best held out"]) == ("1.50 %", "2.50 %", "61.25 %")


def test_the_table_of_epochs_has_each_number_under_its_heading(gathered, tmp_path):
    keys = {"loss_s": 1.25, "loss_p": 0.5, "train_top1": 11.0, "held_out_top1": 22.0, "test_top1": 33.0,
            "flipped_kernels": 0.04, "lr": 0.7}  # fmt: skip
    epochs = [record | keys for record in gathered.epochs]
    rows = rows_of(page_of(replace(gathered, epochs=epochs), tmp_path), "bits turned, %")
    shown = {"loss": "1.25", "L_P": "0.5", "training, %": "11", "held out, %": "22", "test, %": "33",
             "bits turned, %": "4", "learning rate": "0.7"}  # fmt: skip
    assert rows == [{"epoch": str(n), **shown} for n in (1, 2)]


def test_multiply_adds_of_float_layers_count(gathered, tmp_path):
    rows = rows_of(page_of(gathered, tmp_path), "multiply-adds")
    found = {row["layer"]: int(row["multiply-adds"].replace(",", "")) for row in rows}
    # Digits: 1 channel of 8 x 8 pixels; tensors of i * J = 4 channels in the first stage, 16 in the last.
    assert found["stem"] == 4 * 8 * 8 * 9
    assert found["blocks.0.conv1"] == 4 * 8 * 8 * (4 * 9)
    assert found["classifier"] == 10 * 16
    assert sum(found.values()) == gathered.packed.total("one_bit_macs") + gathered.packed.total("float_macs")


def test_no_path_of_a_run_is_in_its_page(run, tmp_path):
    """Of a teacher, of the weights that it began from, of the data: nobody's business who is sent the page."""
    teacher, out = tmp_path / "folder-of-a-teacher", tmp_path / "taught"
    small_run(teacher, method="float", epochs=1)
    small_run(out, epochs=1, teacher=str(teacher), initial_checkpoint=str(teacher), distill_weight=0.25)
    found = gather(out, most_images=0)
    assert found.config.teacher
    where = found.config.model_copy(update={"data_dir": str(tmp_path / "folder-of-the-data")})
    write_report(tmp_path / "page.html", [replace(found, config=where)])
    text = (tmp_path / "page.html").read_text()
    assert "folder-of" not in text
    assert str(tmp_path) not in text
    assert {"key": "distill weight", "value": "0.25"} in rows_of(Elements(text), "value")
