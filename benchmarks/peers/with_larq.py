"""Larq Compute Engine: TFLite with 1-bit convolutions, by its prebuilt interpreter.

`import larq_compute_engine` would import TensorFlow, which only its converter needs. The interpreter and the schema
are taken from the package's folder, and `tflite_file` does the converter's work.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from onebit.modelfile import read_model

from .runner import CannotRunError, Floats, Job, Runner, Ways
from .tflite_file import tflite_model


def bits(job: Job) -> Ways:
    """The net, by each of the engine's kernels; float operations by TFLite's own or by XNNPACK."""
    model = read_model(job.file)
    if not any(node.op == "bconv2d" and model.values[node.inputs[0]].kind == "bits" for node in model.graph.nodes):
        raise CannotRunError("has no convolution of floats with 1-bit kernels")
    content = tflite_model(model, job.batch, _part("mlir/python/tflite_schema.py"))
    interpreter = _part("tflite/python/interpreter_wrapper_lite.so").LiteInterpreter

    def way(*, indirect: bool, xnnpack: bool) -> Callable[[], Runner]:
        def make() -> Runner:
            net = interpreter(content, job.threads, False, indirect, xnnpack)  # False: no reference kernels
            return Runner(lambda x: net.predict([x]), _enter, _leave)

        return make

    return {
        "im2col": way(indirect=False, xnnpack=False),
        "indirect": way(indirect=True, xnnpack=False),
        "im2col, XNNPACK": way(indirect=False, xnnpack=True),
        "indirect, XNNPACK": way(indirect=True, xnnpack=True),
    }


def _enter(images: Floats) -> Floats:
    """Channels last, turned by 180 degrees: see `tflite_file`."""
    return np.ascontiguousarray(images[:, :, ::-1, ::-1].transpose(0, 2, 3, 1))


def _leave(outputs: list[Floats]) -> Floats:
    made = outputs[0]
    return made.transpose(0, 3, 1, 2)[:, :, ::-1, ::-1] if made.ndim == 4 else made


def _part(path: str) -> ModuleType:
    """A module of the package, without the package's own `__init__`."""
    package = importlib.util.find_spec("larq_compute_engine")
    if package is None or not package.submodule_search_locations:
        raise CannotRunError("larq_compute_engine is not installed")
    file = Path(package.submodule_search_locations[0]) / path
    spec: Any = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
