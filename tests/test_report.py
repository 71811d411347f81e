"""`onebit report`: the page, in a real browser, says what the run's files say."""

import itertools
import json
import re
import shutil
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch

from browser import browse, measure
from data_files import cifar10_python, image_folder
from onebit.report.charts import Series, heat_map, line_chart, log_ticks, ticks
from onebit.report.gathering import gather
from onebit.report.writing import write_report
from onebit.training.kernels import BINS, REACH, histograms, sign_bits
from onebit.training.nets import build_trained, read_weights
from training_runs import call, command, records, small_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "w1a1"
    small_run(folder, epochs=3, activation_bits=1, projections=2, test_every=1)
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "float <b>twin"  # a name is no HTML
    small_run(folder, epochs=2, method="float")
    return folder


class Elements(HTMLParser):
    """Every element of a page: its tag, its attributes, the text in it."""

    def __init__(self, text):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        element = {"tag": tag, "attributes": dict(attrs), "text": "", "figure": next(
            (each for each in reversed(self.open) if each["tag"] == "figure"), None)}  # fmt: skip
        self.found.append(element)
        if tag not in {"meta", "img"}:  # which have no end
            self.open.append(element)

    def handle_endtag(self, tag):
        while self.open and self.open.pop()["tag"] != tag:
            pass

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, tag, figure=None):
        return [e for e in self.found if e["tag"] == tag and (figure is None or e["figure"] is figure)]

    def figure(self, caption):
        (found,) = [e["figure"] for e in self.all("figcaption") if e["text"] == caption]
        return found


def test_in_a_browser_the_charts_say_what_the_run_kept(run, capsys):
    code, out, err = call(capsys, "report", str(run))
    assert (code, err) == (0, "")
    page = run / "report.html"
    assert str(page) in out
    document, said = browse(page)
    assert said == []
    elements = Elements(document)
    epochs = records(run, "epoch")

    chart = elements.figure("accuracy")
    titles = [e["text"] for e in elements.all("title", chart)]
    for key, name in (("train_top1", "training"), ("held_out_top1", "held out"), ("test_top1", "test")):
        for record in epochs:
            assert f"{name}, {record['epoch']}: {record[key]:.4g}" in titles
    assert len(elements.all("polyline", chart)) == 3
    points = elements.all("polyline", chart)[0]["attributes"]["points"].split()
    assert len(points) == 3
    low, high = sorted(
        (record["train_top1"], point.split(",")[1]) for record, point in zip(epochs, points, strict=True)
    )[::2]
    assert float(low[1]) > float(high[1]), "up is more"

    flips = [e["text"] for e in elements.all("title", elements.figure("bits of kernels that an epoch turned"))]
    assert f"kernels, 3: {100 * epochs[2]['flipped_kernels']:.4g}" in flips

    matrix = [
        e["text"]
        for e in elements.all(
            "title", elements.figure("confusion matrix: a row for what an image is, a column for what the net says")
        )
    ]
    cells = {tuple(re.match(r"(\d), (\d): (\d+)$", text).groups()) for text in matrix}
    assert len(cells) == 100
    assert sum(int(count) for _, _, count in cells) == 449
    right = sum(int(count) for is_, said_, count in cells if is_ == said_)
    assert f"{right} of 449 test images right" in document
    evaluated = json.loads(call(capsys, "eval", str(run), "--json")[1])
    assert abs(100 * right / 449 - evaluated["top1"]) < 1e-9


def test_histograms_over_the_epochs(run):
    kept = records(run, "kernels")
    assert [record["epoch"] for record in kept] == [0, 1, 2, 3]
    net = build_trained(read_weights(run))
    last = histograms(sign_bits(net), net)
    for name, layer in kept[-1]["layers"].items():
        C = net.get_submodule(name).C.detach()
        assert sum(layer["counts"]) == C.numel()
        assert layer["counts"] == last[name]["counts"]
        assert layer["a"] == layer["scale"] == float(C.abs().mean())
        expected, _ = np.histogram((C / C.abs().mean()).clamp(-REACH, REACH).numpy(), BINS, (-REACH, REACH))
        assert np.abs(np.array(layer["counts"]) - expected).sum() <= 2, (
            "a number on an edge may fall to either side"
        )
        assert len(layer["counts"]) == BINS
    epoch = records(run, "epoch")[-1]
    sizes = {name: net.get_submodule(name).C.numel() for name in last}
    whole = sum(kept[-1]["layers"][name]["flipped"] * size for name, size in sizes.items()) / sum(sizes.values())
    assert abs(whole - epoch["flipped_kernels"]) < 1e-9
    assert all(layer["flipped"] == 0 for layer in kept[0]["layers"].values())

    found = gather(run)
    write_report(run / "two.html", [found])
    elements = Elements((run / "two.html").read_text())
    for name, layer in last.items():
        figure = elements.figure(name)
        bars = elements.all("rect", figure)
        counts = [int(e["text"].rsplit(": ", 1)[1].replace(",", "")) for e in bars]
        assert counts == layer["counts"]
        marks = [e["attributes"]["x1"] for e in elements.all("line", figure)]
        assert marks == ["90.0", "150.0"], "-a and +a of an axis from -4 a to 4 a, 240 wide"
        assert f"mean |C| = {layer['a']:.3g}, bits stand for ±{layer['a']:.3g}" in figure["text"]
        assert len(elements.all("img", elements.figure(f"{name}, over epochs (downwards)"))) == 1


