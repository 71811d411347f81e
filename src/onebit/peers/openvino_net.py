"""A packed net in OpenVINO, in 32-bit floats."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import openvino as ov
from openvino.preprocess import PrePostProcessor

from onebit.exchange.onnx_net import onnx_model
from onebit.modelfile import Model
from onebit.peers.runner import Runner, Ways
from onebit.runnable import Floats

_SETTINGS = {
    "NUM_STREAMS": 1,
    "PERFORMANCE_HINT": "LATENCY",
    "INFERENCE_PRECISION_HINT": "f32",
}


def ways(model: Model, images: Floats, threads: int = 1) -> Ways:
    """The net, for batches such as this one."""
    content = onnx_model(model, len(images)).SerializeToString()
    return in_both_layouts("", lambda: read(content), threads)


@cache
def _core() -> ov.Core:
    """One for the whole process, which is never let go.

    Each sets a stack for signals and puts back the one before it. Where they end in the order in which they began,
    a stack is set that is no longer there, and the next Ctrl-C is a segmentation fault (OpenVINO 2026.4).
    """
    return ov.Core()


def read(content: bytes) -> ov.Model:
    """A model of ONNX."""
    return _core().read_model(content)


def in_both_layouts(name: str, model: Callable[[], ov.Model], threads: int = 1) -> Ways:
    """Compiled for images of either layout."""
    return {
        f"{name}channels first": lambda: _compiled(model(), threads),
        f"{name}channels last": lambda: _channels_last(model(), threads),
    }


def _channels_last(model: ov.Model, threads: int) -> Runner:
    """The net for images that lie pixel by pixel: OpenVINO changes layouts where it is best for it."""
    layouts = PrePostProcessor(model)
    makes_images = len(model.output().shape) == 4
    for end in (layouts.input(), *([layouts.output()] if makes_images else [])):
        end.tensor().set_layout(ov.Layout("NHWC"))
        end.model().set_layout(ov.Layout("NCHW"))
    run = _compiled(layouts.build(), threads).run
    return Runner(
        run,
        lambda images: np.ascontiguousarray(images.transpose(0, 2, 3, 1)),
        lambda outputs: outputs[0].transpose(0, 3, 1, 2) if makes_images else outputs[0],
    )


def _compiled(model: ov.Model, threads: int) -> Runner:
    settings = _SETTINGS | {"INFERENCE_NUM_THREADS": threads}
    request = _core().compile_model(model, "CPU", settings).create_infer_request()

    def run(x: Floats) -> Any:
        return request.infer([x], share_inputs=True, share_outputs=True)

    return Runner(run, leave=lambda outputs: outputs[0])
