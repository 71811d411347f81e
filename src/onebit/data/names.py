"""Names of classes: what can be printed and kept in files. Looked at before anything is trained with them."""

from __future__ import annotations

from collections.abc import Iterable

from onebit.console import is_unicode, printable
from onebit.errors import UserError

LONGEST = 1024  # characters, as in model files


def check_class_names(names: Iterable[str], where: str, mending: str) -> None:
    """Raise UserError for a name that a checkpoint or a model file could not hold; `mending` says what to do."""
    for name in names:
        if wrong := _what_is_wrong(name):
            raise UserError(f"{where}: the class name '{printable(name)[:100]}' {wrong}: {mending}")


def _what_is_wrong(name: str) -> str:
    if not is_unicode(name):
        return "is not UTF-8 text"
    if not name.isprintable():
        return "has characters that can't be printed"
    return f"has more than {LONGEST} characters" if len(name) > LONGEST else ""
