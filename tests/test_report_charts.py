"""Charts of a report: where numbers stand, what is said of them, which line is whose."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from onebit.report.charts import Axes, Series, bar_chart, heat_map, line_chart, log_ticks, ticks
from onebit.report.gathering import Seen
from onebit.report.images import picture
from onebit.report.sections import _confusion, curves, overview
from onebit.training.config import Config
from test_report import Elements


def places(chart):
    """The points of the first line of a chart, in pixels."""
    points = re.search(r'<polyline [^>]*points="([^"]*)"', chart)[1]
    return [tuple(map(float, point.split(","))) for point in points.split()]


def test_a_step_of_a_logarithmic_axis_is_a_factor():
    points = [(1, 100.0), (2, 10.0), (3, 1.0)]
    y = [y for _, y in places(line_chart("t", [Series("a", points)], "y", legend=False, log=True))]
    assert y[1] - y[0] == pytest.approx(y[2] - y[1], abs=0.2)
    assert y[0] < y[1] < y[2]
    plain = [y for _, y in places(line_chart("t", [Series("a", points)], "y", legend=False))]
    assert plain[2] - plain[1] == pytest.approx((plain[1] - plain[0]) / 10, abs=0.2)


def test_ticks_by_hand():
    assert log_ticks(0.3, 4) == pytest.approx([0.2, 0.5, 1, 2, 5])  # little: 2 and 5 times as well
    assert log_ticks(0.3, 400) == pytest.approx([0.1, 1, 10, 100, 1000])
    assert ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert Axes((1, 3), [0, 1], log=False).x_ticks == [1, 2, 3]  # no half epochs


def test_lines_and_their_legend():
    series = [Series("a", [(1, 1.0)], 0, dashed=True), Series("b", [(1, 2.0)], 9)]
    chart = line_chart("t", series, "y", legend=True)
    assert re.findall(r'<polyline class="(c\d)"[^>]*?( stroke-dasharray="5 4")?/>', chart) == [
        ("c0", ' stroke-dasharray="5 4"'),
        ("c1", ""),  # colours begin anew
    ]
    assert re.findall(r'<li class="([^"]*)"><span>(\w)', chart) == [("c0 dashed", "a"), ("c1", "b")]
    assert "legend" not in line_chart("t", series, "y", legend=False)


def test_bars_stand_on_their_axis():
    chart = bar_chart("layer", [1, 4, 2000, 0], 4.0, "a note")
    bars = re.findall(r'x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"><title>(.*?)</title>', chart)
    assert [float(x) for x, *_ in bars] == [0, 60, 120, 180]
    assert {float(y) + float(height) for _, y, _, height, _ in bars} == {94.0}
    assert [float(height) for *_, height, _ in bars] == [0.0, 0.2, 94.0, 0.0]
    assert [said for *_, said in bars] == [
        "-4 a to -2 a: 1",
        "-2 a to 0 a: 4",
        "0 a to 2 a: 2,000",
        "2 a to 4 a: 0",
    ]
    assert re.findall(r">([+-]a)</text>", chart) == ["-a", "+a"]


def test_the_largest_number_is_the_darkest():
    """And what is written on it is light; each square is named by its row, then by its column."""
    drawn = heat_map("t", [[8, 0, 2], [4, 6, 1]], (["a", "b"], ["c", "d", "e"]), str, written=True)
    shares = [float(share) for share in re.findall(r'fill-opacity="([\d.]+)"', drawn)]
    assert shares == [1, 0, 0.25, 0.5, 0.75, 0.125]
    assert re.findall(r'<text class="(\w+)"', drawn) == ["on", "off", "off", "off", "on", "off"]
    assert re.findall(r"<title>(.*?)</title>", drawn) == [
        "a, c: 8", "a, d: 0", "a, e: 2", "b, c: 4", "b, d: 6", "b, e: 1",
    ]  # fmt: skip
    assert "the darkest: 8" in drawn


def test_a_picture_is_as_wide_as_its_pixels():
    assert "width:30px" in picture(np.zeros((4, 10), np.uint8), "p", scale=3)
    assert "width:100%" in picture(np.zeros((4, 10), np.uint8), "p")


def record(at, **keys):
    return {"kind": "epoch", "at": at, **keys}


def gathered(name, epochs, **more):
    spec = SimpleNamespace(summary=lambda: "a net", data="digits", class_names=(), num_classes=0)
    given = {"summary": None, "packed": None, "notes": [], "config": Config(), "spec": spec, "seen": None} | more
    return SimpleNamespace(name=name, epochs=epochs, **given)


EPOCHS = [
    record(1, train_top1=50.0, held_out_top1=40.0, test_top1=30.0, loss_s=1.5, held_out_loss=2.5, loss_p=0.0,
           flipped_kernels=0.25, flipped_projections=0.125, lr=0.1),
    record(2, train_top1=60.0, held_out_top1=45.0, loss_s=1.0, held_out_loss=2.0, loss_p=0.5,
           flipped_kernels=0.5, flipped_projections=0.0625, lr=0.05),
]  # fmt: skip


def drawn(html, title):
    """What a chart says of each point, and the class of each line and whether it is dashed."""
    (figure,) = [part for part in html.split("<figure>") if part.startswith(f"<figcaption>{title}</figcaption>")]
    lines = re.findall(r'<polyline class="(c\d)"[^>]*?( stroke-dasharray[^/]*)?/>', figure)
    return re.findall(r"</?title>(.*?)</title>", figure), [(colour, bool(dash)) for colour, dash in lines]


def test_curves_of_one_run():
    html = curves([gathered("r", EPOCHS)])
    said, lines = drawn(html, "accuracy")
    assert said == ["training, 1: 50", "training, 2: 60", "held out, 1: 40", "held out, 2: 45", "test, 1: 30"]
    assert lines == [("c0", True), ("c1", False), ("c2", False)]
    said, lines = drawn(html, "loss (cross entropy)")
    assert said == ["training, 1: 1.5", "training, 2: 1", "held out, 1: 2.5", "held out, 2: 2"]
    assert lines == [("c0", True), ("c1", False)]
    assert drawn(html, "projection loss L_P")[0] == ["L_P, 1: 0", "L_P, 2: 0.5"]
    assert drawn(html, "bits of kernels that an epoch turned")[0] == ["kernels, 1: 25", "kernels, 2: 50"]
    assert drawn(html, "bits of projection matrices that an epoch turned")[0] == ["W, 1: 12.5", "W, 2: 6.25"]
    assert drawn(html, "learning rate")[0] == ["lr, 1: 0.1", "lr, 2: 0.05"]


def test_each_run_has_its_colour():
    html = curves([gathered("a", EPOCHS), gathered("b", EPOCHS[:1])])
    said, lines = drawn(html, "accuracy")
    assert said[:3] == ["a, training, 1: 50", "a, training, 2: 60", "b, training, 1: 50"]
    assert [colour for colour, _ in lines] == ["c0", "c1"] * 3
    assert drawn(html, "learning rate")[1] == [("c0", False), ("c1", False)]


def test_what_a_run_took():
    """Epochs of both stages; seconds; a file's size, and how many times smaller it is."""
    config = Config(two_stage=True, activation_bits=1, epochs=5, stage2_epochs=3)
    packed = SimpleNamespace(file_bytes=12345, file_compression=23.46)
    under_way = gathered("r", [record(1, training_seconds=7.0), record(2, training_seconds=90.0)], config=config)
    finished = gathered("r", EPOCHS, summary={"epochs": 8, "training_seconds": 125.4}, packed=packed)
    first, second = (
        [element["text"] for element in Elements(overview([run])).all("td")] for run in (under_way, finished)
    )
    assert first == ["r", "a net", "digits", "2 of 8", "-", "-", "-", "-", "-", "90 s"]
    assert second[3:] == ["8", "-", "-", "45.00 %", "12,345", "23.5", "125 s"]


def test_of_many_classes_the_worst_pairs_are_listed():
    """What an image is first, then what the net says; those that are right are no pairs."""
    names = tuple(f"n{number}" for number in range(30))
    spec = SimpleNamespace(class_names=names, num_classes=30)
    seen = Seen(np.arange(8), np.array([3, 3, 3, 3, 5, 7, 7, 7]), np.array([3, 3, 3, 3, 1, 9, 9, 8]))
    elements = Elements(_confusion(gathered("r", [], spec=spec, seen=seen)))
    assert [element["text"] for element in elements.all("th")] == ["it is", "the net says", "images"]
    cells = [element["text"] for element in elements.all("td")]
    assert cells == ["n7", "n9", "2", "n5", "n1", "1", "n7", "n8", "1"]
