"""Weights that are as small in an ONNX file as in a .onebit file: operators unpack them.

A program that folds constants, as ONNX Runtime does, unpacks them once, when it loads the file.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from onebit.exchange.onnx_writer import Writer
from onebit.graph import Array, Node
from onebit.packing import unpack_signs
from onebit.shapes import bconv_shape

FLOAT = TensorProto.FLOAT


class PackedWriter(Writer):
    """Writes bits as bytes of eight, other weights as they are stored."""

    def weight(self, node: Node) -> str:
        """The weight of a `linear`, `conv2d` or `bconv2d`: floats, when operators have unpacked it."""
        return self._bits(node) if node.op == "bconv2d" else self._narrow(node)

    def _narrow(self, node: Node) -> str:
        """A weight of 32, 16 or 8 bits, the latter with scales."""
        stored = self.constant(node, "stored", node.tensors["weight"])
        if node.tensors["weight"].dtype == np.float32:
            return stored
        made = self.between("Cast", [stored], node, "weight", to=FLOAT)
        if "weight_scale" not in node.tensors:
            return made
        sides = [1] * (node.tensors["weight"].ndim - 1)
        scale = self.constant(node, "weight_scale", node.tensors["weight_scale"].reshape(-1, *sides))
        return self.between("Mul", [made, scale], node, "scaled_weight")

    def _bits(self, node: Node) -> str:
        """Kernels (outputs, planes, height, width) of +-1, times masks and modulation if there are any."""
        value, J = self.model.values[node.inputs[0]], node.attributes["projections"]
        kernels, planes, *taps = bconv_shape(node, value)
        shape = (kernels, *taps, planes)  # the order of the bits: by kernel, tap, plane
        signs = self._reshaped(node, self._signs(node, math.prod(shape)), shape, "kernels_in_order")
        weight = self.between("Transpose", [signs], node, "kernels", perm=[0, 3, 1, 2])
        factors = self._factors(node, J, taps)
        if factors is None:
            return weight
        # Output o * J + j is kernel o times factors j.
        apart = self._reshaped(node, weight, (kernels, 1, planes, *taps), "each_kernel")
        all_ = self.between("Mul", [apart, self.constant(node, "factors", factors)], node, "projected")
        return self._reshaped(node, all_, (kernels * J, planes, *taps), "weight")

    def _signs(self, node: Node, count: int) -> str:
        """The packed bits as +1 and -1 in a row, the lowest bit of a byte first."""
        stored = self.constant(node, "packed", node.tensors["kernels"].reshape(-1, 1))
        places = self.shared("places", np.arange(8, dtype=np.uint8).reshape(1, 8))
        # To the right alone: OpenVINO does not drop the bits that a shift to the left pushes out of a byte.
        lowest = self.between("BitShift", [stored, places], node, "lowest", direction="RIGHT")
        bits = self.between("Mod", [lowest, self.shared("byte_2", np.array(2, np.uint8))], node, "bits")
        zero_or_one = self.between("Cast", [bits], node, "zero_or_one", to=FLOAT)
        zero_or_two = self.between("Mul", [zero_or_one, self.number(2)], node, "zero_or_two")
        signs = self.between("Sub", [zero_or_two, self.number(1)], node, "signs")
        if count % 8 == 0:
            return signs
        row = self._reshaped(node, signs, (-1,), "row")
        return self.between("Slice", [row, self.wholes(0), self.wholes(count)], node, "counted")

    def _factors(self, node: Node, J: int, taps: list[int]) -> Array | None:
        """What multiplies the taps of kernels (1, J, 1, height, width); None if nothing does."""
        if J == 1 and not {"masks", "modulation"} & set(node.tensors):
            return None
        made = np.ones((J, *taps), np.float32)
        if "masks" in node.tensors:
            made *= unpack_signs(node.tensors["masks"], (J, *taps))
        if "modulation" in node.tensors:
            made *= node.tensors["modulation"]
        return made.reshape(1, J, 1, *taps)

    def _reshaped(self, node: Node, x: str, shape: tuple[int, ...], role: str) -> str:
        return self.between("Reshape", [x, self.wholes(*shape)], node, role)
