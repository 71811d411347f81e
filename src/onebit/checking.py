"""Whether a graph is sound, before anything is computed with it; and what it costs."""

from __future__ import annotations

import math

from onebit.graph import INPUT, Graph, GraphError, Node, Value
from onebit.operations import OPERATIONS, check_node
from onebit.shapes import Seen, bconv_shape

MAX_NODES = 10_000
MAX_SIDE = 1 << 20  # of a value
MAX_VALUE = 1 << 28  # numbers in one value, for one image
MAX_WORK = 1 << 40  # for one image, as `work_of` counts: half a minute of convolution, minutes of anything else
MAX_SUM = (1 << 31) - 1  # sums are 32-bit integers
MAX_WEIGHTS = 1 << 28  # numbers of all tensors, written out as engines have them

PAYS_BY_AXES = 4  # as in native/src/pools.c

# What else takes as long as so many multiply-adds of a convolution with many channels. One core did, a second, with
# AVX2 (in plain C): 34e9 (7e9) of those; depthwise 0.9e9 to 5e9 (0.4e9 to 2e9), 64 channels to one 1.8e9 (0.4e9),
# bits with more than `MANY_TAPS` 0.23e9; 0.14e9 to 8e9 (0.16e9 to 0.4e9) looks of max pools; 0.2e9 to 4e9 numbers
# that are added, clipped or copied; 0.08e9 to 0.27e9 of tanh, sigmoid, silu, elu, softmax and reshape.
FULL_GROUP = 16  # outputs of a group that kernels make at a time: fewer take as long
MANY_TAPS = 65_535  # as in native/src/bconv2d.h
PER_TAP_OF_MANY = 16
PER_LOOK = 16  # of a pool
PER_NUMBER = 16  # that a node makes
PER_SLOW_NUMBER = 64
SLOW = ("sigmoid", "silu", "tanh", "elu", "softmax", "reshape")

WEIGHTS = ("kernels", "masks", "modulation", "weight", "weight_scale")  # roles
PER_CHANNEL = {"affine": 2, "prelu": 1, "sign": 2, "threshold": 2}  # numbers for each channel, in the output stage


def check_graph(graph: Graph) -> dict[str, Value]:
    """The values of a sound graph by name; raises GraphError at the first thing that is wrong."""
    if not 1 <= len(graph.nodes) <= MAX_NODES:
        raise GraphError(f"the graph has {len(graph.nodes)} nodes, and 1 to {MAX_NODES} are allowed")
    values = {INPUT: _bounded(Value("float", graph.input_shape))}
    work = 0
    seen = Seen()
    for node in graph.nodes:
        try:
            values[node.name] = _made_by(node, values, seen)
        except GraphError as error:
            raise GraphError(f"node {node.name!r} ({node.op}): {error}") from None
        work += work_of(node, values)
        if work > MAX_WORK:
            raise GraphError(f"an image takes as long as more than {MAX_WORK} multiply-adds")
    if values[graph.nodes[-1].name].kind != "float":
        raise GraphError("the last node must make floats")
    if (weights := written_out(graph, values)) > MAX_WEIGHTS:
        raise GraphError(
            f"its weights, written out with all projections, are {weights} numbers, and at most {MAX_WEIGHTS} are "
            "allowed"
        )
    return values


def written_out(graph: Graph, values: dict[str, Value]) -> int:
    """Numbers of all tensors as engines have them: all projections, some for every channel; what is shared once."""
    first = first_alike(graph, values)
    total = 0
    for node in graph.nodes:
        channels = values[node.name].channels
        if first.get(node.name) == node.name:
            total += channels * _row(node, values)
        total += channels * (2 if "bias" in node.tensors else PER_CHANNEL.get(node.op, 0))
    return total


def first_alike(graph: Graph, values: dict[str, Value]) -> dict[str, str]:
    """Of each node that has weights the first with the same ones, laid out for the same input; often itself.

    The same are those of one tensor of the file, not those that happen to be equal.
    """
    found: dict[tuple[object, ...], str] = {}
    return {
        node.name: found.setdefault(
            (
                node.op,
                *(id(node.tensors.get(role)) for role in WEIGHTS),
                repr(sorted(node.attributes.items())),
                values[node.inputs[0]],
            ),
            node.name,
        )
        for node in graph.nodes
        if _row(node, values)
    }


