"""Weights that are as small in an ONNX file as in a .onebit file: operators unpack them.

A program that folds constants, as ONNX Runtime does, unpacks them once, when it loads the file.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import TensorProto

from onebit.exchange.onnx_writer import Writer
from onebit.graph import Node
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
        J = node.attributes["projections"]
        kernels, planes, *taps = bconv_shape(node, self.model.values[node.inputs[0]])
        in_order = self._signs(node, "kernels", (kernels, *taps, planes))  # of the bits: by kernel, tap, plane
        weight = self.between("Transpose", [in_order], node, "weight_of_kernels", perm=[0, 3, 1, 2])
        if J == 1 and not {"masks", "modulation"} & set(node.tensors):
            return weight
        # Output o * J + j is kernel o times what there is of mask j and modulation j.
        made = self._reshaped(node, weight, (kernels, 1, planes, *taps), "each_kernel")
        made = self.between("Expand", [made, self.wholes(1, J, 1, 1, 1)], node, "projections")
        if "masks" in node.tensors:
            masks = self._signs(node, "masks", (1, J, 1, *taps))
            made = self.between("Mul", [made, masks], node, "masked")
        if "modulation" in node.tensors:
            modulation = self.constant(node, "modulation", node.tensors["modulation"].reshape(1, J, 1, *taps))
            made = self.between("Mul", [made, modulation], node, "modulated")
        return self._reshaped(node, made, (kernels * J, planes, *taps), "weight")

    def _signs(self, node: Node, role: str, shape: tuple[int, ...]) -> str:
        """Packed bits as +1 and -1, the lowest bit of a byte first."""

        def then(op: str, inputs: list[str], what: str, **attributes: Any) -> str:
            return self.between(op, inputs, node, f"{role}_{what}", **attributes)

        stored = self.constant(node, role, node.tensors[role].reshape(-1, 1))
        places = self.shared("places", np.arange(8, dtype=np.uint8).reshape(1, 8))
        # To the right alone: OpenVINO does not drop the bits that a shift to the left pushes out of a byte.
        lowest = then("BitShift", [stored, places], "lowest", direction="RIGHT")
        bits = then("Mod", [lowest, self.shared("byte_2", np.array(2, np.uint8))], "bits")
        zero_or_one = then("Cast", [bits], "zero_or_one", to=FLOAT)
        zero_or_two = then("Mul", [zero_or_one, self.number(2)], "zero_or_two")
        signs = then("Sub", [zero_or_two, self.number(1)], "signs")
        if (count := math.prod(shape)) % 8:
            row = then("Reshape", [signs, self.wholes(-1)], "row")
            signs = then("Slice", [row, self.wholes(0), self.wholes(count)], "counted")
        return then("Reshape", [signs, self.wholes(*shape)], "in_order")

    def _reshaped(self, node: Node, x: str, shape: tuple[int, ...], role: str) -> str:
        return self.between("Reshape", [x, self.wholes(*shape)], node, role)
