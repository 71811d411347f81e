"""Charts as SVG text. Colours are the page's, so that they follow light and dark; numbers show when pointed at."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from onebit.report.text import escape

WIDTH, HEIGHT = 440, 250  # small enough to be read on a phone when scaled to its width
LEFT, RIGHT, TOP, BOTTOM = 54, 10, 10, 34  # margins, for ticks and labels
LONGEST_LABEL = 20
SIDE, DIGIT = 20, 7  # of a heat map: a square, and at most a digit in the font of the page
COLOURS = 8  # of the page: classes c0, c1, ...
SMALLEST = 1e-9  # of an axis of factors, which knows no 0
MOST_DOTS = 400  # of a line; of more every n-th shows its number


class Series(NamedTuple):
    """A line of a chart."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 0
    dashed: bool = False


def line_chart(title: str, series: Sequence[Series], y_label: str, *, legend: bool, log: bool = False) -> str:
    """Lines over the epochs; `log`: each step of the axis is a factor."""
    shown = [line for line in series if line.points]
    xs = [x for line in shown for x, _ in line.points]
    ys = [y for line in shown for _, y in line.points]
    if not xs:
        return ""
    axes = Axes((min(xs), max(xs)), (log_ticks if log else ticks)(min(ys), max(ys)), log=log)
    body = [axes.drawn("epoch", y_label), *(_line(line, axes) for line in shown)]
    return figure(title, _svg("".join(body), title), _legend(shown) if legend else "")


def bar_chart(title: str, counts: Sequence[float], reach: float, note: str) -> str:
    """A histogram of numbers from -reach * a to reach * a, with dashed lines at -a and +a."""
    top = max(counts) or 1
    width, height = 240, 110
    step = width / len(counts)
    bars = "".join(
        f'<rect class="bar" x="{n * step:.2f}" y="{(1 - count / top) * (height - 16):.1f}" '
        f'width="{step:.2f}" height="{count / top * (height - 16):.1f}"><title>'
        f"{_number(reach * (2 * n / len(counts) - 1))} a to {_number(reach * (2 * (n + 1) / len(counts) - 1))} a: "
        f"{count:,.0f}</title></rect>"
        for n, count in enumerate(counts)
    )
    lines = "".join(
        f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 16}"/>'
        f'<text x="{x:.1f}" y="{height - 3}" text-anchor="middle">{"+" if mark > 0 else "-"}a</text>'
        for mark in (-1, 1)
        for x in [(mark / reach + 1) / 2 * width]
    )
    return figure(title, _svg(bars + lines, title, width, height), f"<p>{escape(note)}</p>")


def heat_map(
    title: str,
    rows: Sequence[Sequence[float]],
    names: tuple[Sequence[str], Sequence[str]],
    say: Callable[[float], str],
    *,
    written: bool = False,
) -> str:
    """A square for each number, the darker the larger; `names` of the rows and of the columns.

    Where numbers are written, squares become as wide as the longest of them wants.
    """
    top = max((max(row) for row in rows), default=0) or 1
    longest = max((len(say(number)) for row in rows for number in row), default=0) if written else 0
    side, wide = SIDE, max(SIDE, longest * DIGIT + 6)
    left = 8 * max((len(_short(name)) for name in names[0]), default=0) + 6
    high = 8 * max((len(_short(name)) for name in names[1]), default=0) + 6
    cells = "".join(_cell((left + x * wide, high + y * side), (wide, side), number / top,
                          f"{names[0][y]}, {names[1][x]}: {say(number)}", say(number) if written else "")
                    for y, row in enumerate(rows) for x, number in enumerate(row))  # fmt: skip
    labels = "".join(
        f'<text x="{left - 4}" y="{high + y * side + 14}" text-anchor="end">{escape(_short(name))}</text>'
        for y, name in enumerate(names[0])
    )
    labels += "".join(
        f'<text transform="translate({left + (x + 0.5) * wide + 4:g} {high - 4}) rotate(-90)">'
        f"{escape(_short(name))}</text>"
        for x, name in enumerate(names[1])
    )
    width, height = left + wide * len(names[1]) + 4, high + side * len(rows) + 4
    drawn = _svg(cells + labels, title, width, height)
    drawn = drawn.replace("<svg ", f'<svg style="max-width:{1.4 * width:.0f}px" ', 1)
    return figure(title, drawn, f"<p>the darkest: {escape(say(top))}</p>")


def _short(name: str) -> str:
    """As a label has room for; pointed at, a square says the whole name."""
    return name if len(name) <= LONGEST_LABEL else f"{name[: LONGEST_LABEL - 1]}…"


