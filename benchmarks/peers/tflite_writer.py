"""TFLite models, put together from Larq Compute Engine's own copy of the schema: without TensorFlow."""

from __future__ import annotations

from typing import Any

import flatbuffers
import numpy as np
from flatbuffers import flexbuffers

from onebit.graph import Array

CUSTOM = 32  # the code of operations that TFLite itself does not have


class _Builder(flatbuffers.Builder):  # type: ignore[misc]
    def StartVector(self, elemSize: int, numElems: int, alignment: int) -> Any:  # noqa: N802 its names
        """Begin a vector. The schema wants buffers at multiples of 16 bytes, which the generated code forgets."""
        return super().StartVector(elemSize, numElems, max(16, alignment))


class TfliteWriter:
    """Collects tensors and operators; tensors are numbers, as in the file. schema: the generated module."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self.tensors: list[Any] = []
        self.buffers: list[Any] = [schema.BufferT()]  # the first is that of tensors without data
        self.codes: list[Any] = []
        self.operators: list[Any] = []

    def tensor(self, name: str, shape: tuple[int, ...], *, bits: bool = False) -> int:
        """A value: floats, or bits in 32-bit words."""
        made = self.schema.TensorT()
        made.name, made.shape = name, list(shape)
        made.type = self.schema.TensorType.INT32 if bits else self.schema.TensorType.FLOAT32
        self.tensors.append(made)
        return len(self.tensors) - 1

    def constant(self, name: str, array: Array) -> int:
        """A tensor with data: float32 or int32."""
        number = self.tensor(name, array.shape, bits=array.dtype == np.int32)
        buffer = self.schema.BufferT()
        buffer.data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        self.buffers.append(buffer)
        self.tensors[number].buffer = len(self.buffers) - 1
        return number

    def put(self, op: str, inputs: list[int], output: int, options: str = "", **fields: Any) -> int:
        """An operator of TFLite: its name, and that of its options in the schema."""
        made = self._operator(getattr(self.schema.BuiltinOperator, op), None, inputs, output)
        if options:
            made.builtinOptionsType = getattr(self.schema.BuiltinOptions, options)
            made.builtinOptions = getattr(self.schema, f"{options}T")()
            for name, value in fields.items():
                setattr(made.builtinOptions, name, value)
        return output

    def put_custom(self, op: str, inputs: list[int], output: int, options: dict[str, int] | None = None) -> int:
        """An operator that the engine adds to TFLite's."""
        made = self._operator(CUSTOM, op, inputs, output)
        if options:
            made.customOptions = np.frombuffer(flexbuffers.Dumps(options), np.uint8)
        return output

    def _operator(self, code: int, custom: str | None, inputs: list[int], output: int) -> Any:
        made = self.schema.OperatorT()
        made.opcodeIndex, made.inputs, made.outputs = self._code(code, custom), inputs, [output]
        self.operators.append(made)
        return made

    def _code(self, code: int, custom: str | None) -> int:
        for at, known in enumerate(self.codes):
            if (known.builtinCode, known.customCode) == (code, custom):
                return at
        made = self.schema.OperatorCodeT()
        made.builtinCode = made.deprecatedBuiltinCode = code
        made.customCode = custom
        self.codes.append(made)
        return len(self.codes) - 1

    def model(self, inputs: list[int], outputs: list[int]) -> bytes:
        """The bytes of the file."""
        graph, model = self.schema.SubGraphT(), self.schema.ModelT()
        graph.tensors, graph.operators = self.tensors, self.operators
        graph.inputs, graph.outputs = inputs, outputs
        model.version, model.subgraphs = 3, [graph]
        model.operatorCodes, model.buffers = self.codes, self.buffers
        builder = _Builder(1 << 20)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())
