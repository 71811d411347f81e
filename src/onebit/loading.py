"""`onebit.load`: a model file, ready to run."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Literal, overload

from onebit.engine import Engine
from onebit.errors import UserError
from onebit.modelfile import read_model
from onebit.native import AUTO, Threads, usable_threads
from onebit.reference import Reference


@overload
def load(
    path: str | Path, *, threads: Threads = 1, isa: str = "auto", engine: Literal["native"] = "native"
) -> Engine: ...
@overload
def load(
    path: str | Path, *, threads: Threads = 1, isa: str = "auto", engine: Literal["reference"]
) -> Reference: ...
def load(
    path: str | Path, *, threads: Threads = 1, isa: str = "auto", engine: Literal["native", "reference"] = "native"
) -> Engine | Reference:
    """A net from a .onebit file, to be called with images: `logits = onebit.load("net.onebit")(images)`.

    path     of the file; 'zoo:NAME' is a net that comes with the package (`onebit.zoo.list()`)
    images   float32, (N, channels, height, width), prepared as `net.model.preprocessing` says
    threads  cores that a call uses; the same bits with any number of them. 'auto' (or 0, or None): all that this
             process may use. If it may use fewer than asked for, it uses those, and warns
    isa      the kernels of the native engine: 'avx512', 'avx2', 'neon', 'scalar', or 'auto': $ONEBIT_ISA, or the
             fastest that can run
    engine   'native': from bits, fast; 'reference': the NumPy interpreter, short and slow

    Needs no torch. A file that is not sound raises `onebit.ModelFileError`. If the native engine is not there, that
    is an error, too: the reference runs only where it is asked for.
    """
    if engine == "native":
        count, remark = usable_threads(threads)
        if remark:
            warnings.warn(remark, stacklevel=2)
        return Engine(read_model(path), isa, count)
    if engine != "reference":
        raise UserError(f"engine={engine!r}: use 'native' or 'reference'")
    if isa != "auto":
        raise UserError("isa= chooses kernels of the native engine; the reference has none")
    if threads not in (1, 0, None, AUTO):  # 'all' is one, here
        raise UserError("threads= is for the native engine; the reference has one")
    return Reference(read_model(path))
