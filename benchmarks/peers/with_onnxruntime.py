"""ONNX Runtime: fp32, and int8 as its own quantiser makes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
from onnxruntime import quantization

from onebit.exchange.onnx_net import onnx_model
from onebit.graph import INPUT
from onebit.modelfile import read_model
from onebit.peers import onnxruntime_net

from .runner import INT8_FILES, Floats, Job, Runner, Ways

_CALIBRATION_IMAGES = 32


def fp32(job: Job) -> Ways:
    """The net in 32-bit floats."""
    return onnxruntime_net.ways(read_model(job.file), job.images[: job.batch], job.threads)


def int8(job: Job) -> Ways:
    """The net in 8 bits: convolutions alone, or all that can be.

    Which is faster depends on the net: a PReLU is not done in 8 bits, and going to and fro takes its time.
    """

    def way(name: str) -> Callable[[], Runner]:
        def make() -> Runner:
            file = job.folder / INT8_FILES[name]
            if not file.exists():
                _quantize(job, file, ["Conv", "Gemm"] if name == "convolutions only" else None)
            return onnxruntime_net.session(file.read_bytes(), job.threads)

        return make

    return {name: way(name) for name in INT8_FILES}


class _Images(quantization.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, job: Job) -> None:
        images = job.images[: max(_CALIBRATION_IMAGES, job.batch)]
        self.batches = iter([images[at : at + job.batch] for at in range(0, len(images), job.batch)])

    def get_next(self) -> dict[str, Floats] | None:
        """The next batch, as ONNX Runtime asks for it."""
        batch = next(self.batches, None)
        return None if batch is None else {INPUT: batch}


def _quantize(job: Job, file: Path, operations: list[str] | None) -> None:
    """Static quantisation with QDQ nodes. Weights have 7 bits: with 8, AVX2's products of 8 bits would saturate."""
    source = job.folder / "float.onnx"
    onnx.save(onnx_model(read_model(job.file), job.batch), source)
    quantization.quantize_static(
        source,
        file,
        _Images(job),
        quant_format=quantization.QuantFormat.QDQ,
        op_types_to_quantize=operations,
        per_channel=True,
        reduce_range=True,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
    )
