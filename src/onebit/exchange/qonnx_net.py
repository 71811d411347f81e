"""A packed net as a QONNX model, for flows to FPGAs: ONNX with operators that say what is quantized, and to what.

BipolarQuant makes +1 of what is at least 0 and -1 of the rest; Quant makes whole numbers of some bits. Values
behind them are floats that hold nothing else.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import shape_inference

from onebit.exchange.onnx_net import OPSET, assembled
from onebit.exchange.onnx_writer import Writer
from onebit.graph import Array, Node
from onebit.modelfile import Model
from onebit.weights import dense_kernels, float_weight

DOMAIN, VERSION = "qonnx.custom_op.general", 1


def qonnx_model(model: Model, batch: int = 1) -> onnx.ModelProto:
    """The QONNX model of a packed net, for batches of one size: what reads such files wants to know it."""
    made = assembled(QuantWriter(model), batch, {"": OPSET, DOMAIN: VERSION})
    onnx.checker.check_model(made)
    # The shapes of what is in between, too: who runs the operators one by one wants to know them.
    return shape_inference.infer_shapes(made, check_type=True, strict_mode=True, data_prop=True)


class QuantWriter(Writer):
    """Writes bits and levels, of weights and of what flows, behind the operators that make them."""

    def bits(self, node: Node, x: str, thresholds: Array | None) -> None:
        """The value of a node: +1 where x - t >= 0, which says the same as x >= t in floats, too; else -1."""
        if thresholds is not None:
            x = self.between("Sub", [x, self.by_channel(node, "thresholds", thresholds)], node, "above")
        self._bipolar(x, node.name)

    def levels(self, node: Node, x: str, low: int, high: int) -> None:
        """The value of a node: whole numbers. Quant has bounds of its own; a Clip before it makes others."""
        signed = low < 0
        bits = bits_for(np.array([low, high])) if signed else high.bit_length()
        most = (1 << (bits - signed)) - 1
        if (low, high) != (-most if signed else 0, most):
            x = self.between("Clip", [x, self.number(low), self.number(high)], node, "clipped")
        self._quantized(x, node.name, bits, signed=signed)

    def _bipolar(self, x: str, output: str) -> str:
        """+1 or -1 of a value."""
        return self.put("BipolarQuant", [x, self.number(1)], output, domain=DOMAIN)

    def _quantized(self, x: str, output: str, bits: int, *, signed: bool, scale: str = "") -> str:
        """Whole numbers of some bits, halves to the even one; signed ones are as far below 0 as above it."""
        settings = {"signed": int(signed), "narrow": int(signed), "rounding_mode": "ROUND"}
        inputs = [x, scale or self.number(1), self.number(0), self.number(bits)]
        return self.put("Quant", inputs, output, domain=DOMAIN, **settings)

    def weight(self, node: Node) -> str:
        """The weight of a `linear`, `conv2d` or `bconv2d`; what is stored in 16 or 32 bits is not quantized."""
        if node.op == "bconv2d":
            return self._bits(node)
        stored = node.tensors["weight"]
        if stored.dtype != np.int8:
            return super().weight(node)
        if "weight_scale" not in node.tensors:
            return self._whole(node, stored.astype(np.float32), bits_for(stored))
        sides = [1] * (stored.ndim - 1)
        scale = self.constant(node, "weight_scale", node.tensors["weight_scale"].reshape(-1, *sides))
        if not (node.tensors["weight_scale"] > 0).all():  # Quant wants scales above 0
            whole = self._whole(node, stored.astype(np.float32), bits_for(stored))
            return self._shaped("Mul", [whole, scale], node, "scaled_weight", stored.shape)
        return self._whole(node, float_weight(node), bits_for(stored), scale)

    def _bits(self, node: Node) -> str:
        planes = self.model.values[node.inputs[0]].channels // node.attributes["groups"]
        signs = dense_kernels(node, planes)
        made = self.new_name(f"{node.name}/weight")
        self._bipolar(self.constant(node, "signs", signs.astype(np.float32)), made)
        self.say_shape(made, signs.shape)
        if "modulation" not in node.tensors:
            return made
        modulation = np.tile(node.tensors["modulation"], (len(signs) // len(node.tensors["modulation"]), 1, 1))
        factors = self.constant(node, "modulation", modulation[:, None])
        return self._shaped("Mul", [made, factors], node, "modulated_weight", signs.shape)

    def _whole(self, node: Node, weight: Array, bits: int, scale: str = "") -> str:
        made = self.new_name(f"{node.name}/weight")
        self._quantized(self.constant(node, "stored", weight), made, bits, signed=True, scale=scale)
        self.say_shape(made, weight.shape)
        return made

    def _shaped(self, op: str, inputs: list[str], node: Node, role: str, shape: tuple[int, ...]) -> str:
        made = self.between(op, inputs, node, role)
        self.say_shape(made, shape)
        return made


def bits_for(whole: Array) -> int:
    """Of signed numbers that reach as far as these, as far below 0 as above it."""
    return int(np.abs(whole.astype(np.int64)).max(initial=1)).bit_length() + 1
