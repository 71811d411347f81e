"""The container of a .onebit file: a safetensors file with a text, its tensors, and a checksum of both.

The header is written here and not by safetensors, which puts two keys of metadata in any order: the same net
is to be the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from onebit.errors import ModelFileError
from onebit.graph import Array
from onebit.jsonfields import parse_json, plain_text

KEY, CHECKSUM = "onebit.model", "onebit.sha256"  # of the metadata
MAX_FILE = 1 << 31  # bytes
MAX_TEXT = 1 << 23  # bytes of the header, graph included
MAX_SIDES = 4  # of a tensor
DTYPES = {"U8": np.uint8, "I8": np.int8, "I32": np.int32, "F16": np.float16, "F32": np.float32}


def pack_container(text: str, tensors: dict[str, Array]) -> bytes:
    """The bytes of a file."""
    plain = memoryview(save(tensors))  # which orders and aligns the tensors
    behind = 8 + int.from_bytes(plain[:8], "little")
    metadata = {KEY: text, CHECKSUM: checksum_of(text, plain[behind:])}
    header = {"__metadata__": metadata} | json.loads(bytes(plain[8:behind]))
    stated = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    stated += b" " * (-len(stated) % 8)
    return b"".join((len(stated).to_bytes(8, "little"), stated, plain[behind:]))


def checksum_of(text: str, tensors: memoryview) -> str:
    """SHA-256 of the text and of all that is behind the header."""
    found = hashlib.sha256(text.encode())
    found.update(tensors)
    return found.hexdigest()


def unpack_container(content: bytes) -> tuple[str, dict[str, Array]]:
    """The text and the tensors in the bytes of a file; raises ModelFileError for what is not whole."""
    if len(content) > MAX_FILE:
        raise ModelFileError(f"larger than the {MAX_FILE} bytes that a model file may have")
    text, stated, behind = _metadata(content)
    tensors = _tensors(content)  # first: safetensors refuses halves of characters, which have no UTF-8
    if stated is not None and stated != checksum_of(text, memoryview(content)[behind:]):
        raise ModelFileError("damaged since it was written (its sha256 is another): copy or export it again")
    return text, tensors


def _metadata(content: bytes) -> tuple[str, Any, int]:
    """The text, the checksum if there is one, and where the header ends. `deserialize` keeps them to itself."""
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 or size > len(content) - 8:
        raise ModelFileError(
            "not a .onebit file, or only its beginning: copy or export it again"
            if content
            else "not a .onebit file: it is empty"
        )
    if size > MAX_TEXT:
        raise ModelFileError(f"its header has {size} bytes, and at most {MAX_TEXT} are allowed")
    header = parse_json(content[8 : 8 + size], "its header")
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    text = metadata.get(KEY) if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(text, str):
        hint = "; `onebit export` makes one of it" if isinstance(metadata, dict) and "onebit" in metadata else ""
        raise ModelFileError(f"a safetensors file, but not of a packed net{hint}")
    return text, metadata.get(CHECKSUM), 8 + size


def _tensors(content: bytes) -> dict[str, Array]:
    try:
        found: list[Any] = deserialize(content)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise ModelFileError(
            f"not a .onebit file, or damaged: copy or export it again (as safetensors: {str(error)[:100]})"
        ) from None
    tensors = {}
    for name, tensor in found:
        if tensor["dtype"] not in DTYPES:
            raise ModelFileError(f"{_named(name)} has a dtype that model files don't have")
        dtype: Any = DTYPES[tensor["dtype"]]
        shape = tensor["shape"]
        if len(shape) > MAX_SIDES:
            raise ModelFileError(f"{_named(name)} has {len(shape)} sides, and at most {MAX_SIDES} are allowed")
        if 0 in shape:
            raise ModelFileError(f"{_named(name)} has shape {shape}: it is empty")
        numbers = np.frombuffer(tensor["data"], np.dtype(dtype).newbyteorder("<")).astype(dtype, copy=False)
        tensors[name] = numbers.reshape(shape)
    return tensors


def _named(tensor: str) -> str:
    return f"tensor {plain_text(tensor, 'the name of a tensor')!r}"
