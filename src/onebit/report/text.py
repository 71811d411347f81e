"""Names and texts from files, as text of a page."""

from __future__ import annotations

import html

from onebit.console import printable


def escape(text: str) -> str:
    """Neither tags nor characters that a reader would not see, or that SVG does not allow."""
    return html.escape(printable(text))