def _cell(place: tuple[int, int], size: tuple[int, int], share: float, said: str, written: str) -> str:
    (x, y), (width, height), number = place, size, ""
    if written:
        kind = "on" if share > 0.5 else "off"
        middle = x + (width - 1) / 2
        number = f'<text class="{kind}" x="{middle}" y="{y + 14}" text-anchor="middle">{escape(written)}</text>'
    square = (
        f'<rect class="heat" x="{x}" y="{y}" width="{width - 1}" height="{height - 1}" fill-opacity="{share:.3f}"/>'
    )
    return f"<g>{square}{number}<title>{escape(said)}</title></g>"


def figure(title: str, content: str, below: str = "") -> str:
    """A chart or a picture with its title."""
    return f"<figure><figcaption>{escape(title)}</figcaption>{content}{below}</figure>"


class Axes:
    """Where numbers are in a chart."""

    def __init__(self, x_range: tuple[float, float], y_ticks: Sequence[float], *, log: bool) -> None:
        self.x_range, self.y_ticks, self.log = x_range, y_ticks, log
        self.x_ticks = [tick for tick in ticks(*x_range, whole=True) if x_range[0] <= tick <= x_range[1]]

    def x(self, number: float) -> float:
        """Pixels from the left; what is at one place only is in the middle."""
        first, last = self.x_range
        share = (number - first) / (last - first) if last > first else 0.5
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, number: float) -> float:
        """Pixels from the top."""
        first, last = self.y_ticks[0], self.y_ticks[-1]
        if self.log:
            first, last, number = (math.log(max(n, SMALLEST)) for n in (first, last, number))
        return HEIGHT - BOTTOM - (number - first) / (last - first) * (HEIGHT - TOP - BOTTOM)

    def drawn(self, x_label: str, y_label: str) -> str:
        """Grid, ticks and labels."""
        rows = "".join(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{self.y(tick):.1f}" y2="{self.y(tick):.1f}"/>'
            f'<text x="{LEFT - 5}" y="{self.y(tick) + 4:.1f}" text-anchor="end">{_number(tick)}</text>'
            for tick in self.y_ticks
        )
        columns = "".join(
            f'<text x="{self.x(tick):.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{_number(tick)}</text>'
            for tick in self.x_ticks
        )
        middle = (LEFT + WIDTH - RIGHT) / 2
        labels = f'<text x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>'
        place = f"translate(11 {(HEIGHT - BOTTOM + TOP) / 2}) rotate(-90)"
        return rows + columns + labels + f'<text transform="{place}" text-anchor="middle">{escape(y_label)}</text>'


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Round numbers from at most `low` to at least `high`, about five steps."""
    span = high - low or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / 5))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= span / 5 - 1e-12)
    if whole:
        step = max(1.0, round(step))
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [n * step for n in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of 10 from at most `low` to at least `high`; of less than two of them 2 and 5 times as well."""
    low, high = max(low, SMALLEST), max(high, SMALLEST)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if math.log10(high / low) < 2 else (1,)
    found = [size * 10.0**power for power in powers for size in steps]
    first = max(number for number in found if number <= low * (1 + 1e-9))
    last = min((number for number in found if number >= high * (1 - 1e-9) and number > first), default=10 * first)
    return [number for number in found if first <= number <= last]


def _line(line: Series, axes: Axes) -> str:
    places = [(axes.x(x), axes.y(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    colour, dash = _colour(line), ' stroke-dasharray="5 4"' if line.dashed else ""
    every = -(-len(places) // MOST_DOTS)
    radius = 2.5 if len(places) <= 60 else 4
    faint = "" if len(places) <= 60 else ' fill-opacity="0"'  # there to be pointed at
    dots = "".join(
        f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"{faint}>'
        f"<title>{escape(line.name)}, {_number(of_x)}: {of_y:.4g}</title></circle>"
        for (x, y), (of_x, of_y) in list(zip(places, line.points, strict=True))[::every]
    )
    return f'<polyline class="{colour}" points="{path}"{dash}/>{dots}'


def _colour(line: Series) -> str:
    return f"c{line.colour % COLOURS}"


def _legend(series: Sequence[Series]) -> str:
    entries = "".join(
        f'<li class="{_colour(line)}{" dashed" if line.dashed else ""}"><span>{escape(line.name)}</span></li>'
        for line in series
    )
    return f'<ul class="legend">{entries}</ul>'


def _svg(body: str, title: str, width: float = WIDTH, height: float = HEIGHT) -> str:
    return f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">{body}</svg>'


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value - round(value)) < 1e-9 * max(1.0, abs(value)) else f"{value:.4g}"
