"""Fewer nodes that compute the same: norms into weights, norms before signs into thresholds.

Every rule looks at a node and the one before it, which nobody else reads. All arithmetic here is in 64 bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from onebit.exporting.building import Wide, narrowed, threshold_tensors
from onebit.exporting.lowering import Lowered
from onebit.graph import Array, Graph, Node, Value


def fold(lowered: Lowered) -> Graph:
    """The folded graph, whose last node makes the output."""
    folding = _Folding(lowered)
    while folding.step():
        pass
    return Graph(lowered.builder.graph.input_shape, [narrowed(node) for node in folding.nodes])


class _Folding:
    def __init__(self, lowered: Lowered) -> None:
        self.nodes, self.output = list(lowered.builder.graph.nodes), lowered.output
        self.values = dict(lowered.builder.values)

    def step(self) -> bool:
        """Apply the first rule that applies anywhere; whether there was one."""
        self._drop_unread()
        self.by_name = {node.name: node for node in self.nodes}
        self.readers = Counter(name for node in self.nodes for name in node.inputs)
        if self._merge_equal():
            return True
        for node in self.nodes:
            before = self.by_name.get(node.inputs[0])
            if before is not None and self.readers[before.name] == 1:
                for rule in RULES.get(node.op, ()):
                    if rule(self, before, node):
                        return True
        return False

    def replace(self, old: Node, *new: Node) -> None:
        """Put nodes in a node's place; whoever read it reads the last of them."""
        at = self.nodes.index(old)
        self.nodes[at : at + 1] = new
        if new and new[-1].name != old.name:
            self._read_instead(old.name, new[-1].name)

    def bypass(self, node: Node) -> None:
        """Take a node out; whoever read it reads its input."""
        self.nodes.remove(node)
        self._read_instead(node.name, node.inputs[0])

    def _read_instead(self, old: str, new: str) -> None:
        for node in self.nodes:
            if node.name != new:
                node.inputs = tuple(new if name == old else name for name in node.inputs)
        self.output = new if self.output == old else self.output

    def _drop_unread(self) -> None:
        wanted = {self.output}
        for node in reversed(self.nodes):
            if node.name in wanted:
                wanted.update(node.inputs)
        self.nodes = [node for node in self.nodes if node.name in wanted]

    def _merge_equal(self) -> bool:
        """Two layers that read the same value make the same bits of it: once is enough."""
        seen: dict[object, Node] = {}
        for node in self.nodes:
            if node.op in {"sign", "threshold", "quantize"}:
                tensors = tuple((role, tensor.tobytes()) for role, tensor in sorted(node.tensors.items()))
                same = seen.setdefault((node.op, node.inputs, repr(node.attributes), tensors), node)
                if same is not node:
                    self.replace(node)
                    self._read_instead(node.name, same.name)
                    return True
        return False


def _scale_and_shift(node: Node) -> tuple[Wide, Wide]:
    scale = node.tensors["scale"].astype(np.float64)
    return scale, node.tensors.get("shift", np.zeros(1)).astype(np.float64)


def _into_weights(folding: _Folding, before: Node, node: Node) -> bool:
    """Scale * (weight @ x + bias) + shift is a convolution or a linear layer, too. (Sums are never scaled.)"""
    if before.op not in {"conv2d", "linear"} or folding.values[before.name].kind == "sums":
        return False
    scale, shift = _scale_and_shift(node)
    weight, bias = before.tensors["weight"], before.tensors.get("bias", np.zeros(1)).astype(np.float64)
    if "weight_scale" in before.tensors:
        before.tensors["weight_scale"] = (before.tensors["weight_scale"] * scale).astype(np.float32)
    else:
        rows = scale.reshape(-1, *[1] * (weight.ndim - 1))
        before.tensors["weight"] = (weight * rows).astype(np.float32)
    if "bias" in before.tensors or shift.any():
        before.tensors["bias"] = np.broadcast_to(bias * scale + shift, (len(weight),)).astype(np.float32)
    folding.bypass(node)
    return True


