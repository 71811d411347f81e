"""From a graph to the steps of the native engine: a layer and what happens to its numbers become one step.

The output stage of a step (`Tail`) is applied while its numbers are still in registers, in a fixed order:

    v = scale * v + shift; v = first(v); v = v + residual; v = second(v); store v, the bit v >= threshold, its level

`fuse` takes as many of the nodes behind a layer into its tail as fit that order. What does not fit is a step of its
own, so nothing depends on this but speed, and how often the floats of affine maps one behind another are rounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from onebit.graph import Array, Node, Value
from onebit.modelfile import Model
from onebit.packing import unpack_signs

INFINITY = float("inf")
EXACT_FLOATS = 1 << 24  # 32-bit floats hold every whole number up to here
LAYERS = ("bconv2d", "conv2d", "linear", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d")
MAKES_BITS = ("sign", "threshold")
WINDOW_POOLS = ("max_pool2d", "avg_pool2d")
LARGE = 1 << 19  # bytes: more than stays in the second cache until it is read again


@dataclass
class Activation:
    """slope * v where v < 0, if there are slopes; then at least low and at most high."""

    slope: Array | None = None
    low: float = -INFINITY
    high: float = INFINITY


@dataclass
class Tail:
    """What happens to the numbers of a step, and the names of the values that are kept of them."""

    scale: Array | None = None
    shift: Array | None = None
    first: Activation | None = None
    residual: str | None = None
    second: Activation | None = None
    numbers: str | None = None
    bits: str | None = None
    thresholds: Array | None = None
    at_most: Array | None = None
    levels: str | None = None
    per_unit: float = 1.0
    high: int = 255


@dataclass(eq=False)
class Step:
    """A node, what it reads, and its tail: of the nodes `taken` from behind it, and of itself if it is no layer.

    A node that is no layer and took nothing has no tail: it makes one value, of its name.
    """

    node: Node
    reads: tuple[str, ...]
    tail: Tail = field(default_factory=Tail)
    taken: list[Node] = field(default_factory=list)
    maker: Step | None = None  # of a pool: the convolution that hands its rows over, and reads what the pool reads

    @property
    def has_tail(self) -> bool:
        """Whether its numbers go through an output stage."""
        return self.node.op in LAYERS or bool(self.taken)

    @property
    def makes(self) -> list[str]:
        """Names of the values that are kept."""
        names = (self.tail.numbers, self.tail.bits, self.tail.levels) if self.has_tail else (self.node.name,)
        return [name for name in names if name is not None]

    @property
    def needs(self) -> list[str]:
        """Names of all values that it reads."""
        return [*self.reads, *([self.tail.residual] if self.tail.residual else [])]


def fuse(model: Model) -> list[Step]:
    """The steps of a net, in the order in which they run."""
    return _Fusing(model).steps()


class _Fusing:
    def __init__(self, model: Model) -> None:
        self.nodes = needed(model.graph.nodes)
        self.values = model.values
        self.place = {node.name: place for place, node in enumerate(self.nodes)}
        self.readers: dict[str, list[Node]] = {name: [] for name in model.values}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                self.readers[name].append(node)
        self.taken: set[str] = set()

    def steps(self) -> list[Step]:
        placed = [self._step(node) for node in self.nodes if node.name not in self.taken]
        steps = [step for _, step in sorted(placed, key=lambda entry: entry[0])]
        makers = {step.tail.numbers: step for step in steps if self._passes_rows(step)}
        for step in steps:
            if step.reads[0] in makers and step.node.op in WINDOW_POOLS:
                step.maker = makers[step.reads[0]]
                step.reads = step.maker.reads
        inside = set(makers.values())
        return [step for step in steps if step not in inside]

    def _passes_rows(self, step: Step) -> bool:
        """Whether a convolution may hand its rows to the pool behind it, in place of a large value."""
        numbers, tail = step.tail.numbers, step.tail
        if step.node.op not in {"conv2d", "bconv2d"} or numbers is None:
            return False
        if tail.bits or tail.levels or tail.residual:
            return False
        value, readers = self.values[numbers], self.readers[numbers]
        return (
            self.values[step.reads[0]].kind in {"float", "levels"}
            and value.kind == "float"
            and step.node.attributes["groups"] == 1
            and 4 * math.prod(value.shape) > LARGE
            and [_moves_on(reader) for reader in readers] == [True]
            and readers[0].name not in self.taken
        )

    def _step(self, node: Node) -> tuple[int, Step]:
        """The step of a node that no tail took, and where it runs: where the last node of its tail stood.

        By then the residual is there. Bits and levels may be made sooner than their node stood.
        """
        step = Step(node, node.inputs[:1], Tail())
        if node.op in LAYERS:
            if "bias" in node.tensors:
                step.tail = Tail(scale=np.ones_like(node.tensors["bias"]), shift=node.tensors["bias"])
            last = self._extend(step, node.name, 0)
        elif node.op in MAKES_BITS and self._can_be_bits(node.inputs[0]):
            self._take_bits(step, node, node.inputs[0])
            last = node.name
        elif node.op == "quantize":
            self._take_levels(step, node)
            last = node.name
        elif (stage := self._take(step, node, node.inputs[0], 0)) >= 0:
            last = self._extend(step, node.name, stage)
        else:
            return self.place[node.name], Step(node, node.inputs)
        return self.place[last], step

    def _extend(self, step: Step, current: str, stage: int) -> str:
        """Takes what follows into the tail, while nothing else reads what is between; the last name of numbers."""
        output = self.nodes[-1].name
        while current != output and len(self.readers[current]) == 1:
            (reader,) = self.readers[current]
            after = self._take(step, reader, current, stage)
            if after < 0:
                break
            stage, current = after, reader.name
        readers = self.readers[current]
        if step.node.attributes.get("groups", 1) == 1 and self._can_be_bits(current):
            for reader in [reader for reader in readers if reader.op in MAKES_BITS][:1]:
                self._take_bits(step, reader, current)
                readers = [other for other in readers if other is not reader]
        for reader in [reader for reader in readers if reader.op == "quantize"][:1]:
            self._take_levels(step, reader)
            readers = [other for other in readers if other is not reader]
        if readers or current == output:
            step.tail.numbers = current
        return current

    def _stage_after(self, tail: Tail, node: Node, current: str, stage: int) -> int:
        """The stage of a tail behind this node, or -1 if the node does not fit there.

        Stages: 0 affine, 1 first activation, 2 residual, 3 second activation, 4 nothing.
        """
        if node.name in self.taken:
            return -1
        if node.op == "affine" and stage == 0:
            return 0
        if self.values[current].kind != "float" and tail.scale is None:
            return -1
        if node.op in {"prelu", "relu", "clamp"} and stage < 4:
            return 2 if stage < 2 else 4
        if node.op == "add" and stage <= 2:
            (other,) = [name for name in node.inputs if name != current] or [current]
            if other != current and self.values[other].shape == self.values[current].shape:
                return 3
        return -1

    def _take(self, step: Step, node: Node, current: str, stage: int) -> int:
        tail, after = step.tail, self._stage_after(step.tail, node, current, stage)
        if after < 0:
            return after
        channels = self.values[current].channels
        if node.op == "affine":
            composed = _composed(tail, node, channels)
            if composed is None:
                return -1
            tail.scale, tail.shift = composed
        elif node.op == "add":
            (tail.residual,) = [name for name in node.inputs if name != current]
        elif after == 2:
            tail.first = _activation(node, channels)
        else:
            tail.second = _activation(node, channels)
        self.taken.add(node.name)
        step.taken.append(node)
        return after

    def _can_be_bits(self, current: str) -> bool:
        """Thresholds of sums are compared as floats, where these are exact."""
        value = self.values[current]
        return value.kind == "float" or (value.kind == "sums" and max(-value.low, value.high) < EXACT_FLOATS - 1)

    def _take_bits(self, step: Step, node: Node, current: str) -> None:
        step.tail.bits = node.name
        step.tail.thresholds, step.tail.at_most = thresholds_of(node, self.values[current])
        self.taken.add(node.name)
        step.taken.append(node)

    def _take_levels(self, step: Step, node: Node) -> None:
        step.tail.levels, step.tail.per_unit = node.name, node.attributes["per_unit"]
        step.tail.high = node.attributes["high"]
        self.taken.add(node.name)
        step.taken.append(node)


def _moves_on(node: Node) -> bool:
    """Whether a pool's windows overlap little enough that rows under two bands of them may be made twice."""
    if node.op not in WINDOW_POOLS:
        return False
    rows, stride = node.attributes["kernel_size"][0], node.attributes["stride"][0]
    return bool(stride > 1 and node.attributes.get("dilation", [1])[0] * (rows - 1) + 1 <= 2 * stride)


