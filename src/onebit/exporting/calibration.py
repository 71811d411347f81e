"""W1A8: the float inputs of 1-bit convolutions as whole numbers of 8 bits, with one scale for a tensor.

A scale comes from calibration images (the range that they need) or, without images, from the batch norms that the
values come from (how far their distribution reaches).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from onebit.errors import ExportError
from onebit.exporting.building import Builder, narrowed
from onebit.exporting.lowering import Lowered, Statistics
from onebit.graph import Array, Graph, Node
from onebit.modelfile import Model
from onebit.reference import Floats, Reference

REACH = 4.0  # standard deviations of a batch norm's channel that its range covers
BINS = 2048


class Range(NamedTuple):
    """What 8 bits have to cover: 0 to high, or -high to high."""

    high: float
    signed: bool


def quantize_inputs(lowered: Lowered, images: Iterable[Floats] | None) -> None:
    """Put a `quantize` node before every 1-bit convolution of floats, in place."""
    nodes = lowered.builder.graph.nodes
    convs = [
        node for node in nodes if node.op == "bconv2d" and lowered.builder.values[node.inputs[0]].kind == "float"
    ]
    for node in convs:
        if "modulation" in node.tensors:
            raise ExportError(f"layer {node.name!r}: {node.attributes['method']} kernels are not for 8-bit inputs")
    if not convs:
        raise ExportError("activation_bits=8: no 1-bit layer of the net has float inputs")
    names = list(dict.fromkeys(node.inputs[0] for node in convs))
    ranges = _ranges_by_norms(lowered, names) if images is None else _ranges_by_images(lowered, names, images)
    rebuilt = Builder(lowered.builder.graph.input_shape)
    renamed = {name: name for name in lowered.builder.values}
    for node in nodes:
        inputs = [renamed[name] for name in node.inputs]
        if node not in convs:
            renamed[node.name] = rebuilt.add(node.op, node.name, *inputs, tensors=node.tensors, **node.attributes)
            continue
        code = _code_of(ranges[node.inputs[0]])
        levels = rebuilt.add("quantize", f"{node.name}.quantize", *inputs, **code)
        sums = rebuilt.add("bconv2d", node.name, levels, tensors=node.tensors, **node.attributes)
        renamed[node.name] = rebuilt.affine(f"{node.name}.unit", sums, 1 / code["per_unit"])
    lowered.builder, lowered.output = rebuilt, renamed[lowered.output]


def _code_of(range_: Range) -> dict[str, Any]:
    low, high = (-127, 127) if range_.signed else (0, 255)
    return {"per_unit": float(np.float32(high / range_.high)), "low": low, "high": high}


def _ranges_by_images(lowered: Lowered, names: list[str], images: Iterable[Floats]) -> dict[str, Range]:
    graph = Graph(lowered.builder.graph.input_shape, [narrowed(node) for node in lowered.builder.graph.nodes])
    reference, found = Reference(Model(graph)), {name: _Histogram() for name in names}
    count = 0
    for batch in images:
        count += len(batch)
        for node, value in reference.values(batch):
            if node.name in found:
                found[node.name].add(value)
        if "input" in found:
            found["input"].add(batch)
    if not count:
        raise ExportError("there are no calibration images")
    return {name: histogram.range() for name, histogram in found.items()}


class _Histogram:
    """Sizes of numbers; its range grows, by doubling, with what comes."""

    def __init__(self) -> None:
        self.counts, self.top, self.signed = np.zeros(BINS), 0.0, False

    def add(self, value: Array) -> None:
        sizes = np.abs(value)
        most = float(sizes.max())
        self.signed |= bool((value < 0).any())
        if self.top == 0:
            self.top = most
        while most > self.top:
            self.counts = np.concatenate([self.counts.reshape(-1, 2).sum(axis=1), np.zeros(BINS // 2)])
            self.top *= 2
        if self.top:
            self.counts += np.histogram(sizes, BINS, (0, self.top))[0]

    def range(self) -> Range:
        """The end of the range with the least squared error: what is beyond is cut, what is within is rounded."""
        if self.top == 0:
            return Range(1.0, signed=False)
        sizes = (np.arange(BINS) + 0.5) * self.top / BINS
        steps = 127 if self.signed else 255
        ends = np.arange(BINS // 64, BINS + 1) * self.top / BINS
        errors = [
            float(self.counts @ np.where(sizes > end, np.square(sizes - end), np.square(end / steps) / 12))
            for end in ends
        ]
        return Range(float(ends[int(np.argmin(errors))]), self.signed)


def _ranges_by_norms(lowered: Lowered, names: list[str]) -> dict[str, Range]:
    known = dict(lowered.statistics)
    never_negative: set[str] = set()
    for node in lowered.builder.graph.nodes:
        if node.name not in known and (found := _carried(node, known)) is not None:
            known[node.name] = found
        low = node.attributes.get("low") if node.op == "clamp" else None
        makes = node.op in {"relu", "sigmoid", "hardsigmoid"} or (low is not None and low >= 0)
        if makes or (node.op in _KEEP and never_negative.issuperset(node.inputs)):
            never_negative.add(node.name)
    for name in names:
        if name not in known:
            raise ExportError(
                f"activation_bits=8: nothing is known about the range of {name!r}, which comes from no batch norm: "
                f"pass images as calibration="
            )
    return {name: Range(_reach(known[name], name in never_negative), name not in never_negative) for name in names}


def _reach(of: Statistics, unsigned: bool) -> float:
    ends = (of.mean if unsigned else np.abs(of.mean)) + REACH * of.deviation
    return max(float(ends.max()), 1e-6)


_KEEP = {"relu", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "concatenate", "add", "clamp", "pad", "slice"}


def _carried(node: Node, known: dict[str, Any]) -> Statistics | None:
    """What a sum of independent values, or a value that only shrinks, is like at most."""
    of = [known.get(name) for name in node.inputs]
    if node.op not in _KEEP | {"prelu", "hardswish", "silu"} or any(each is None for each in of):
        return None
    if node.op == "slice":
        part = slice(node.attributes["start"], node.attributes["stop"])
        return Statistics(of[0].mean[part], of[0].deviation[part])  # type: ignore[union-attr]
    means, deviations = [each.mean for each in of if each], [each.deviation for each in of if each]
    if node.op == "concatenate":
        return Statistics(np.concatenate(means), np.concatenate(deviations))
    return Statistics(np.sum(means, axis=0), np.sqrt(np.sum(np.square(deviations), axis=0)))