def _into_affine(folding: _Folding, before: Node, node: Node) -> bool:
    """Two multiply-adds are one."""
    if before.op != "affine":
        return False
    (first, shift), (second, more) = _scale_and_shift(before), _scale_and_shift(node)
    node.tensors["scale"], both = first * second, shift * second + more
    node.tensors.pop("shift", None)
    if both.any():
        node.tensors["shift"] = both
    folding.bypass(before)
    return True


def _away(folding: _Folding, before: Node, node: Node) -> bool:
    """A multiply-add that changes nothing. (Of sums, it makes floats.)"""
    scale, shift = _scale_and_shift(node)
    if (scale != 1).any() or shift.any() or folding.values[before.name].kind != "float":
        return False
    folding.bypass(node)
    return True


def _behind_pool(folding: _Folding, before: Node, node: Node) -> bool:
    """The largest of scale * x + shift is that of x, scaled: sums of bits stay sums through a pool."""
    source = folding.by_name.get(before.inputs[0])
    if (
        before.op != "affine"
        or (before.tensors["scale"] < 0).any()
        or folding.values[before.inputs[0]].kind != "sums"
        or source is None
        or folding.values[source.inputs[0]].kind != "bits"  # levels are for floats: their pools are faster
    ):
        return False
    folding.nodes.remove(before)
    pool = Node(node.name, node.op, before.inputs, node.attributes, node.tensors)
    folding.replace(node, pool, Node(before.name, "affine", (pool.name,), {}, before.tensors))
    sums, floats = folding.values[before.inputs[0]], folding.values[node.name]
    folding.values[pool.name], folding.values[before.name] = sums._replace(shape=floats.shape), floats
    return True


def _into_threshold(folding: _Folding, before: Node, node: Node) -> bool:
    """The sign of scale * x + shift is a comparison of x itself."""
    value = folding.values[before.inputs[0]] if before.op == "affine" else None
    if value is None or value.kind not in {"sums", "float"}:
        return False
    scale, shift = (np.broadcast_to(each, (value.channels,)) for each in _scale_and_shift(before))
    thresholds, at_most = thresholds_of(scale, shift, value)
    folding.nodes.remove(before)
    tensors = threshold_tensors(thresholds, at_most)
    folding.replace(node, Node(node.name, "threshold", before.inputs, {}, tensors))
    return True


def thresholds_of(scale: Wide, shift: Wide, value: Value) -> tuple[Array, Array]:
    """Where scale * x + shift >= 0: x >= threshold, or x <= threshold where at_most; for each channel.

    With u = x, or u = -x where the scale is negative, it is u >= t, t = -shift / |scale|. Sums are whole numbers:
    t is the least that fulfils the condition. Floats are float32: t is the least of these. Where the scale is 0 the
    condition holds always or never.
    """
    slope, at_most = np.abs(scale), scale < 0
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        t = -shift / slope
        if value.kind == "sums":
            t = np.ceil(t)
            t = np.where(slope * t + shift < 0, t + 1, t)  # a quotient just above a whole number was rounded to it
        t = np.where(slope == 0, np.where(shift >= 0, -np.inf, np.inf), t)
        if value.kind == "sums":  # from -high to high: one more than the largest sum is never reached
            whole = np.clip(t, -value.high, value.high + 1).astype(np.int32)
            return np.where(at_most, -whole, whole), at_most
        narrow = t.astype(np.float32)
        narrow = np.where(narrow < t, np.nextafter(narrow, np.float32(np.inf)), narrow)
    return np.where(at_most, -narrow, narrow).astype(np.float32), at_most


def _sign_stays(folding: _Folding, before: Node, node: Node) -> bool:
    """What keeps every sign can go before one."""
    del node
    at, slope = before.attributes, before.tensors.get("slope")
    keeps = (
        before.op == "tanh"
        or (before.op == "prelu" and slope is not None and bool((slope > 0).all()))
        or (
            before.op == "clamp"
            and (at["low"] is None or at["low"] < 0)
            and (at["high"] is None or at["high"] >= 0)
        )
    )
    if keeps:
        folding.bypass(before)
    return keeps


Rule = Callable[[_Folding, Node, Node], bool]
RULES: dict[str, tuple[Rule, ...]] = {
    "affine": (_into_weights, _into_affine, _away),
    "max_pool2d": (_behind_pool,),
    "sign": (_sign_stays, _into_threshold),
}
