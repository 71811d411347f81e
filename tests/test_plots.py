"""The picture of a comparison, as it is drawn: points, their bars and names, sizes below."""

from itertools import pairwise

import pytest

from onebit.comparison import plot as plotting
from onebit.comparison.table import Row, cells

KINDS = {
    "float": ("float net", {"weight_bits": 32, "activation_bits": 32, "bytes": 2_500_000}),
    "pcnn": ("binarised, float activations", {"activation_bits": 32, "top1": 60.0, "spread": 1.5}),
    "bnn": ("binarised, 1-bit activations", {"activation_bits": 1, "top1": 40.0, "spread": 0.5}),
    "dorefa": ("binarised, few-bit activations", {"activation_bits": 4, "top1": 50.0}),
    "mcn": ("binarised, float activations", {"activation_bits": 32, "top1": 70.0, "spread": 2.5}),
}


def row(method, **more):
    return Row(**{
        "method": method, "weight_bits": 1, "activation_bits": 32, "parameters": 1000, "bytes": 200_000,
        "top1": 80.0, "spread": None, "seeds": 1, "lr": 0.1, "minutes": 1.0, "failed": 0,
    } | more)  # fmt: skip


@pytest.fixture
def axes(monkeypatch):
    monkeypatch.setattr(plotting, "picture", lambda figure, kind: figure)
    figure = plotting.plot([row(method, **more) for method, (_, more) in KINDS.items()], "title", "svg")
    return figure.axes[0]


def test_points_are_told_apart_by_their_bits(axes):
    drawn = {
        (bars.get_label(), x, y) for bars in axes.containers for x, y in zip(*bars.lines[0].get_data(), strict=True)
    }
    expected = {(kind, r.bytes, r.top1) for name, (kind, more) in KINDS.items() for r in [row(name, **more)]}
    assert drawn == expected
    (shown,) = axes.figure.legends
    assert [text.get_text() for text in shown.get_texts()] == list(
        dict.fromkeys(kind for kind, _ in KINDS.values())
    )


def test_bars_are_the_spreads(axes):
    """Of a group in which one has a spread; a single seed's has no length."""
    lengths = {}
    for bars in axes.containers:
        segments = [segment for lines in bars.lines[2] for segment in lines.get_segments()]
        lengths[bars.get_label()] = [float(top[1] - bottom[1]) for bottom, top in segments]
    assert lengths == {
        "float net": [], "binarised, float activations": [3.0, 5.0], "binarised, 1-bit activations": [1.0],
        "binarised, few-bit activations": [],
    }  # fmt: skip


def test_names_stand_in_the_order_of_their_points(axes):
    names = sorted(axes.texts, key=lambda text: text.xyann[1])
    assert [text.get_text() for text in names] == ["bnn", "dorefa", "pcnn", "mcn", "float"]
    places = [text.xyann[1] for text in names]
    assert all(0 <= low < high <= 1 for low, high in pairwise(places))
    for text in names:
        found = row(text.get_text(), **KINDS[text.get_text()][1])
        assert text.xy == (found.bytes, found.top1)


@pytest.mark.parametrize(
    ("size", "shown"),
    [(200, "200 B"), (999, "999 B"), (1000, "1 kB"), (20_000, "20 kB"), (5e6, "5 MB"), (2e9, "2 GB")],
)
def test_sizes_below_are_in_thousands(axes, size, shown):
    assert axes.xaxis.get_major_formatter()(size, 0) == shown


@pytest.mark.parametrize(
    ("minutes", "shown"), [(0.004, "0.004"), (0.254, "0.25"), (1.0, "1.0"), (12.34, "12.3"), (600, "600.0")]
)
def test_minutes_of_short_runs_are_not_nothing(minutes, shown):
    assert cells(row("a", minutes=minutes))[-1] == shown
