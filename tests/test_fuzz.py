"""The fuzz target of the model file, for a short time; CONTRIBUTING.md says how to run it for long."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from onebit.modelfile import pack_model, unpack_model
from onebit.operations import OPERATIONS
from onebit.reference import Reference
from wire_models import wire_models

ROOT = Path(__file__).parent.parent


def test_the_seeds_have_every_operation_and_run():
    models = wire_models()
    assert {node.op for model in models for node in model.graph.nodes} == set(OPERATIONS)
    for model in models:
        found = unpack_model(pack_model(model))
        x = np.random.default_rng(0).normal(size=(2, *model.graph.input_shape)).astype(np.float32)
        assert np.array_equal(Reference(found)(x), Reference(model)(x))


def test_fuzzing_finds_nothing(tmp_path):
    pytest.importorskip("atheris", reason="atheris is not installed (it is for Linux and macOS)")
    words = [
        sys.executable,
        str(ROOT / "fuzz" / "model_file.py"),
        "-atheris_runs=4000",
        f"-artifact_prefix={tmp_path}/",
    ]
    found = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert found.returncode == 0, found.stderr[-3000:]
    assert "Done" in found.stderr + found.stdout
    assert re.search(r"cov: \d{3,} ", found.stderr), "nothing is instrumented: it would search in the dark"
