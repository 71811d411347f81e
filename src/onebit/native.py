"""The compiled part of the engine: finding it, and the kernels that this machine can run."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Literal

import numpy as np

from onebit.console import counted
from onebit.errors import UserError
from onebit.machine import cores

ISAS = ("avx512", "avx2", "neon", "scalar")  # the fastest first
ISA_VARIABLE = "ONEBIT_ISA"
AUTO = "auto"  # as many threads as this process may use cores; 0 and None are the same

Threads = int | Literal["auto"] | None


def native() -> ModuleType:
    """The module; raises UserError if it is missing or broken. Nothing else is taken in its place."""
    try:
        from onebit import _native
    except ImportError as error:
        raise UserError(
            f"the native engine can't be loaded ({error}): install onebit again (from its sources that needs a "
            "C and C++ compiler), or ask for the slow one with load(path, engine='reference')"
        ) from error
    return _native


def chosen_isa(isa: str) -> str:
    """The name of the kernels to run: what is asked for, or $ONEBIT_ISA, or the fastest that is there."""
    has_isa = native().has_isa
    wanted, source = isa, f"isa={isa!r}"
    if isa == "auto" and os.environ.get(ISA_VARIABLE):
        wanted = os.environ[ISA_VARIABLE]
        source = f"${ISA_VARIABLE}={wanted}"
    there = [name for name in ISAS if has_isa(name)]
    if wanted == "auto":
        return there[0]
    if wanted not in ISAS:
        raise UserError(f"{source}: there are auto, {', '.join(ISAS)}; this machine can run {', '.join(there)}")
    if wanted not in there:
        raise UserError(f"{source}: this machine can't run it; it can run {', '.join(there)}")
    return wanted


def usable_threads(threads: Threads, source: str = "") -> tuple[int, str]:
    """How many threads a net gets of those that are asked for, and a remark if there are fewer ("" if not).

    source   what was written, for errors and the remark: such as '--threads 9'

    More than there are cores would only take them from each other (docs/decisions/0019-threads.md). Raises
    UserError for what is no number of threads.
    """
    source = source or f"threads={threads!r}"
    most = cores()
    if threads is None or (isinstance(threads, str) and threads == AUTO):
        return most, ""
    if isinstance(threads, np.integer):
        threads = int(threads)
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 0:
        raise UserError(f"{source}: use a whole number, or '{AUTO}' (or 0) for all cores")
    if threads > most:
        used = f"{most} {'is' if most == 1 else 'are'} used"
        return most, f"{source}: this process may use {counted(most, 'core')}, so {used}"
    return threads or most, ""


def why_isa(isa: str) -> str:
    """Where the choice of `chosen_isa` came from, in words."""
    if isa != "auto":
        return "as asked"
    wanted = os.environ.get(ISA_VARIABLE, "")
    return "the fastest that this machine can run" if wanted in {"", "auto"} else f"${ISA_VARIABLE}"
