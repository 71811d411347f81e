"""`onebit.load`: a model file, ready to run."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias, overload

from onebit.container import MAX_FILE
from onebit.engine import Engine
from onebit.errors import ModelFileError, UserError
from onebit.modelfile import Model, read_model, unpack_model
from onebit.native import AUTO, Threads, usable_threads
from onebit.reference import Reference

ModelSource: TypeAlias = str | Path | bytes | bytearray | memoryview | IO[bytes]


@overload
def load(
    path: ModelSource, *, threads: Threads = 1, isa: str = "auto", engine: Literal["native"] = "native"
) -> Engine: ...
@overload
def load(
    path: ModelSource, *, threads: Threads = 1, isa: str = "auto", engine: Literal["reference"]
) -> Reference: ...
def load(
    path: ModelSource, *, threads: Threads = 1, isa: str = "auto", engine: Literal["native", "reference"] = "native"
) -> Engine | Reference:
    """A net from a .onebit file, to be called with images: `logits = onebit.load("net.onebit")(images)`.

    path     of the file; 'zoo:NAME' is a net that comes with the package (`onebit.zoo.list()`). Or what is in the
             file: its bytes, or an open file (from where it stands to its end)
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
        return Engine(_model(path), isa, count)
    if engine != "reference":
        raise UserError(f"engine={engine!r}: use 'native' or 'reference'")
    if isa != "auto":
        raise UserError("isa= chooses kernels of the native engine; the reference has none")
    if threads not in (1, 0, None, AUTO):  # 'all' is one, here
        raise UserError("threads= is for the native engine; the reference has one")
    return Reference(_model(path))


def _model(source: Any) -> Model:
    if isinstance(source, bytes | bytearray | memoryview):
        return unpack_model(bytes(source))
    if isinstance(source, str | os.PathLike):
        return read_model(source)
    if not hasattr(source, "read"):
        kinds = "its path, its bytes, or a file that is open"
        raise UserError(f"a .onebit file is expected, {kinds}, not {type(source).__name__}")
    name = getattr(source, "name", None)
    named = f"{name}: " if isinstance(name, str) else ""
    content = bytearray()
    while part := source.read(MAX_FILE + 1 - len(content)):  # a pipe may give less than is asked for
        if not isinstance(part, bytes):
            raise UserError(f"{named or 'the model file: '}it is open as text: open it as bytes, with 'rb'")
        content += part
    try:
        return unpack_model(bytes(content))
    except ModelFileError as error:
        raise ModelFileError(f"{named}{error}") from None
