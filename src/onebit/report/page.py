"""The page itself: one file, without scripts, that fetches nothing, in light and dark, on screens of any width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import resources

from onebit.report.text import escape
from onebit.version import __version__

STYLE = resources.files("onebit.report").joinpath("style.css").read_text()


def page(title: str, sections: Iterable[str]) -> str:
    """The whole file."""
    body = "\n".join(section for section in sections if section)
    # Whatever names and texts a run's files may hold: nothing in the page can run or be fetched.
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
{body}
<footer>Made by onebit {escape(__version__)}. Point at a line or a square to read its number.</footer>
</body>
</html>
"""


def section(title: str, *parts: str) -> str:
    """A heading and what is below it; nothing if that is nothing."""
    content = "".join(part for part in parts if part)
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""


def part(title: str, *parts: str) -> str:
    """The same, one step lower."""
    content = "".join(part for part in parts if part)
    return f"<h3>{escape(title)}</h3>{content}" if content else ""


def paragraph(text: str) -> str:
    """A line of text."""
    return f"<p>{escape(text)}</p>"


def grid(*figures: str, small: bool = False) -> str:
    """Figures side by side, as many as there is room for."""
    shown = "".join(figure for figure in figures if figure)
    return f'<div class="grid{" small" if small else ""}">{shown}</div>' if shown else ""


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """A table; the first `left` columns hold words, the others numbers."""
    head = "".join(_cell("th", text, number < left) for number, text in enumerate(headings))
    body = "".join(
        f"<tr>{''.join(_cell('td', text, number < left) for number, text in enumerate(row))}</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def folded(title: str, content: str, *, is_open: bool = False, kind: str = "") -> str:
    """What is shown when its title is clicked."""
    if not content:
        return ""
    return (
        f'<details class="{kind}"{" open" if is_open else ""}><summary>{escape(title)}</summary>{content}</details>'
    )


def _cell(tag: str, text: str, is_left: bool) -> str:
    side = ' class="left"' if is_left else ""
    return f"<{tag}{side}>{escape(text)}</{tag}>"
