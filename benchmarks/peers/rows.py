"""The rows of a table: who runs what, and with whose outputs its own are compared."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Row(NamedTuple):
    """A contestant.

    peer          by which `--peers` chooses it
    net           'same': the net of the file; 'twin': its float twin; 'int8': the same, its other layers in 8 bits
    entry         module and function of this package that make it ready
    environment   where it runs: of `environments.PACKAGES`, or None for the interpreter that runs now
    threads       of a call; 0: as many as the table is for
    """

    peer: str
    name: str
    net: Literal["same", "twin", "int8"]
    entry: str
    environment: str | None = None
    threads: int = 0


# In order: the int8 model that ONNX Runtime's quantiser makes is also what OpenVINO reads.
ROWS = (
    Row("torch", "torch fp32", "twin", "with_torch:fp32"),
    Row("torch", "torch fp32, +-1 in floats", "same", "with_torch:fp32"),
    Row("onnxruntime", "ONNX Runtime fp32", "twin", "with_onnxruntime:fp32", "onnxruntime"),
    Row("onnxruntime", "ONNX Runtime fp32, +-1 in floats", "same", "with_onnxruntime:fp32", "onnxruntime"),
    Row("onnxruntime", "ONNX Runtime int8", "twin", "with_onnxruntime:int8", "onnxruntime"),
    Row("openvino", "OpenVINO fp32", "twin", "with_openvino:fp32", "openvino"),
    Row("openvino", "OpenVINO fp32, +-1 in floats", "same", "with_openvino:fp32", "openvino"),
    Row("openvino", "OpenVINO int8", "twin", "with_openvino:int8", "openvino"),
    Row("openvino", "OpenVINO binary", "same", "with_openvino:binary", "openvino"),
    Row("larq", "Larq Compute Engine", "same", "with_larq:bits", "larq-compute-engine"),
    Row("onebit", "onebit", "same", "with_onebit:packed"),
)
PEERS = tuple(dict.fromkeys(row.peer for row in ROWS))
BASELINE, JUDGE, OURS = (
    ROWS[0],
    ROWS[1],
    ROWS[-1],
)  # of ratios; of outputs of the same net; the row that this is for
ALONE = OURS._replace(name="onebit, 1 thread", threads=1)  # in tables for several threads
# Nets have layers that are not 1-bit: `onebit.export(int8_layers=True)`.
ROWS_OF_NETS = (*ROWS, Row("onebit", "onebit, other layers in 8 bits", "int8", "with_onebit:packed"))
# For nets whose inputs are 8 bits: beside others in 8 bits, and what judges them.
EIGHT_BITS = tuple(
    row
    for row in ROWS_OF_NETS
    if row in {BASELINE, JUDGE, OURS} or row.entry.endswith(":int8") or row.net == "int8"
)