@pytest.mark.parametrize(("size", "dark"), [((1200, 900), False), ((390, 844), False), ((390, 844), True)])
def test_on_screens_and_phones_in_light_and_dark(run, other, tmp_path, capsys, size, dark):
    page = tmp_path / "both.html"
    assert call(capsys, "report", str(run), str(other), "-o", str(page), "--quiet")[0] == 0
    found = measure(page, tmp_path, *(["--force-dark-mode"] if dark else []), size=size)
    assert found["room"] <= size[0]
    assert found["width"] <= found["room"], "nothing to be pushed aside"
    assert len(found["charts"]) > 20
    assert all(width > 100 and height > 50 for width, height in found["charts"])
    assert found["pictures"]
    assert min(found["pictures"]) > 0
    assert found["smallest"] > 6, "pixels of the smallest letters"
    background, text = (
        np.mean([int(n) for n in re.findall(r"\d+", found[key])[:3]]) for key in ("background", "text")
    )
    assert (background < 50 and text > 200) if dark else (background > 200 and text < 50)


def test_several_runs_are_compared(run, other, tmp_path, capsys):
    page = tmp_path / "both.html"
    code, out, _ = call(capsys, "report", str(run), str(other), "-o", str(page), "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["file"], found["bytes"]) == (str(page), page.stat().st_size)
    text = page.read_text()
    assert "<b>twin" not in text
    elements = Elements(text)
    rows = [e["text"] for e in elements.all("tr")]
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (run, other)]
    for folder, summary in zip((run, other), summaries, strict=True):
        (row,) = [r for r in rows if r.startswith(folder.name) and "wrn22" in r]
        assert f"{summary['test_top1']:.2f} %" in row
    assert len(elements.all("polyline", elements.figure("accuracy"))) == 5
    legend = elements.figure("accuracy")["text"]
    assert "w1a1, held out" in legend
    assert "float <b>twin, held out" in legend
    opened = [("open" in e["attributes"]) for e in elements.all("details") if e["attributes"].get("class") == "run"]
    assert opened == [True, False], "the one with 1-bit kernels"


def test_all_runs_in_a_folder(run, other, tmp_path, capsys):
    for folder in (run, other):
        shutil.copytree(folder, tmp_path / "runs" / folder.name)
    (tmp_path / "runs" / "notes").mkdir()
    code, out, _ = call(capsys, "report", str(tmp_path / "runs"), "--images", "0", "--json")
    assert code == 0
    assert json.loads(out)["file"] == str(tmp_path / "runs" / "report.html")
    assert list(json.loads(out)["notes"]) == sorted(folder.name for folder in (run, other))


def test_the_same_name_twice(run, tmp_path):
    found = [gather(run, most_images=0), gather(run, most_images=0)]
    write_report(tmp_path / "r.html", found)
    assert [each.name for each in found] == ["w1a1 (1)", "w1a1 (2)"]


def test_feature_maps_are_the_nets(run):
    """The first layer's input, its signs, and what it makes of them."""
    found = gather(run)
    net = build_trained(read_weights(run)).eval()
    first, *_, last = found.pictured
    name = first.layer
    assert (name, last.layer) == ("blocks.0.conv1", "blocks.8.conv2")
    layer = net.get_submodule(name)
    assert all(set(np.unique(each)) <= {-1, 1} for each in first.signs)
    assert np.array_equal(np.where(np.array(first.before) >= 0, 1, -1), np.array(first.signs))
    with torch.no_grad():
        x = torch.from_numpy(np.array(first.before))[None]
        assert x.shape[1] == layer.in_channels
        expected = layer(x)[0, ::2].numpy()
    np.testing.assert_allclose(np.array(first.one_bit), expected, rtol=1e-5, atol=1e-6)
    assert not np.allclose(np.array(first.learned), expected)


