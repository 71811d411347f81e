"""Files of every format that there was, as they were written then: each later version reads them (docs/format.md).

A folder for each format, and one for each change within it that readers can see. What is in one is never written
anew.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from engines import HERE
from onebit.engine import Engine
from onebit.modelfile import FORMAT, pack_model, read_model, unpack_model
from onebit.operations import OPERATIONS
from onebit.reference import Reference

ROOT = Path(__file__).parent
GOLDEN = ROOT / "golden"
FILES = sorted(GOLDEN.glob("*/*.onebit"))
each_file = pytest.mark.parametrize("file", FILES, ids=[f"{file.parent.name}/{file.stem}" for file in FILES])


def said(file):
    return json.loads((file.parent / "outputs.json").read_text())[file.stem]


def test_every_format_is_here():
    formats = {folder.name.removeprefix("format").split("-")[0] for folder in GOLDEN.iterdir()}
    assert formats == {str(number) for number in range(1, FORMAT + 1)}
    for folder in GOLDEN.iterdir():
        files = {file.stem for file in folder.glob("*.onebit")}
        assert files == set(json.loads((folder / "outputs.json").read_text()))
        assert len(files) >= 1
    assert {node.op for file in FILES for node in read_model(file).graph.nodes} == set(OPERATIONS)


@each_file
def test_it_is_as_it_was_written(file):
    assert hashlib.sha256(file.read_bytes()).hexdigest() == said(file)["sha256"]


@each_file
@pytest.mark.parametrize("isa", [*HERE, "reference"])
def test_it_is_read_and_makes_what_it_made(file, isa):
    model, wanted = read_model(file), said(file)
    shape = (wanted["count"], *model.graph.input_shape)
    x = np.random.default_rng(wanted["seed"]).standard_normal(shape).astype(np.float32)
    found = Reference(model)(x) if isa == "reference" else Engine(model, isa)(x)
    np.testing.assert_allclose(found.reshape(len(x), -1), wanted["outputs"], rtol=1e-5, atol=1e-5)


@each_file
def test_it_can_be_written_anew(file):
    model = read_model(file)
    again = unpack_model(pack_model(model))
    assert again.values == model.values
    assert (again.producer, again.classes, again.preprocessing) == (
        model.producer,
        model.classes,
        model.preprocessing,
    )
