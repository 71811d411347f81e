"""A packed net in ONNX Runtime, in 32-bit floats."""

from __future__ import annotations

import onnxruntime as ort

from onebit.exchange.onnx_net import onnx_model
from onebit.graph import INPUT
from onebit.modelfile import Model
from onebit.peers.runner import Runner, Ways
from onebit.runnable import Floats


def ways(model: Model, images: Floats, threads: int = 1) -> Ways:
    """The net, for batches such as this one."""
    return {"": lambda: session(onnx_model(model, len(images)).SerializeToString(), threads)}


def session(content: bytes, threads: int = 1) -> Runner:
    """A model of ONNX."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    net = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(x: Floats) -> list[Floats]:
        made: list[Floats] = net.run(None, {INPUT: x})
        return made

    return Runner(run, leave=lambda outputs: outputs[0])