def test_without_the_data_the_rest_is_there(tmp_path, capsys):
    image_folder(tmp_path / "photos")
    small_run(tmp_path / "run", data="imagefolder", data_dir=str(tmp_path / "photos"), image_size=16, epochs=1,
              batch_size=4, hold_out=2, limit_images=0, workers=0)  # fmt: skip
    code, _, err = call(capsys, "report", str(tmp_path / "run"))
    assert (code, err) == (0, "")
    assert "confusion matrix" in (tmp_path / "run" / "report.html").read_text()
    (tmp_path / "photos").rename(tmp_path / "moved")
    code, out, err = call(capsys, "report", str(tmp_path / "run"), "--json")
    assert code == 0
    assert "Nothing is shown of test images: --data-dir" in err
    assert "no such folder" in json.loads(out)["notes"]["run"][0]
    text = (tmp_path / "run" / "report.html").read_text()
    assert "confusion matrix" not in text
    assert "no such folder" in text
    assert "accuracy" in text
    code, _, err = call(capsys, "report", str(tmp_path / "run"), "--data-dir", str(tmp_path / "moved"))
    assert (code, err) == (0, "")
    assert "confusion matrix" in (tmp_path / "run" / "report.html").read_text()


def test_a_report_fetches_nothing(tmp_path, capsys, monkeypatch):
    cifar10_python(tmp_path / "data", count=32)
    small_run(
        tmp_path / "run", data="cifar10", data_dir=str(tmp_path / "data"), epochs=1, limit_images=0, hold_out=0
    )
    assert call(capsys, "report", str(tmp_path / "run"))[2] == ""
    shutil.rmtree(tmp_path / "data")
    monkeypatch.setattr("onebit.data.cifar.fetch", lambda *_: pytest.fail("it was fetched"))
    code, _, err = call(capsys, "report", str(tmp_path / "run"))
    assert code == 0
    assert "cifar10 is not there; --data-dir says where it is" in err
    err = call(capsys, "report", str(tmp_path / "run"), "--images", "0")[2]
    assert err == "run: No test images were looked at (--images 0).\n"


@pytest.mark.parametrize("method", ["bnn", "lbcnn", "mcn", "abc", "xnor", "dorefa"])
def test_every_kind_of_layer(method, tmp_path, capsys):
    small_run(tmp_path / "run", method=method, epochs=1)
    code, _, err = call(capsys, "report", str(tmp_path / "run"))
    assert (code, err) == (0, "")


def test_levels_that_are_no_bits_and_stages(tmp_path, capsys):
    small_run(tmp_path / "levels", levels=4, epochs=1)
    small_run(tmp_path / "stages", two_stage=True, activation_bits=1, epochs=2, stage2_epochs=1)
    code, _, err = call(
        capsys, "report", str(tmp_path / "levels"), str(tmp_path / "stages"), "-o", str(tmp_path / "x.html")
    )
    assert (code, err) == (0, "")
    titles = [e["text"] for e in Elements((tmp_path / "x.html").read_text()).all("title")]
    assert any(text.startswith("stages, held out, 3: ") for text in titles), "epochs are counted on"


