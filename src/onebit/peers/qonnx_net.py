"""A QONNX model, run by the package qonnx."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
from qonnx.core import onnx_exec
from qonnx.core.modelwrapper import ModelWrapper

from onebit.graph import INPUT
from onebit.peers.runner import Runner
from onebit.runnable import Floats


def session(content: bytes) -> Runner:
    """A model of QONNX, for batches of one image; operator by operator, so slowly."""
    model = ModelWrapper(onnx.load_from_string(content))

    def run(x: Floats) -> Floats:
        usual = onnx_exec.qonnx_make_model
        # It makes little models of the newest format that onnx knows, which ONNX Runtime may not know yet.
        onnx_exec.qonnx_make_model = partial(usual, ir_version=model.model.ir_version)
        try:
            outputs = onnx_exec.execute_onnx(model, {INPUT: x})
        finally:
            onnx_exec.qonnx_make_model = usual
        return np.asarray(outputs[model.graph.output[0].name])

    return Runner(run)
