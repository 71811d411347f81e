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
        """The value of a node: +1 where x - t >= 0, which says the same as x >= t for finite x; else -1."""
        if thresholds is not None:
            x = self.between("Sub", [x, self.by_channel(node, "thresholds", thresholds)], node, "above")
        self._bipolar(x, node.name)

    def levels(self, node: Node, x: str, low: int, high: int) -> None:
        """The value of a node: whole numbers. Quant has bounds of its own; a Clip before it makes others."""
        bits, signed, narrow = range_of(low, high)
        most = (1 << (bits - signed)) - 1
        if (low, high) != (signed * (narrow - most - 1), most):
            x = self.between("Clip", [x, self.number(low), self.number(high)], node, "clipped")
        self._quantized(x, node.name, (low, high))

    def _bipolar(self, x: str, output: str) -> str:
        """+1 or -1 of a value."""
        return self.put("BipolarQuant", [x, self.number(1)], output, domain=DOMAIN)

    def _quantized(self, x: str, output: str, reach: tuple[int, int], scale: str = "") -> str:
        """Whole numbers that reach at least so far, halves to the even one."""
        bits, signed, narrow = range_of(*reach)
        settings = {"signed": signed, "narrow": narrow, "rounding_mode": "ROUND"}
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
            return self._whole(node, stored.astype(np.float32))
        sides = [1] * (stored.ndim - 1)
        scale = self.constant(node, "weight_scale", node.tensors["weight_scale"].reshape(-1, *sides))
        if not (node.tensors["weight_scale"] > 0).all():  # Quant wants scales above 0
            whole = self._whole(node, stored.astype(np.float32))
            return self._shaped("Mul", [whole, scale], node, "scaled_weight", stored.shape)
        return self._whole(node, float_weight(node), scale)

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

    def _whole(self, node: Node, weight: Array, scale: str = "") -> str:
        """A weight that is stored in 8 bits; of as few bits as it needs."""
        stored, made = node.tensors["weight"], self.new_name(f"{node.name}/weight")
        reach = (min(int(stored.min()), -1), max(int(stored.max()), 1))
        self._quantized(self.constant(node, "stored", weight), made, reach, scale)
        self.say_shape(made, weight.shape)
        return made

    def _shaped(self, op: str, inputs: list[str], node: Node, role: str, shape: tuple[int, ...]) -> str:
        made = self.between(op, inputs, node, role)
        self.say_shape(made, shape)
        return made


def range_of(low: int, high: int) -> tuple[int, int, int]:
    """Of Quant, for whole numbers from low to high: bits, whether signed, whether as far below 0 as above it."""
    if low >= 0:
        return high.bit_length(), 0, 0
    bits = max(high, -low - 1).bit_length() + 1
    return bits, 1, int(-low < 1 << (bits - 1))
