"""A net for the native engine: steps with numbers for names, their weights laid out as the C side takes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from onebit.arena import Lifetime, place
from onebit.checking import first_alike, work_of
from onebit.errors import UserError
from onebit.fusing import LAYERS, Activation, Step, at_most_of, fuse, needed
from onebit.graph import INPUT, Array, Node, Value
from onebit.modelfile import Model
from onebit.native import native
from onebit.operations import default_attributes
from onebit.weights import float_weight, kernels_and_masks, modulated_kernels
from onebit.zeros import zeros_decide

if TYPE_CHECKING:
    from onebit._native import Net

KINDS = ("float", "bits", "levels", "sums")  # numbered as in onebit.h, and so are these:
POOLS = ("max_pool2d", "avg_pool2d", "avg_pool2d with padding")
BINARIES = ("add", "multiply")
UNARIES = ("sigmoid", "hardsigmoid", "hardswish", "silu", "tanh", "elu", "abs", "softmax")
PADDINGS = ("zeros", "reflect", "replicate", "circular")

PASSED = (1 << 64) - 1  # the offset of a value without a place: rows that one step hands to the next

LONG = 1 << 32  # work of an image: with more it may take some seconds, and is to be interrupted within
MAX_WORKSPACE = 1 << 33  # bytes for the values of one image


class Compiled(NamedTuple):
    """A net that is ready to run, the steps that it is made of, and how many each of them is on the C side."""

    net: Net
    steps: list[Step]
    native_steps: list[int]


def compile_net(model: Model, isa: str, threads: int = 1) -> Compiled:
    """The net of a model for the native engine."""
    steps = fuse(model)
    compiling = _Compiling(model, steps, isa, threads)
    return Compiled(compiling.net, steps, compiling.native_steps)


def sides_of(value: Value) -> tuple[int, int, int]:
    """Channels, height, width; features are the channels of one pixel."""
    channels, height, width = (*value.shape, 1, 1)[:3]
    return channels, height, width


def bytes_of(value: Value) -> int:
    """Of one image, as the engine keeps it."""
    channels, height, width = sides_of(value)
    if value.kind == "bits":
        return height * width * 8 * -(-channels // 64)
    return height * width * channels * (1 if value.kind == "levels" else 4)


class _Compiling:
    def __init__(self, model: Model, steps: list[Step], isa: str, threads: int) -> None:
        self.values = model.values
        self.zeros_decide = zeros_decide(model.graph.nodes)
        self.first_alike = first_alike(model.graph, model.values)
        self.laid_out: dict[tuple[str, bool], int] = {}  # which step on the C side has weights laid out
        self.net: Net = native().Net(isa)
        names = [INPUT, *(name for step in with_makers(steps) for name in step.makes)]
        self.number = {name: number for number, name in enumerate(names)}
        offsets = place_values(model, steps)
        for name in names:
            value = self.values[name]
            low = value.low if value.kind == "levels" else 0
            self.net.value(KINDS.index(value.kind), *sides_of(value), offsets.get(name, PASSED), low)
        self.native_steps = [self._add(step) for step in steps]
        check_memory(self.net.workspace_bytes(threads))
        work = sum(work_of(node, model.values) for node in model.graph.nodes)
        self.net.finish(self.number[model.graph.nodes[-1].name], threads, work > LONG)

    def _add(self, step: Step) -> int:
        """Add a step to the net, and say how many it is there."""
        before = self.net.steps
        if step.maker:
            self._add(step.maker)
        compile_step = _STEPS.get(step.node.op, _Compiling.pointwise)
        if step.has_tail and step.node.op not in LAYERS:
            compile_step = _Compiling.pointwise
        try:
            self._share_or(compile_step, step)
        except ValueError as error:
            raise UserError(f"the engine can't run {step.node.name!r}: {error}") from error
        except MemoryError:
            raise UserError(
                f"there is not enough memory for the weights of {step.node.name!r}, or they are beyond the 4 GiB "
                "that the engine takes for those of a net"
            ) from None
        return self.net.steps - before

    def _share_or(self, compile_step: Callable[[_Compiling, Step], None], step: Step) -> None:
        """Equal weights are laid out once."""
        first = self.first_alike.get(step.node.name)
        layout = (first or "", step.node.name in self.zeros_decide)
        if first and layout in self.laid_out:
            self.net.again(self.laid_out[layout], self.number[step.reads[0]], self.output(step))
            return
        self.laid_out[layout] = self.net.steps
        compile_step(self, step)

    def ends(self, step: Step) -> tuple[int, int]:
        """The numbers of what a step without a tail reads and makes."""
        return self.number[step.reads[0]], self.number[step.node.name]

    def output(self, step: Step) -> Any:
        tail = step.tail
        channels = self.values[step.node.name].channels

        def number(name: str | None) -> int:
            return -1 if name is None else self.number[name]

        def activation(of: Activation | None) -> tuple[Array | None, float, float]:
            return (None, -math.inf, math.inf) if of is None else (of.slope, of.low, of.high)

        return native().Output(
            channels=channels,
            scale=tail.scale,
            shift=tail.shift,
            first=activation(tail.first),
            residual=number(tail.residual),
            second=activation(tail.second),
            numbers_to=number(tail.numbers),
            bits_to=number(tail.bits),
            thresholds=tail.thresholds,
            at_most=tail.at_most,
            levels_to=number(tail.levels),
            per_unit=tail.per_unit,
            high=tail.high,
        )

    def pointwise(self, step: Step) -> None:
        self.net.pointwise(self.number[step.reads[0]], self.output(step))

    def bconv2d(self, step: Step) -> None:
        node, value = step.node, self.values[step.reads[0]]
        planes = value.channels // node.attributes["groups"]
        if value.kind == "float":
            self.convolve(step, modulated_kernels(node, planes))
            return
        kernels, masks = kernels_and_masks(node, planes)
        self.net.bconv2d(
            self.number[step.reads[0]],
            **window(node, (node.attributes["out_channels"], *kernels.shape[1:])),
            signs=np.ascontiguousarray(kernels),
            projections=node.attributes["projections"],
            masks=masks,
            output=self.output(step),
        )

    def conv2d(self, step: Step) -> None:
        if self.values[step.reads[0]].kind == "levels":
            self.convolve_levels(step, step.node.tensors["weight"])
        else:
            self.convolve(step, float_weight(step.node))

    def convolve(self, step: Step, weight: Array) -> None:
        self.net.conv2d(
            self.number[step.reads[0]],
            **window(step.node, weight.shape),
            weight=np.ascontiguousarray(weight),
            keeps_zeros=step.node.name in self.zeros_decide,
            output=self.output(step),
        )

    def convolve_levels(self, step: Step, weight: Array) -> None:
        self.net.level_conv2d(
            self.number[step.reads[0]],
            **window(step.node, weight.shape),
            weight=np.ascontiguousarray(weight),
            output=self.output(step),
        )

    def linear(self, step: Step) -> None:
        if self.values[step.reads[0]].kind == "levels":
            self.convolve_levels(step, step.node.tensors["weight"][:, :, None, None])
        else:
            self.convolve(step, float_weight(step.node)[:, :, None, None])

    def pool(self, step: Step) -> None:
        node, at = step.node, step.node.attributes
        kind = POOLS.index(node.op) + bool(at.get("count_include_pad"))
        rows, columns = at["padding"]
        self.net.pool(
            self.number[node.inputs[0]],
            tuple(at["kernel_size"]),
            tuple(at["stride"]),
            tuple(at.get("dilation", (1, 1))),
            (rows, rows, columns, columns),
            kind,
            sides_of(self.values[node.name])[1:],
            self.output(step),
        )

    def adaptive_mean(self, step: Step) -> None:
        sizes = sides_of(self.values[step.node.name])[1:]
        self.net.adaptive_mean(self.number[step.reads[0]], sizes, self.output(step))

    def binary(self, step: Step) -> None:
        left, right = (self.number[name] for name in step.reads)
        self.net.binary(left, right, self.number[step.node.name], BINARIES.index(step.node.op))

    def unary(self, step: Step) -> None:
        self.net.unary(*self.ends(step), UNARIES.index(step.node.op))

    def threshold(self, step: Step) -> None:
        at_most = at_most_of(step.node, self.values[step.reads[0]].channels)
        self.net.threshold(*self.ends(step), step.node.tensors["thresholds"], at_most)

    def concatenate(self, step: Step) -> None:
        to = 0
        for name in step.reads:
            channels = self.values[name].channels
            self.net.copy(self.number[name], 0, self.number[step.node.name], to, channels)
            to += channels

    def slice(self, step: Step) -> None:
        start, stop = step.node.attributes["start"], step.node.attributes["stop"]
        read, made = self.ends(step)
        self.net.copy(read, start, made, 0, stop - start)

    def pad(self, step: Step) -> None:
        at = step.node.attributes
        self.net.pad(*self.ends(step), tuple(at["padding"]), PADDINGS.index(at["mode"]))

    def reshape(self, step: Step) -> None:
        self.net.reshape(*self.ends(step))


_STEPS: dict[str, Callable[[_Compiling, Step], None]] = {
    "bconv2d": _Compiling.bconv2d,
    "conv2d": _Compiling.conv2d,
    "linear": _Compiling.linear,
    "max_pool2d": _Compiling.pool,
    "avg_pool2d": _Compiling.pool,
    "adaptive_avg_pool2d": _Compiling.adaptive_mean,
    "threshold": _Compiling.threshold,
    "concatenate": _Compiling.concatenate,
    "slice": _Compiling.slice,
    "pad": _Compiling.pad,
    "reshape": _Compiling.reshape,
    **dict.fromkeys(BINARIES, _Compiling.binary),
    **dict.fromkeys(UNARIES, _Compiling.unary),
}


def check_memory(workspace_bytes: int) -> None:
    """A small file can describe values of any size."""
    if workspace_bytes > MAX_WORKSPACE:
        raise UserError(
            f"the net needs {workspace_bytes / 1e9:.1f} GB of memory for one image; the engine gives it "
            f"{MAX_WORKSPACE / 1e9:.1f} GB at most"
        )


def window(node: Node, weight_shape: tuple[int, ...]) -> dict[str, Any]:
    """Kernel size, stride, dilation, padding, groups and outputs, as the engine takes them."""
    at = default_attributes("conv2d") if node.op == "linear" else node.attributes
    sizes = {name: tuple(at[name]) for name in ("stride", "dilation", "padding")}
    return {"kernel": weight_shape[2:], **sizes, "groups": at["groups"], "outputs": weight_shape[0]}


def with_makers(steps: list[Step]) -> list[Step]:
    """All steps, also those that hand their rows to others."""
    return [each for step in steps for each in (step.maker, step) if each is not None]


def place_values(model: Model, steps: list[Step]) -> dict[str, int]:
    """The byte at which each value begins. What may be written over something that is read shares its bytes."""
    values, output = model.values, model.graph.nodes[-1].name
    last_read = {INPUT: 0} | {name: index for index, step in enumerate(steps) for name in step.needs}
    last_read[output] = len(steps)
    lifetimes = {INPUT: Lifetime(bytes_of(values[INPUT]), 0, last_read[INPUT])}
    owner: dict[str, str] = {}  # whose bytes a value is written over
    for index, step in enumerate(steps):
        for name in step.makes:
            last = last_read.get(name, index)
            over = _overwritten(step, name, values)
            if over is not None and over != INPUT and last_read[over] == index:
                owner[name] = owner.get(over, over)
                lifetimes[owner[name]] = lifetimes[owner[name]]._replace(last=last)
            else:
                lifetimes[name] = Lifetime(bytes_of(values[name]), index, last)
    offsets = place(lifetimes)
    return offsets | {name: offsets[first] for name, first in owner.items()}


def largest_pair(model: Model) -> int:
    """Bytes of the two largest values that live at the same time, if the nodes of a net run one after another."""
    nodes = needed(model.graph.nodes)
    last_read = {name: index for index, node in enumerate(nodes) for name in node.inputs}
    living = [(-bytes_of(model.values[INPUT]), last_read.get(INPUT, 0))]  # a heap: the largest first, till when
    most = 0
    for index, node in enumerate(nodes):
        heappush(living, (-bytes_of(model.values[node.name]), last_read.get(node.name, index)))
        pair: list[tuple[int, int]] = []
        while living and len(pair) < 2:
            largest = heappop(living)
            if largest[1] >= index:
                pair.append(largest)
        for each in pair:
            heappush(living, each)
        most = max(most, -sum(size for size, _ in pair))
    return most


def _overwritten(step: Step, name: str, values: dict[str, Value]) -> str | None:
    """Which value a step may write over, if any: number by number, each is read before it is written."""
    residual, read = step.tail.residual, step.reads[0]
    if not step.has_tail or name != step.tail.numbers:
        return None
    if step.node.op in LAYERS:  # a layer reads its own input in another order
        return residual if residual != read else None
    return None if values[read].kind == "bits" else read
