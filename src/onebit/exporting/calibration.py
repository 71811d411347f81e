"""W1A8: the float inputs of 1-bit convolutions as whole numbers of 8 bits, with one scale for a tensor.

A scale comes from calibration images (the largest value that they make) or, without images, from the batch norms
that the values come from (how far their distribution reaches).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from onebit.errors import ExportError, UserError
from onebit.exporting.building import Builder, Wide, narrowed
from onebit.exporting.lowering import Lowered, Statistics
from onebit.graph import INPUT, Array, Graph, Node
from onebit.modelfile import Model
from onebit.reference import Reference
from onebit.runnable import Floats, checked_input

REACH = 7.0  # standard deviations of a batch norm's channel that its range covers: its tails are long


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
    return {"per_unit": float(np.float32(high / max(range_.high, 1e-6))), "low": low, "high": high}


def _ranges_by_images(lowered: Lowered, names: list[str], images: Iterable[Floats]) -> dict[str, Range]:
    graph = Graph(lowered.builder.graph.input_shape, [narrowed(node) for node in lowered.builder.graph.nodes])
    model = Model(graph)
    reference = Reference(model)
    found: dict[str, Range] = {}
    for batch in images:
        try:
            checked_input(batch, model)
        except UserError as error:
            raise ExportError(f"calibration: {error}") from None
        for name, value in chain([(INPUT, batch)], ((node.name, made) for node, made in reference.values(batch))):
            if name in names:
                found[name] = _covering(value, found.get(name, Range(0.0, signed=False)), name)
    if not found:
        raise ExportError("there are no calibration images")
    if dead := [name for name, (high, _) in found.items() if high == 0]:
        raise ExportError(f"calibration: the images make nothing but 0 at {dead[0]!r}: use real ones")
    return found


def _covering(value: Array, before: Range, name: str) -> Range:
    if not np.isfinite(value).all():
        raise ExportError(f"calibration: the images make numbers that are not finite at {name!r}")
    return Range(max(before.high, float(np.abs(value).max())), before.signed or bool((value < 0).any()))


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
    return float(ends.max())


_KEEP = {"relu", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "concatenate", "add", "clamp", "pad", "slice"}


def _carried(node: Node, known: dict[str, Any]) -> Statistics | None:
    """What a sum of independent values, or a value that only shrinks (but for steep slopes), is like at most."""
    of = [known.get(name) for name in node.inputs]
    if node.op not in _KEEP | {"prelu", "hardswish", "silu"} or any(each is None for each in of):
        return None
    if node.op == "slice":
        part = slice(node.attributes["start"], node.attributes["stop"])
        return Statistics(of[0].mean[part], of[0].deviation[part])  # type: ignore[union-attr]
    means, deviations = [each.mean for each in of if each], [each.deviation for each in of if each]
    if node.op == "concatenate":
        return Statistics(np.concatenate(means), np.concatenate(deviations))
    mean: Wide = sum(means[1:], means[0])
    deviation: Wide = np.sqrt(sum((np.square(each) for each in deviations[1:]), np.square(deviations[0])))
    steepest = np.maximum(1, np.abs(node.tensors["slope"])) if node.op == "prelu" else 1
    return Statistics(mean * steepest, deviation * steepest)
