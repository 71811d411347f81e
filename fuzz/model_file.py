"""Fuzzes the reader of model files: whatever the bytes are, it reads a model or raises ModelFileError.

    python fuzz/model_file.py -atheris_runs=20000       some seconds
    python fuzz/model_file.py -max_total_time=3600      an hour

An input is the bytes of a file (if its first byte is even), or a description in JSON for the tensors of a sound
file: bytes alone would seldom come past the JSON. What is read is also run, if that is not much work. Options are
libFuzzer's; a folder as the last argument keeps what was found.
"""

from __future__ import annotations

import copy
import json
import random
import struct
import sys
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["onebit"]):
    import numpy as np
    from safetensors.numpy import load, save

    from onebit.checking import multiply_adds, padded
    from onebit.errors import ModelFileError
    from onebit.modelfile import KEY, Model, pack_model, unpack_model
    from onebit.reference import Reference
    from onebit.summary import summarize

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from wire_models import wire_models

FILES = [pack_model(model) for model in wire_models()]
TENSORS = [load(content) for content in FILES]


def description_of(content: bytes) -> bytes:
    """The JSON of a file's graph."""
    size = struct.unpack("<Q", content[:8])[0]
    text: str = json.loads(content[8 : 8 + size])["__metadata__"][KEY]
    return text.encode()


def is_small(model: Model) -> bool:
    """Whether running it takes little time and memory: the limits of the file allow much more."""
    work = sum(multiply_adds(node, model.values) for node in model.graph.nodes)
    read = sum(padded(node, model.values).size for node in model.graph.nodes)
    return work + read + sum(value.size for value in model.values.values()) < 1 << 20


def test_one_input(data: bytes) -> None:
    """What libFuzzer calls."""
    if not data:
        return
    content = data[1:]
    if data[0] % 2:
        text = content.decode("utf-8", "ignore")
        content = bytes(save(TENSORS[data[0] // 2 % len(TENSORS)], {KEY: text}))
    try:
        model = unpack_model(content)
    except ModelFileError as error:
        if "\n" in str(error) or len(str(error)) > 4000:
            raise RuntimeError(f"not one clear line: {error}") from error
        return
    summarize(model)
    if pack_model(unpack_model(pack_model(model))) != pack_model(model):
        raise RuntimeError("a model that is not what it was, written and read again")
    if is_small(model):
        with np.errstate(all="ignore"):
            Reference(model)(np.ones((1, *model.graph.input_shape), np.float32))


ODD = (
    0,
    -1,
    1,
    2,
    255,
    1024,
    65537,
    2**31,
    2**63,
    2**200,
    0.5,
    -0.0,
    1e308,
    True,
    None,
    "",
    "input",
    [],
    {},
    [1, 1],
)


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Every other time something in the tree of a description becomes something odd; else libFuzzer has its way."""
    rng = random.Random(seed)  # noqa: S311 no secret
    if len(data) > 1 and data[0] % 2 and rng.random() < 0.5:
        try:
            tree = json.loads(data[1:])
            for _ in range(rng.choice((1, 1, 2, 5))):
                _change_something(tree, rng)
            text = json.dumps(tree).encode()
        except (ValueError, RecursionError):
            text = b""
        if 0 < len(text) < max_size:
            return data[:1] + text
    mutated: bytes = atheris.Mutate(data, max_size)
    return mutated


def _change_something(tree: Any, rng: random.Random) -> None:
    places = [(tree, key) for key in _keys(tree)]
    for holder, key in places:  # grows while it goes: the whole tree
        places += [(holder[key], inner) for inner in _keys(holder[key])]
    if not places:
        return
    holder, key = rng.choice(places)
    other, where = rng.choice(places)
    what = rng.random()
    if what < 0.15:
        del holder[key]
    elif what < 0.3 and isinstance(holder, list):
        holder.insert(rng.randrange(len(holder) + 1), json.loads(json.dumps(holder[key])))
    elif what < 0.6:
        holder[key] = json.loads(json.dumps(other[where]))
    else:
        holder[key] = copy.deepcopy(rng.choice(ODD))  # itself, changed later, could come to hold itself


def _keys(tree: Any) -> list[Any]:
    return list(tree) if isinstance(tree, dict) else list(range(len(tree))) if isinstance(tree, list) else []


def main() -> None:
    """Begin from sound files and descriptions."""
    import tempfile

    with tempfile.TemporaryDirectory() as seeds:
        for number, content in enumerate(FILES):
            (Path(seeds) / f"file{number}").write_bytes(b"\0" + content)
            (Path(seeds) / f"text{number}").write_bytes(bytes([2 * number + 1]) + description_of(content))
        atheris.Setup([sys.argv[0], "-max_len=16384", *sys.argv[1:], seeds], test_one_input, custom_mutator=mutate)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