def test_a_run_that_is_not_finished(run, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "epoch", "epo')  # as it is being written
    code, _, err = call(capsys, "report", str(tmp_path / "run"))
    assert code == 0
    assert "The run is not finished" in err
    assert "3 of 3" in (tmp_path / "run" / "report.html").read_text()


def test_a_run_of_an_older_version_has_no_histograms_of_its_epochs(run, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "run")
    lines = [line for line in (run / "metrics.jsonl").read_text().splitlines() if '"kernels"' not in line[:20]]
    (tmp_path / "run" / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert call(capsys, "report", str(tmp_path / "run"))[0] == 0
    text = (tmp_path / "run" / "report.html").read_text()
    assert "was not kept by this run" in text
    assert "mean |C| = " in text


def test_records_that_are_not_ours(run, tmp_path, capsys):
    """Whatever stands in a run's records: the page is made, of what can be drawn."""
    shutil.copytree(run, tmp_path / "run")
    strange = [
        {"kind": "epoch", "stage": 1, "epoch": 4, "loss_s": float("nan"), "train_top1": 1e999, "lr": 0.1},
        {"kind": "epoch", "stage": "one", "epoch": 5},
        {"kind": "epoch", "stage": 1, "epoch": 10**30},
        {"kind": "epoch", "stage": 1},
        {"kind": "kernels", "stage": 1, "epoch": 4, "layers": "none"},
        {"kind": "kernels", "stage": 1, "epoch": 5, "layers": {"blocks.0.conv1": {"counts": [1, 2], "flipped": 0}}},
        {"kind": "kernels", "stage": 1, "epoch": 6, "layers": {"x": {"counts": [0] * BINS, "flipped": "no"}}},
        {"kind": ["epoch"], "stage": 1, "epoch": 7, "<script>": "<script>"},
        ["epoch"],
        7,
    ]
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(each) + "\n" for each in strange) + "{}\nnull\n\x00\n")
    summary = {"epochs": "<b>", "test_top1": None, "test_top5": float("inf"), "training_seconds": []}
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    code, _, err = call(capsys, "report", str(tmp_path / "run"))
    assert (code, err) == (0, "run: The run is not finished: this is its last checkpoint.\n")
    text = (tmp_path / "run" / "report.html").read_text()
    assert "nan" not in text.split("</style>")[1].replace("base64", "").lower().split("data:")[0]
    assert "<script" not in text
    titles = [e["text"] for e in Elements(text).all("title")]
    assert "lr, 4: 0.1" in titles
    assert not any(title.startswith("training, 4") for title in titles)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["none"], "none: no run of `onebit train` is there"),
        (["empty"], "empty: no run of `onebit train` is there"),
        (["begun"], "begun: its run has no checkpoint yet"),
        (["RUN", "--images", "-1"], "--images -1: use at least 0"),
        (["RUN", "-o", "empty"], "--out empty: a folder"),
        (["RUN", "-o", "none/x.html"], "there is no folder none"),
        (["RUN", "--imags", "3"], "did you mean --images?"),
        ([], "RUN"),
    ],
)
def test_mistakes(words, line, run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.toml").write_bytes((run / "config.toml").read_bytes())
    code, out, err = call(capsys, "report", *(word.replace("RUN", str(run)) for word in words))
    assert code == 2
    assert out == ""
    assert line in err
    assert err.count("\n") == 1


def test_as_a_process(run, tmp_path):
    code, out, err = command("report", str(run), "--images", "0", "-o", str(tmp_path / "r.html"), "--quiet")
    assert (code, err) == (0, "")
    assert out.startswith(f"{tmp_path / 'r.html'}: 0.")


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.03, 97), (-3, 5), (5, 5), (0, 0), (99.99, 100), (1e-6, 2e-6), (-0.1, 1e6)]
)
def test_ticks_hold_what_they_must(low, high):
    found = ticks(low, high)
    assert found[0] <= low + 1e-9
    assert found[-1] >= high - 1e-9 * max(1, abs(high))
    assert 2 <= len(found) <= 8
    if low > 0:
        found = log_ticks(low, high)
        assert found[0] <= low * 1.0001
        assert found[-1] >= high * 0.9999
        assert len(found) >= 2


def test_charts_of_little():
    assert line_chart("nothing", [Series("a", [])], "y", legend=False) == ""
    one = line_chart("one", [Series("a", [(1, 0.0)])], "y", legend=True)
    assert "nan" not in one
    assert "<circle" in one
    assert "nan" not in heat_map("zeros", [[0.0]], (["a"], ["b"]), str)


@pytest.mark.parametrize("most", [9, 99, 100, 1000, 54321])
def test_a_number_in_a_square_has_room_there(most):
    """Digits of 11 pixels' fonts are 7 wide at most; a square that comes later hides what stands out."""
    rows = [[most, 0, 1], [0, most // 2, most]]
    drawn = heat_map("t", rows, (["a", "b"], ["c", "d", "e"]), str, written=True)
    svg = ET.fromstring(re.search("<svg.*</svg>", drawn)[0])
    width = float(svg.get("viewBox").split()[2])
    cells = [(group.find("rect"), group.find("text")) for group in svg.iter("g")]
    assert [text.text for _, text in cells] == [str(number) for row in rows for number in row]
    for square, text in cells:
        first, wide = float(square.get("x")), float(square.get("width"))
        middle, needed = float(text.get("x")), 7 * len(text.text)
        assert first <= middle - needed / 2
        assert middle + needed / 2 <= first + wide <= width
    starts = sorted({float(square.get("x")) for square, _ in cells})
    assert all(b - a >= float(cells[0][0].get("width")) for a, b in itertools.pairwise(starts))
