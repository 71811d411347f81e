"""Fuzzes the reader of model files: whatever the bytes are, it reads a model or raises ModelFileError.

    python fuzz/model_file.py -atheris_runs=20000       some seconds
    python fuzz/model_file.py -max_total_time=3600      an hour

An input is the bytes of a file (if its first byte is even), or a description in JSON for the tensors of a sound
file: bytes alone would seldom come past the JSON. What is read is also run, by every engine, if that is not much
work. Options are libFuzzer's; a folder as the last argument keeps what was found.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import atheris

import onebit  # noqa: F401 its path is known from here on

# The finder of an editable install would keep atheris from instrumenting what it finds; plain paths do not.
sys.meta_path = [finder for finder in sys.meta_path if "Redirect" not in type(finder).__name__]

with atheris.instrument_imports(include=["onebit"]):
    import numpy as np
    from safetensors.numpy import load, save

    from onebit import fusing
    from onebit.container import KEY
    from onebit.engine import Engine
    from onebit.errors import ModelFileError
    from onebit.machine import cores
    from onebit.modelfile import Model, pack_model, unpack_model
    from onebit.native import ISAS, native
    from onebit.reference import Reference
    from onebit.summary import summarize

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from mutations import change_something, description_of, is_small
from wire_models import Chain, wire_models


def rows_to_a_pool() -> Model:
    """A convolution of floats before a pool."""
    net = Chain(3, 12, 9)
    net.add("conv2d", tensors={"weight": net.floats(5, 3, 3, 3), "bias": net.floats(5)}, padding=[1, 1, 1, 1])
    net.add("relu").add("max_pool2d", kernel_size=[3, 3], stride=[2, 2], padding=[1, 1], dilation=[2, 1])
    model: Model = net.model()
    return model


fusing.LARGE = 0  # what is run here is small; convolutions are to hand rows to pools all the same
FILES = [pack_model(model) for model in [*wire_models(), rows_to_a_pool()]]
TENSORS = [load(content) for content in FILES]
# Behind a checksum nothing would be found but that it is wrong.
BARE = [bytes(save(load(content), {KEY: description_of(content).decode()})) for content in FILES]


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
            x = np.ones((1, *model.graph.input_shape), np.float32)
            made = Reference(model)(x)
            for isa in filter(native().has_isa, ISAS):
                found = Engine(model, isa)(x)
                if found.shape != made.shape:
                    raise RuntimeError("an output of another shape")
                if not np.array_equal(Engine(model, isa, min(2, cores()))(x), found, equal_nan=True):
                    raise RuntimeError("two threads make other bits than one")


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Every other time something in the tree of a description becomes something odd; else libFuzzer has its way."""
    rng = random.Random(seed)  # noqa: S311 no secret
    if len(data) > 1 and data[0] % 2 and rng.random() < 0.5:
        try:
            tree = json.loads(data[1:])
            for _ in range(rng.choice((1, 1, 2, 5))):
                change_something(tree, rng)
            text = json.dumps(tree).encode()
        except (ValueError, RecursionError):
            text = b""
        if 0 < len(text) < max_size:
            return data[:1] + text
    mutated: bytes = atheris.Mutate(data, max_size)
    return mutated


def main() -> None:
    """Begin from sound files and descriptions."""
    import tempfile

    with tempfile.TemporaryDirectory() as seeds:
        for number, (content, bare) in enumerate(zip(FILES, BARE, strict=True)):
            (Path(seeds) / f"checked{number}").write_bytes(b"\0" + content)
            (Path(seeds) / f"file{number}").write_bytes(b"\0" + bare)
            (Path(seeds) / f"text{number}").write_bytes(bytes([2 * number + 1]) + description_of(content))
        atheris.Setup([sys.argv[0], "-max_len=16384", *sys.argv[1:], seeds], test_one_input, custom_mutator=mutate)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