def multiply_adds(node: Node, values: dict[str, Value]) -> int:
    """Of a convolution or a linear layer, for one image; of anything else 0."""
    return values[node.name].size * _row(node, values)


def work_of(node: Node, values: dict[str, Value]) -> int:
    """How long a node takes for one image, roughly, in multiply-adds of a convolution with many channels."""
    per_number = PER_SLOW_NUMBER if node.op in SLOW else PER_NUMBER
    return max(_full_groups(node, values), PER_LOOK * looked_at(node, values), per_number * values[node.name].size)


def _full_groups(node: Node, values: dict[str, Value]) -> int:
    """Multiply-adds, if each group had so many outputs that kernels are fast."""
    groups: int = node.attributes.get("groups", 1)
    outputs = values[node.name].channels // groups
    adds = multiply_adds(node, values) // outputs * max(outputs, FULL_GROUP)
    many_taps = values[node.name].kind == "sums" and _row(node, values) > MANY_TAPS
    return adds * PER_TAP_OF_MANY if many_taps else adds


def looked_at(node: Node, values: dict[str, Value]) -> int:
    """Numbers that a pool looks at, for one image; of anything else 0.

    Window by window; or the rows under a row of windows first, and then columns, if that is less by far.
    """
    if not node.op.endswith("_pool2d"):
        return 0
    (_, *sizes), (channels, *places) = values[node.inputs[0]].shape, values[node.name].shape
    if node.op == "adaptive_avg_pool2d":  # parts overlap by a row or a column
        taps = [-(-size // parts) + 1 for size, parts in zip(sizes, places, strict=True)]
    else:
        taps = [min(kernel, size) for kernel, size in zip(node.attributes["kernel_size"], sizes, strict=True)]
    by_window = taps[0] * taps[1] * places[1]
    by_axes = taps[0] * sizes[1] + taps[1] * places[1]
    return channels * places[0] * (by_axes if by_window > PAYS_BY_AXES * by_axes else by_window)


def _row(node: Node, values: dict[str, Value]) -> int:
    """Weights of one output; 0 of what has none."""
    if node.op == "bconv2d":
        return math.prod(bconv_shape(node, values[node.inputs[0]])[1:])
    return math.prod(node.tensors["weight"].shape[1:]) if node.op in {"conv2d", "linear"} else 0


def padded(node: Node, values: dict[str, Value]) -> Value:
    """What a node reads first, with the zeros around it that a convolution may have to lay out in memory."""
    value, padding = values[node.inputs[0]], node.attributes.get("padding", ())
    if len(padding) != 4 or len(value.shape) != 3:
        return value
    channels, height, width = value.shape
    return value._replace(shape=(channels, height + padding[0] + padding[1], width + padding[2] + padding[3]))


def _made_by(node: Node, values: dict[str, Value], seen: Seen) -> Value:
    if node.name in values:
        raise GraphError("another value has that name")
    if node.op not in OPERATIONS:
        raise GraphError("no such operation")
    for name in node.inputs:
        if name not in values:
            raise GraphError(f"reads {name!r}, which is made by no node before it")
    made = _bounded(check_node(node, [values[name] for name in node.inputs], seen))
    _bounded(padded(node, values))
    return made


def _bounded(value: Value) -> Value:
    if len(value.shape) not in {1, 3} or not all(1 <= side <= MAX_SIDE for side in value.shape):
        raise GraphError(f"a value of shape {list(value.shape)}: 1 or 3 sides of 1 to {MAX_SIDE} are allowed")
    if value.size > MAX_VALUE:
        raise GraphError(f"a value of {value.size} numbers, and at most {MAX_VALUE} are allowed")
    if max(-value.low, value.high) > MAX_SUM:
        raise GraphError(f"its sums reach {max(-value.low, value.high)}, and at most {MAX_SUM} are allowed")
    return value