def needed(nodes: list[Node]) -> list[Node]:
    """The nodes that the last one depends on, in order, with it."""
    names = {nodes[-1].name}
    for node in reversed(nodes):
        if node.name in names:
            names.update(node.inputs)
    return [node for node in nodes if node.name in names]


def thresholds_of(node: Node, value: Value) -> tuple[Array, Array]:
    """Thresholds as floats and a byte for each channel, 1 where the bit is x <= threshold."""
    if node.op == "sign":
        return np.zeros(value.channels, np.float32), np.zeros(value.channels, np.uint8)
    thresholds = node.tensors["thresholds"]
    if value.kind == "sums":  # beyond what a sum can be, the distance does not matter
        thresholds = np.clip(thresholds.astype(np.int64), value.low - 1, value.high + 1).astype(np.float32)
    return thresholds, at_most_of(node, value.channels)


def at_most_of(node: Node, channels: int) -> Array:
    """A byte for each channel: 1 where the bit of a `threshold` is x <= threshold."""
    return (unpack_signs(node.tensors["at_most"], (channels,)) > 0).astype(np.uint8)


def for_channels(tensor: Array, channels: int) -> Array:
    """One number for each channel, where there may be one for all."""
    return np.ascontiguousarray(np.broadcast_to(tensor.astype(np.float32), (channels,)))


def _composed(tail: Tail, node: Node, channels: int) -> tuple[Array, Array] | None:
    """The affine map of a node behind that of a tail as one map; None if 32 bits can't hold it."""
    scale = for_channels(node.tensors["scale"], channels).astype(np.float64)
    shift = for_channels(node.tensors.get("shift", np.zeros(1)), channels).astype(np.float64)
    if tail.scale is None or tail.shift is None:
        return scale.astype(np.float32), shift.astype(np.float32)
    maps = scale * tail.scale, scale * tail.shift + shift
    sizes = np.abs(np.stack(maps))
    limits = np.finfo(np.float32)
    if (sizes > limits.max).any() or ((sizes > 0) & (sizes < limits.tiny)).any():
        return None
    return maps[0].astype(np.float32), maps[1].astype(np.float32)


def _activation(node: Node, channels: int) -> Activation:
    if node.op == "prelu":
        return Activation(slope=for_channels(node.tensors["slope"], channels))
    if node.op == "relu":
        return Activation(low=0.0)
    low, high = node.attributes["low"], node.attributes["high"]
    return Activation(low=-INFINITY if low is None else low, high=INFINITY if high is None else high)
