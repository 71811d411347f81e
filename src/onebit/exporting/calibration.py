"""The float inputs of layers as whole numbers of 8 bits, with one scale for a tensor.

W1A8: of 1-bit convolutions. Layers in 8 bits: of all other convolutions and linear layers, whose weights become
whole numbers, too.

A scale comes from calibration images (the largest value that they make) or, without images, from the batch norms
that the values come from (how far their distribution reaches); that of the net's input from its preprocessing.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from onebit.errors import ExportError, UserError
from onebit.exporting.building import Builder, Wide, narrowed
from onebit.exporting.lowering import Lowered, Statistics
from onebit.exporting.rounding import whole_weight
from onebit.graph import INPUT, Array, Graph, Node
from onebit.modelfile import Model, Preprocessing
from onebit.reference import Reference
from onebit.runnable import Floats, checked_input

REACH = 7.0  # standard deviations of a batch norm's channel that its range covers: its tails are long


class Range(NamedTuple):
    """What 8 bits have to cover: 0 to high, or -high to high."""

    high: float
    signed: bool


class Wanted(NamedTuple):
    """Which layers get inputs of 8 bits, and where their scales come from."""

    one_bit: bool
    others: bool
    images: Iterable[Floats] | None
    preprocessing: Preprocessing | None


def quantize_inputs(lowered: Lowered, wanted: Wanted) -> None:
    """Put a `quantize` node before every layer that is wanted and reads floats, in place."""
    nodes, values = lowered.builder.graph.nodes, lowered.builder.values
    layers = {
        node.name: node for node in nodes if values[node.inputs[0]].kind == "float" and _is_meant(node, wanted)
    }
    for node in layers.values():
        if "modulation" in node.tensors:
            raise ExportError(f"layer {node.name!r}: {node.attributes['method']} kernels are not for 8-bit inputs")
    for is_wanted, option, ops, missing in (
        (
            wanted.one_bit,
            "activation_bits=8",
            {"bconv2d"},
            "no 1-bit layer of the net has float inputs (those of W1A1 are bits already)",
        ),
        (wanted.others, "int8_layers", {"conv2d", "linear"}, "the net has no float layer for 8 bits"),
    ):
        if is_wanted and not any(node.op in ops for node in layers.values()):
            raise ExportError(f"{option}: {missing}")
    names = list(dict.fromkeys(node.inputs[0] for node in layers.values()))
    ranges = _ranges_by_norms(lowered, names, wanted) if wanted.images is None else {}
    ranges = ranges or _ranges_by_images(lowered, names, wanted.images or ())
    rebuilt = Builder(lowered.builder.graph.input_shape)
    renamed = {name: name for name in values}
    for node in nodes:
        inputs = [renamed[name] for name in node.inputs]
        if node.name in layers:
            renamed[node.name] = _in_levels(rebuilt, node, inputs[0], _code_of(ranges[node.inputs[0]]))
        else:
            renamed[node.name] = rebuilt.add(node.op, node.name, *inputs, tensors=node.tensors, **node.attributes)
    lowered.builder, lowered.output = rebuilt, renamed[lowered.output]


def _is_meant(node: Node, wanted: Wanted) -> bool:
    if node.op == "bconv2d":
        return wanted.one_bit
    is_layer = node.op in {"conv2d", "linear"} and node.attributes.get("groups", 1) == 1
    return wanted.others and is_layer and whole_weight(node) is not None


def _in_levels(builder: Builder, node: Node, x: str, code: dict[str, Any]) -> str:
    """The layer on levels of x: what it makes are sums, which a multiply-add brings back to their size."""
    levels = builder.add("quantize", f"{node.name}.quantize", x, **code)
    unit, tensors, bias = 1 / code["per_unit"], node.tensors, node.tensors.get("bias")
    if node.op != "bconv2d" and (found := whole_weight(node)) is not None:
        tensors, unit = {"weight": found[0]}, found[1] * unit
    sums = builder.add(node.op, node.name, levels, tensors=tensors, **node.attributes)
    return builder.affine(f"{node.name}.unit", sums, unit, bias)


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


def _range_of_pixels(preprocessing: Preprocessing) -> Range:
    """What pixels of 0 to 1 become."""
    mean, std = np.array(preprocessing.mean), np.array(preprocessing.std)
    if mean.shape != std.shape or (std <= 0).any():
        raise ExportError("preprocessing: use a mean and a deviation of more than 0 for each channel")
    ends = np.stack([-mean / std, (1 - mean) / std])
    return Range(float(np.abs(ends).max()), bool((ends < 0).any()))


def _ranges_by_norms(lowered: Lowered, names: list[str], wanted: Wanted) -> dict[str, Range]:
    known = dict(lowered.statistics)
    never_negative: set[str] = set()
    for node in lowered.builder.graph.nodes:
        if node.name not in known and (found := _carried(node, known)) is not None:
            known[node.name] = found
        low = node.attributes.get("low") if node.op == "clamp" else None
        makes = node.op in {"relu", "sigmoid", "hardsigmoid"} or (low is not None and low >= 0)
        if makes or (node.op in _KEEP | {"reshape"} and never_negative.issuperset(node.inputs)):
            never_negative.add(node.name)
    ranges: dict[str, Range] = {}
    for name in names:
        if name in known:
            ranges[name] = Range(_reach(known[name], name in never_negative), name not in never_negative)
        elif name == INPUT and wanted.preprocessing is not None:
            ranges[name] = _range_of_pixels(wanted.preprocessing)
        else:
            option = "activation_bits=8" if wanted.one_bit else "int8_layers"
            raise ExportError(
                f"{option}: nothing is known about the range of {name!r}, which comes from no batch norm: "
                f"pass images as calibration="
            )
    return ranges


def _reach(of: Statistics, unsigned: bool) -> float:
    ends = (of.mean if unsigned else np.abs(of.mean)) + REACH * of.deviation
    return float(ends.max())


_KEEP = {"relu", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "concatenate", "add", "clamp", "pad", "slice"}


def _carried(node: Node, known: dict[str, Any]) -> Statistics | None:
    """What a sum of independent values, or a value that only shrinks (but for steep slopes), is like at most."""
    of = [known.get(name) for name in node.inputs]
    if node.op not in _KEEP | {"prelu", "hardswish", "silu", "reshape"} or any(each is None for each in of):
        return None
    if node.op == "reshape":
        return of[0] if node.attributes["shape"] == [len(of[0].mean)] else None  # type: ignore[union-attr]
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
