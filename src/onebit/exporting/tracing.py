"""The forward pass of a net as a list of operations: `torch.export`, with every 1-bit layer kept as one of them."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind

from onebit.console import counted
from onebit.convolution import QuantizedConv2d
from onebit.errors import ExportError
from onebit.methods import METHODS


@torch.library.custom_op("onebit::layer", mutates_args=())
def _layer_op(x: Tensor, name: str, shape: list[int]) -> Tensor:  # noqa: ARG001
    """Stands for the 1-bit layer of that name while a net is traced: one node, with its source line."""
    return x.new_zeros((len(x), *shape))


@_layer_op.register_fake
def _(x: Tensor, name: str, shape: list[int]) -> Tensor:  # noqa: ARG001
    return x.new_empty((x.shape[0], *shape))


LAYER = "onebit.layer"


class Traced(NamedTuple):
    """The operations in order, the constants that they read, and the 1-bit layers by name."""

    graph: fx.Graph
    constants: dict[str, Tensor]
    input_name: str
    layers: dict[str, QuantizedConv2d]


def trace(model: nn.Module, example: Tensor) -> Traced:
    """Follow the forward pass of a batch of images like the example, for any number of them."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, QuantizedConv2d)}
    # A batch of 1 would be taken as fixed: torch treats sizes 0 and 1 as special.
    like = next((p for p in model.parameters() if p.is_floating_point()), example)
    two = example[:1].detach().to(like).expand(2, *example.shape[1:]).contiguous()
    with _as_operations(layers), _quiet():
        try:
            program = torch.export.export(model, (two,), dynamic_shapes=({0: Dim.AUTO},), strict=False)
            if any(_works_in_place(node) for node in program.graph.nodes):
                program = program.run_decompositions({})  # makes it functional; takes as long as the export itself
        except ExportError:
            raise
        except Exception as error:
            raise ExportError(
                f"the forward pass of {type(model).__name__} can't be followed: {_told(error)}"
            ) from error
    return Traced(program.graph, _constants(program), _input_name(program), layers)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warnings about its insides, its log and the graphs that it prints before it raises."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # torch has handlers at many of its loggers, and makes more of them meanwhile
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _works_in_place(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


@contextmanager
def _as_operations(layers: dict[str, QuantizedConv2d]) -> Iterator[None]:
    """Within, a 1-bit layer's forward pass is the one operation `onebit::layer`."""
    for name, layer in layers.items():
        if type(layer) not in METHODS.values() or "forward" in vars(layer):
            raise ExportError(
                f"layer {name!r} ({type(layer).__name__}) has a forward pass of its own, which can't be exported"
            )
    for name, layer in layers.items():
        layer.__dict__["forward"] = _forward_of(name, layer)
    try:
        yield
    finally:
        for layer in layers.values():
            layer.__dict__.pop("forward", None)


def _forward_of(name: str, layer: QuantizedConv2d) -> Any:
    def forward(x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[1] != layer.in_channels:
            raise ExportError(
                f"layer {name!r} takes images of {counted(layer.in_channels, 'channel')}, not {list(x.shape[1:])}"
            )
        made: Tensor = _layer_op(x, name, [layer.out_channels, *layer.output_size(x.shape[2], x.shape[3])])
        return made

    return forward


def _input_name(program: ExportedProgram) -> str:
    given = [spec for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    names = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    (name,) = [spec.arg.name for spec in given]
    if isinstance(names[name].meta["val"].shape[0], int):
        raise ExportError(
            "the net works for one batch size only: use x.shape[0] or -1 for it, not len(x) or a number"
        )
    return str(name)


def _constants(program: ExportedProgram) -> dict[str, Tensor]:
    """Parameters, buffers and other fixed tensors, by the names that the graph has for them."""
    constants = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind is not InputKind.USER_INPUT:
            target = str(spec.target)
            found = program.state_dict[target] if target in program.state_dict else program.constants[target]
            constants[spec.arg.name] = found.detach().cpu()
    return constants


def _told(error: Exception) -> str:
    """The line that says it: torch's messages are long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = lines[0] if lines else type(error).__name__
    if "data-dependent" in told:
        told = "it depends on the values of tensors, as in `if x.sum() > 0` or `x.max().item()`"
    where = next((line for line in reversed(lines) if line.startswith("File ") and "/torch/" not in line), "")
    return f"{told[:300]}{' at ' + where if where else ''}"
