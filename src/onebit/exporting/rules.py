"""What becomes of each operation of PyTorch: one short function each, and the table `RULES`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from onebit.exporting.layers import lower_layer
from onebit.exporting.lowering import (
    MIXED,
    Call,
    CannotExportError,
    Operand,
    Rule,
    Shaped,
    Statistics,
    as_constant,
    channelwise,
)
from onebit.exporting.tracing import LAYER


def _pair(value: Any) -> list[int]:
    numbers = list(value) if isinstance(value, tuple | list) else [value]
    return numbers * 2 if len(numbers) == 1 else numbers


def _layer(call: Call) -> Operand:
    return lower_layer(call, call["name"], call.lowering.traced.layers[call["name"]], call.value("x"))


def _conv2d(call: Call) -> Operand:
    tensors, x = call.weight_and_bias(), call.value()
    weight = tensors["weight"]
    if weight.ndim != 4 or call.arguments.get("transposed"):
        raise CannotExportError("only 2-d convolutions that are not transposed can be")
    stride, dilation = _pair(call["stride"]), _pair(call["dilation"])
    padding = call["padding"]
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        sides = [side for total in totals for side in (total // 2, total - total // 2)]
    else:
        sides = [side for side in _pair(0 if padding == "valid" else padding) for _ in range(2)]
    at = {"stride": stride, "padding": sides, "dilation": dilation, "groups": call["groups"]}
    return call.add("conv2d", x, tensors=tensors, **at)


def _linear(call: Call) -> Operand:
    if len(call.shape_of(call["input"]).shape) != 1:
        raise CannotExportError("a linear layer takes features (N, features): flatten first")
    return call.add("linear", call.value(), tensors=call.weight_and_bias())


def _batch_norm(call: Call) -> Operand:
    mean, var = call.constant("running_mean"), call.constant("running_var")
    if mean is None or var is None or call.arguments.get("training"):
        raise CannotExportError(
            "it uses the statistics of the batch; a norm needs running statistics, in eval mode"
        )
    gamma, beta = call.constant("weight"), call.constant("bias")
    gamma = np.ones_like(mean) if gamma is None else gamma
    beta = np.zeros_like(mean) if beta is None else beta
    scale = gamma / np.sqrt(var + call["eps"])
    made = call.affine(call.value(), scale, beta - mean * scale)
    call.statistics[made] = Statistics(beta, np.abs(gamma))
    several = "native" in str(call.node.target)  # it returns statistics, too
    return (made, None, None) if several else made


def _dropout(call: Call) -> Operand:
    if call["train"]:
        raise CannotExportError("it drops values even in eval mode: use nn.Dropout, or training=self.training")
    return _same(call)


def _nothing(call: Call) -> Operand:  # noqa: ARG001
    return None


def _zeros(call: Call) -> Operand:
    return call.add("clamp", call.value(), low=0.0, high=0.0)  # a product with 0 would not be 0 of what is infinite


def _same(call: Call) -> Operand:
    return call.arguments.get("input", call.arguments.get("self"))


def _elementwise(op: str) -> Rule:
    return lambda call: call.add(op, call.value())


def _hardtanh(call: Call) -> Operand:
    return call.add("clamp", call.value(), low=_bound(call["min_val"]), high=_bound(call["max_val"]))


def _clamp(call: Call) -> Operand:
    low, high = (_bound(call.arguments.get(name)) for name in ("min", "max"))
    return call.add("clamp", call.value(), low=low, high=high)


def _bound(bound: Operand) -> float | None:
    """A number in 32 bits; None where there is no bound."""
    number = None if bound is None else as_constant(bound)
    if number is None and bound is not None:
        raise CannotExportError("its bounds must be numbers")
    if number is None or np.isinf(number).all():
        return None
    if number.size != 1:
        raise CannotExportError("its bounds must be numbers, one for all channels")
    return float(np.float32(number.item()))


def _relu6(call: Call) -> Operand:
    return call.add("clamp", call.value(), low=0.0, high=6.0)


def _prelu(call: Call) -> Operand:
    return call.add("prelu", call.value(), tensors={"slope": call.constant("weight")})


def _leaky_relu(call: Call) -> Operand:
    return call.add("prelu", call.value(), tensors={"slope": np.asarray([call["negative_slope"]], np.float64)})


def _elu(call: Call) -> Operand:
    if (call["alpha"], call["scale"], call["input_scale"]) != (1, 1, 1):
        raise CannotExportError("only alpha = 1 can be")
    return call.add("elu", call.value())


def _softmax(call: Call) -> Operand:
    x = call.value()
    if call["dim"] not in {1, -len(call.builder.values[x].shape)}:
        raise CannotExportError(f"dim={call['dim']}: only dim=1 can be")
    return call.add("softmax", x)


def _max_pool2d(call: Call) -> Operand:
    at = {"dilation": _pair(call["dilation"]), **_pool_attributes(call)}
    return call.add("max_pool2d", call.value(), **at)


def _avg_pool2d(call: Call) -> Operand:
    if call["divisor_override"] is not None:
        raise CannotExportError("divisor_override can't be: multiply behind it")
    at = {"count_include_pad": bool(call["count_include_pad"]), **_pool_attributes(call)}
    return call.add("avg_pool2d", call.value(), **at)


def _pool_attributes(call: Call) -> dict[str, Any]:
    kernel = _pair(call["kernel_size"])
    return {
        "kernel_size": kernel,
        "stride": _pair(call["stride"]) if call["stride"] else kernel,
        "padding": _pair(call["padding"]),
        "ceil_mode": bool(call["ceil_mode"]),
    }


def _adaptive_avg_pool2d(call: Call) -> Operand:
    return call.add("adaptive_avg_pool2d", call.value(), output_size=list(call.output_shape[1:]))


def _mean(call: Call) -> Operand:
    x = call.value()
    rank = len(call.builder.values[x].shape) + 1
    if rank != 4 or sorted(axis % rank for axis in call.arguments.get("dim") or ()) != [2, 3]:
        raise CannotExportError("only the mean over height and width can be")
    made = call.add("adaptive_avg_pool2d", x, output_size=[1, 1])
    return Shaped(made, call.output_shape, call.name("reshape"))


def _reshaped(call: Call) -> Operand:
    operand = call.arguments["self"]
    base = operand.base if isinstance(operand, Shaped) else operand
    shape = call.output_shape
    if int(np.prod(shape)) != call.builder.values[base].size:
        raise CannotExportError(MIXED)
    return Shaped(base, shape, call.name("reshape"))


def _cat(call: Call) -> Operand:
    inputs = [call.as_value(each) for each in call["tensors"]]
    rank = len(call.builder.values[inputs[0]].shape) + 1
    if call["dim"] % rank != 1:
        raise CannotExportError(f"dim={call['dim']}: only channels (dim=1) can be")
    return call.add("concatenate", *inputs)


def _split(call: Call) -> Operand:
    x = call.value()
    value = call.builder.values[x]
    if call["dim"] % (len(value.shape) + 1) != 1:
        raise CannotExportError(f"dim={call['dim']}: only channels (dim=1) can be")
    sizes = [each.shape[1] for each in call.node.meta["val"]]
    stops = np.cumsum(sizes).tolist()
    return tuple(
        call.add("slice", x, start=stop - size, stop=stop) for size, stop in zip(sizes, stops, strict=True)
    )


def _slice(call: Call) -> Operand:
    operand = call.arguments["self"]
    x = call.as_value(operand)
    value = call.builder.values[x]
    axis, start, end = call["dim"] % (len(value.shape) + 1), call["start"] or 0, call["end"]
    size = value.shape[axis - 1] if axis else None
    if call["step"] == 1 and start == 0 and (end is None or end >= (size or 1 << 62)):
        return x
    if axis != 1 or call["step"] != 1 or size is None:
        raise CannotExportError("only channels can be taken, without steps")
    start, end = (
        min(max(bound + size if bound < 0 else bound, 0), size) for bound in (start, size if end is None else end)
    )
    return call.add("slice", x, start=start, stop=end)


def _pad(call: Call) -> Operand:
    padding, beyond = [*call["pad"], 0, 0][:4], call["pad"][4:]
    if any(beyond):
        raise CannotExportError("it pads channels; only rows and columns can be: concatenate zeros")
    mode = call.arguments.get("mode", "constant")
    if mode == "constant" and call.arguments.get("value") not in {None, 0}:
        raise CannotExportError("it pads with another number than 0")
    return _padded(call, padding, "zeros" if mode == "constant" else mode)


def _padded(call: Call, padding: list[int], mode: str) -> Operand:
    left, right, top, bottom = padding
    if min(padding) < 0:
        raise CannotExportError("it crops; only padding can be")
    return call.add("pad", call.value(), padding=[top, bottom, left, right], mode=mode)


def _padding_rule(mode: str) -> Rule:
    return lambda call: _padded(call, list(call["pad" if mode == "circular" else "padding"]), mode)


def _sum(sign: int) -> Rule:
    def rule(call: Call) -> Operand:
        first, second = call["self"], call["other"]
        factor = sign * float(call.arguments.get("alpha", 1))
        constants = as_constant(first), as_constant(second)
        if constants[1] is not None:
            x = call.as_value(first)
            return call.affine(x, 1, factor * channelwise(constants[1], call.builder.values[x]))
        y = call.as_value(second)
        if constants[0] is not None:
            return call.affine(y, factor, channelwise(constants[0], call.builder.values[y]))
        x = call.as_value(first)
        return call.add("add", x, y if factor == 1 else call.affine(y, factor))

    return rule


def _rsub(call: Call) -> Operand:
    x, other = call.as_value(call["self"]), as_constant(call["other"])
    if other is None or call["alpha"] != 1:
        raise CannotExportError("only a number or a constant less a value can be")
    return call.affine(x, -1, channelwise(other, call.builder.values[x]))


def _product(call: Call) -> Operand:
    first, second = call["self"], call["other"]
    if as_constant(first) is not None:
        first, second = second, first
    x, constant = call.as_value(first), as_constant(second)
    if constant is not None:
        return call.affine(x, channelwise(constant, call.builder.values[x]))
    return call.add("multiply", x, call.as_value(second))


def _quotient(call: Call) -> Operand:
    x, constant = call.as_value(call["self"]), as_constant(call["other"])
    if constant is None or call.arguments.get("rounding_mode"):
        raise CannotExportError("only division by a number or a constant can be")
    return call.affine(x, 1 / channelwise(constant, call.builder.values[x]))


def _power(call: Call) -> Operand:
    if call["exponent"] != 2:
        raise CannotExportError("only squares can be")
    return call.add("multiply", call.value(), call.value())


class Entry(NamedTuple):
    """A rule, what users write for it ("": told elsewhere), and what it is in the file."""

    rule: Callable[[Call], Operand]
    written: str
    becomes: str


TABLE: dict[str, Entry] = {
    LAYER: Entry(_layer, "a layer of `binarize` or `onebit.models`", "`bconv2d` and what its method needs"),
    "aten.conv2d": Entry(_conv2d, "`nn.Conv2d` (also depthwise, grouped, dilated, padding='same')", "`conv2d`"),
    "aten.convolution": Entry(_conv2d, "", "`conv2d`"),
    "aten.linear": Entry(_linear, "`nn.Linear` of (N, features)", "`linear`"),
    "aten.batch_norm": Entry(_batch_norm, "`nn.BatchNorm2d`, `nn.BatchNorm1d`", "`affine`, folded where it can be"),
    "aten._native_batch_norm_legit_no_training": Entry(_batch_norm, "", "`affine`"),
    "aten.relu": Entry(_elementwise("relu"), "`nn.ReLU`", "`relu`"),
    "aten.relu6": Entry(_relu6, "`nn.ReLU6`", "`clamp`"),
    "aten.hardtanh": Entry(_hardtanh, "`nn.Hardtanh`", "`clamp`"),
    "aten.clamp": Entry(_clamp, "`torch.clamp`, `torch.clip`, `torch.clamp_min`", "`clamp`"),
    "aten.clamp_max": Entry(_clamp, "", "`clamp`"),
    "aten.clamp_min": Entry(_clamp, "", "`clamp`"),
    "aten.prelu": Entry(_prelu, "`nn.PReLU`", "`prelu`"),
    "aten._prelu_kernel": Entry(_prelu, "", "`prelu`"),
    "aten.leaky_relu": Entry(_leaky_relu, "`nn.LeakyReLU`", "`prelu`"),
    "aten.elu": Entry(_elu, "`nn.ELU` with alpha = 1", "`elu`"),
    "aten.sigmoid": Entry(_elementwise("sigmoid"), "`nn.Sigmoid`", "`sigmoid`"),
    "aten.hardsigmoid": Entry(_elementwise("hardsigmoid"), "`nn.Hardsigmoid`", "`hardsigmoid`"),
    "aten.hardswish": Entry(_elementwise("hardswish"), "`nn.Hardswish`", "`hardswish`"),
    "aten.silu": Entry(_elementwise("silu"), "`nn.SiLU`", "`silu`"),
    "aten.tanh": Entry(_elementwise("tanh"), "`nn.Tanh`", "`tanh`"),
    "aten.abs": Entry(_elementwise("abs"), "`torch.abs`", "`abs`"),
    "aten.softmax": Entry(_softmax, "`nn.Softmax(dim=1)`", "`softmax`"),
    "aten._softmax": Entry(_softmax, "", "`softmax`"),
    "aten.max_pool2d": Entry(_max_pool2d, "`nn.MaxPool2d`", "`max_pool2d`"),
    "aten.avg_pool2d": Entry(_avg_pool2d, "`nn.AvgPool2d`", "`avg_pool2d`"),
    "aten.adaptive_avg_pool2d": Entry(_adaptive_avg_pool2d, "`nn.AdaptiveAvgPool2d`", "`adaptive_avg_pool2d`"),
    "aten.mean": Entry(_mean, "`x.mean((2, 3))`", "`adaptive_avg_pool2d`"),
    "aten.flatten": Entry(_reshaped, "`torch.flatten(x, 1)`", "`reshape`"),
    "aten.view": Entry(_reshaped, "`x.view(x.shape[0], -1)`, `x.reshape(x.shape[0], -1)`", "`reshape`"),
    "aten.reshape": Entry(_reshaped, "", "`reshape`"),
    "aten._unsafe_view": Entry(_reshaped, "", "`reshape`"),
    "aten.squeeze": Entry(_reshaped, "`x.squeeze(-1)`", "`reshape`"),
    "aten.unsqueeze": Entry(_reshaped, "`x[:, :, None, None]`", "`reshape`"),
    "aten.cat": Entry(_cat, "`torch.cat(..., dim=1)`", "`concatenate`"),
    "aten.zeros_like": Entry(_zeros, "`torch.zeros_like(x)`, to add channels of zeros", "`clamp`"),
    "aten.split": Entry(_split, "`x.split(..., dim=1)`, `x.chunk(..., dim=1)`", "`slice`"),
    "aten.split_with_sizes": Entry(_split, "", "`slice`"),
    "aten.chunk": Entry(_split, "", "`slice`"),
    "aten.slice": Entry(_slice, "`x[:, a:b]`", "`slice`"),
    "aten.pad": Entry(_pad, "`F.pad` with zeros, reflect, replicate, circular", "`pad`"),
    "aten.constant_pad_nd": Entry(_pad, "`nn.ZeroPad2d`", "`pad`"),
    "aten.reflection_pad2d": Entry(_padding_rule("reflect"), "`nn.ReflectionPad2d`", "`pad`"),
    "aten.replication_pad2d": Entry(_padding_rule("replicate"), "`nn.ReplicationPad2d`", "`pad`"),
    "aten._pad_circular": Entry(_padding_rule("circular"), "`nn.CircularPad2d`", "`pad`"),
    "aten.add": Entry(_sum(1), "`x + y`, `x += y`, `x + number`, `x + per-channel constant`", "`add` or `affine`"),
    "aten.sub": Entry(_sum(-1), "`x - y`, `x - constant`", "`add` or `affine`"),
    "aten.rsub": Entry(_rsub, "`constant - x`", "`affine`"),
    "aten.mul": Entry(_product, "`x * y` (also squeeze-excite), `x * constant`", "`multiply` or `affine`"),
    "aten.div": Entry(_quotient, "`x / constant`", "`affine`"),
    "aten.neg": Entry(lambda call: call.affine(call.value(), -1), "`-x`", "`affine`"),
    "aten.pow": Entry(_power, "`x ** 2`", "`multiply`"),
    "aten.dropout": Entry(_dropout, "`nn.Dropout` in eval mode", "nothing"),
    "aten.feature_dropout": Entry(_dropout, "`nn.Dropout2d` in eval mode", "nothing"),
    "aten.clone": Entry(_same, "`nn.Identity`, `x.clone()`, `x.contiguous()`, `x.detach()`", "nothing"),
    "aten.contiguous": Entry(_same, "", "nothing"),
    "aten.alias": Entry(_same, "", "nothing"),
    "aten.to": Entry(_same, "`x.float()`", "nothing"),
    "aten._to_copy": Entry(_same, "", "nothing"),
    "aten.type_as": Entry(_same, "", "nothing"),
    "aten._assert_tensor_metadata": Entry(_nothing, "", "nothing"),
    "aten.detach": Entry(_same, "", "nothing"),
}
RULES: dict[str, Rule] = {name: entry.rule for name, entry in TABLE.items()}


def support_table() -> str:
    """The table of docs/export.md."""
    rows = [f"| {entry.written} | {entry.becomes} |" for entry in TABLE.values() if entry.written]
    return "\n".join(["| in PyTorch (as a module or a function) | in the file |", "|---|---|", *rows])
