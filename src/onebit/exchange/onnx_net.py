"""A packed net as an ONNX model of standard operators. ONNX has no 1-bit convolution: bits are floats there."""

from __future__ import annotations

import json
from collections.abc import Mapping

import onnx
from onnx import helper

from onebit.exchange.onnx_nodes import CONVERSIONS
from onebit.exchange.onnx_writer import Writer, float_info
from onebit.exchange.packed_weights import PackedWriter
from onebit.graph import INPUT
from onebit.modelfile import Model
from onebit.version import __version__

OPSET, IR_VERSION = 17, 8  # old enough for every program that reads it
ANY = "N"  # a batch of any size


def onnx_model(model: Model, batch: int | str = ANY, *, packed: bool = False) -> onnx.ModelProto:
    """The ONNX model of a packed net.

    packed   its bits stay packed in the file, and operators unpack them when it is loaded
    """
    writer = PackedWriter(model) if packed else Writer(model)
    made = assembled(writer, batch, {"": OPSET})
    onnx.checker.check_model(made, full_check=True)
    return made


def assembled(writer: Writer, batch: int | str, domains: Mapping[str, int]) -> onnx.ModelProto:
    """What a writer makes of its net: the graph, with the shape of every value, and what is known about the net.

    domains   of operators, with their versions
    """
    model = writer.model
    for node in model.graph.nodes:
        CONVERSIONS[node.op](writer, node)
    *inner, output = (node.name for node in model.graph.nodes)
    for name in inner:
        writer.say_shape(name, (batch, *model.values[name].shape))
    graph = helper.make_graph(
        writer.nodes,
        "net",
        [float_info(INPUT, (batch, *model.graph.input_shape))],
        [float_info(output, (batch, *model.values[output].shape))],
        writer.constants,
        model.description,
        writer.shapes,
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    made = helper.make_model(
        graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="onebit", producer_version=__version__
    )
    helper.set_model_props(made, _about(model))
    return made


def _about(model: Model) -> dict[str, str]:
    """Properties of the model: how a picture becomes its input, and the names of its outputs."""
    told: dict[str, str] = {}
    if model.preprocessing is not None:
        told["onebit.preprocessing"] = json.dumps(model.preprocessing._asdict())
    if model.classes is not None:
        told["onebit.classes"] = json.dumps(model.classes, ensure_ascii=False)
    return told
