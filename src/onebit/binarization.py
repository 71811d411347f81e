"""Puts 1-bit convolutions in the place of a model's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from onebit.console import counted
from onebit.convolution import QuantizedConv2d
from onebit.methods import activation_bits_of, check_known, check_taken, layer_of
from onebit.signs import RELUS, SignFlow

ModuleType = TypeVar("ModuleType", bound=nn.Module)
SkipRule = Callable[[str, nn.Conv2d], "bool | str | None"]


# What belongs to a method beyond its layers, which binarize leaves as the net has it.
STRUCTURE = {
    "lbcnn": "the ReLUs are as they were; an LBCNN has none before its fixed filters (as in onebit.models)",
    "mcdonnell": (
        "norms and shortcuts are as they were; of McDonnell's norms only that of the images has an affine part, "
        "and his shortcuts learn nothing (as in onebit.models)"
    ),
    "bireal": "no shortcuts were added; a Bi-Real net has one round every conv (onebit.models.resnet18 has)",
    "xnor": "the order of layers is as it was; XNOR-Net's is batch norm, sign, conv (as in onebit.models)",
}


@dataclass(frozen=True)
class BinarizationReport:
    """What `binarize` did: by name, the layers replaced, the ones skipped and why, the ReLUs changed."""

    method: str
    replaced: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    relus: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    share: float = 0.0  # of the convolutions' weights that are in replaced ones

    def followed_by(self, later: BinarizationReport) -> BinarizationReport:
        """The report of two calls on one model."""
        return BinarizationReport(
            later.method,
            self.replaced | later.replaced,
            later.skipped,
            self.relus | later.relus,
            self.notes + later.notes,
            self.share + (1 - self.share) * later.share,
        )

    def __str__(self) -> str:
        """A readable list."""
        width = max((len(name) for name in (*self.replaced, *self.skipped, *self.relus)), default=0)
        replaced = counted(len(self.replaced), "convolution")
        lines = [f"method {self.method}: {replaced} replaced, {len(self.skipped)} skipped"]
        if self.share:
            lines[0] += f"; {100 * self.share:.1f} % of the convolutions' weights are in these now"
        lines += [f"  {name or '(model)':<{width}}  now {became}" for name, became in self.replaced.items()]
        lines += [f"  {name or '(model)':<{width}}  skipped: {why}" for name, why in self.skipped.items()]
        lines += [f"  {name:<{width}}  ReLU before a sign: {what}" for name, what in self.relus.items()]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def binarize(
    model: ModuleType,
    method: str = "pcnn",
    *,
    num_projections: int = 1,
    activation_bits: int | None = None,
    skip: SkipRule | Iterable[str] | None = None,
    relu_before_sign: Literal["remove", "prelu", "keep"] = "remove",
    **options: Any,
) -> ModuleType:
    """Replace a model's convolutions by 1-bit ones, in place, and return the model.

        model = onebit.binarize(torchvision.models.resnet18(weights="DEFAULT"))
        print(onebit.binarization_report(model))

    By default every `nn.Conv2d` is replaced but the first registered, the 1x1 and the depthwise ones. Trained
    weights are carried over: with J = 1 the new layer's C is the weight itself and it computes a * sgn(weight);
    with J > 1 kernel C[o] is weight[o*J], so that the model's function changes. Hooks, shared modules, weights
    shared by replaced layers, frozen weights, device and dtype stay as they are.

    method             'pcnn', or a rival: 'binaryconnect', 'bnn', 'lbcnn', 'bwn', 'xnor', 'mcdonnell', 'dorefa',
                       'abc', 'bireal', 'mcn' (see `onebit.rivals`); or 'float', which leaves the model alone
    num_projections    pcnn: J, mcn: K; it must divide out_channels / groups of every replaced conv
    activation_bits    None: the method's own (pcnn: 32); 32: floats; 1: the new layers take sgn of their input;
                       dorefa: 2 to 8, too
    skip               names or shell patterns ('layer4.*') of convs to leave alone as well, or a function
                       (name, conv) -> True, a reason, or False, which then decides alone
    relu_before_sign   what to do about a ReLU whose output feeds a 1-bit input, which would be +1 everywhere:
                       'remove' takes it out where all that it feeds (through sums and shortcuts, too) ends in
                       1-bit inputs, and refuses otherwise; 'prelu' makes it a PReLU; 'keep' looks at nothing
    options            of the new layers. pcnn: lam, eta, forward_w, w_init, scale, levels; xnor: scale_map; abc:
                       weight_bases, activation_bases; lbcnn: sparsity, num_intermediate; mcn: theta;
                       bireal: magnitude_aware
    """
    _check_choices(model, relu_before_sign)
    layer_class = layer_of(method)
    check_known(method, options)
    if num_projections != 1:
        options["num_projections"] = num_projections
    if activation_bits is not None:
        options["activation_bits"] = activation_bits
    check_taken(method, options)
    skipped = _skipped(model, skip)
    if layer_class is None:
        skipped = {name: "method 'float'" for name, _ in _convs(model)}
        return _with_report(model, BinarizationReport(method, skipped=skipped))
    chosen = {name: conv for name, conv in _convs(model) if name not in skipped}
    if not chosen:
        raise ValueError(f"model has no convolution to replace: {_why_none(model, skipped)}")

    kernel_of_weight: dict[int, nn.Parameter] = {}
    new: dict[int, nn.Module] = {}
    for name, conv in chosen.items():
        try:
            made = _replacement(conv, layer_class, options)
        except ValueError as error:
            raise ValueError(f"{name}: {error}" if name else str(error)) from error
        if made.KERNEL:  # kernels that were shared stay so
            kernel = kernel_of_weight.setdefault(id(conv.weight), getattr(made, made.KERNEL))
            setattr(made, made.KERNEL, kernel)
        new[id(conv)] = made

    relus: dict[str, str] = {}
    notes = _notes(method, layer_class, num_projections)
    activation_bits = activation_bits_of(method, activation_bits)
    if activation_bits == 1 and relu_before_sign == "keep":
        notes.append("relu_before_sign='keep': a 1-bit input behind a ReLU, if there is one, makes its layer dead")
    elif activation_bits == 1:
        signs = {id(m) for m in model.modules() if isinstance(m, QuantizedConv2d) and m.activation_bits == 1}
        like = next(iter(chosen.values())).weight
        new_relus, more_notes = _revive(model, set(new) | signs, relu_before_sign, like)
        became = {id_: "removed" if isinstance(m, nn.Identity) else "now PReLU" for id_, m in new_relus.items()}
        relus = {name: became[id(module)] for name, module in model.named_modules() if id(module) in became}
        new |= new_relus
        notes += more_notes

    replaced = {name: repr(new[id(conv)]) for name, conv in chosen.items()}
    share = sum(c.weight.numel() for c in chosen.values()) / sum(_size(conv) for _, conv in _convs(model))
    report = BinarizationReport(method, replaced, skipped, relus, tuple(notes), share)
    before = model.__dict__.get("_onebit_report")
    return _with_report(_replace(model, new), report if before is None else before.followed_by(report))


def binarization_report(model: nn.Module) -> BinarizationReport:
    """What `binarize` did to this model; for a model built otherwise, what it holds now."""
    report = model.__dict__.get("_onebit_report")
    if isinstance(report, BinarizationReport):
        return report
    layers = {name: repr(m) for name, m in model.named_modules() if isinstance(m, QuantizedConv2d)}
    return BinarizationReport("as built", layers, {name: "nn.Conv2d" for name, _ in _convs(model)})


def _default_reason(conv: nn.Conv2d, first: nn.Conv2d | None) -> str | None:
    """Why a conv stays in full precision by default (the paper's practice), or None."""
    if conv is first:
        return "first convolution"
    if conv.kernel_size == (1, 1):
        return "1x1"
    if conv.groups == conv.in_channels > 1:
        return "depthwise"
    return None


def _convs(model: nn.Module) -> Iterable[tuple[str, nn.Conv2d]]:
    return ((name, module) for name, module in model.named_modules() if isinstance(module, nn.Conv2d))


def _other_convs(model: nn.Module) -> Iterable[tuple[str, str]]:
    """Names and classes of convolutions that are none of images: transposed ones, those of 1 or 3 dimensions."""
    kinds = (nn.Conv1d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    return ((name, type(m).__name__) for name, m in model.named_modules() if isinstance(m, kinds))


def _skipped(model: nn.Module, skip: SkipRule | Iterable[str] | None) -> dict[str, str]:
    if isinstance(skip, str):
        raise ValueError(f"skip={skip!r}: use a list of names, [{skip!r}]")
    convs = dict(_convs(model))
    patterns = () if skip is None or callable(skip) else tuple(skip)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in convs):
            raise ValueError(f"skip={pattern!r}: no convolution has such a name; they are {', '.join(convs)}")
    first = next(iter(convs.values()), None)
    reasons: dict[str, str] = {}
    for name, conv in convs.items():
        if callable(skip):
            answer = skip(name, conv)
            reason = answer if isinstance(answer, str) else "skip" if answer else None
        elif any(fnmatchcase(name, pattern) for pattern in patterns):
            reason = "skip"
        else:
            reason = _default_reason(conv, first)
        reason = reason or _unfit(conv)
        if reason:
            reasons[name] = reason
    return reasons | {name: f"{kind}: only nn.Conv2d has a 1-bit form" for name, kind in _other_convs(model)}


def _unfit(conv: nn.Conv2d) -> str | None:
    """Why a conv can't be replaced without losing what it does."""
    if isinstance(conv, nn.LazyConv2d):
        return "LazyConv2d without weights yet: run the model once first"
    if type(conv) is not nn.Conv2d:
        return f"{type(conv).__name__}, a subclass of Conv2d with a forward pass of its own"
    if "weight" not in conv._parameters:  # noqa: SLF001
        return "its weight is computed by a hook (weight_norm, pruning): remove that first"
    return None


def _why_none(model: nn.Module, skipped: dict[str, str]) -> str:
    done = sum(isinstance(module, QuantizedConv2d) for module in model.modules())
    if done:
        return f"{done} are 1-bit already, the others stay as they are; to choose otherwise take the float model"
    if not any(True for _ in _convs(model)):
        others = ", ".join(dict.fromkeys(kind for _, kind in _other_convs(model)))
        return f"it holds no nn.Conv2d{others and f', only {others}, which has no 1-bit form'}"
    counts = {why: list(skipped.values()).count(why) for why in skipped.values()}
    told = ", ".join(f"{count} x {why}" for why, count in counts.items())
    return f"all {len(skipped)} were skipped ({told}); pass skip=lambda name, conv: ... to choose otherwise"


def _replacement(conv: nn.Conv2d, layer_class: type[QuantizedConv2d], options: dict[str, Any]) -> QuantizedConv2d:
    weight = conv.weight
    layer = layer_class(
        conv.in_channels,
        conv.out_channels,
        conv.kernel_size,
        conv.stride,
        conv.padding,
        conv.dilation,
        conv.groups,
        conv.bias is not None,
        conv.padding_mode,
        weight.device,
        weight.dtype,
        **options,
    )
    layer.carry_over(conv._parameters["weight"])  # type: ignore[arg-type]  # noqa: SLF001 a Parameter: see _unfit
    layer.register_parameter("bias", conv._parameters["bias"])  # noqa: SLF001
    _take_place(layer, conv)
    return layer


def _notes(method: str, layer_class: type[QuantizedConv2d], num_projections: int) -> list[str]:
    """What the user must know about the new layers' beginnings."""
    notes = ["the weights are carried over, the function changed: train before use"]
    if not layer_class.CARRIES_OVER:
        notes = [f"{method} can't begin from the weights of a conv: the new layers begin at random"]
    elif num_projections > 1:
        notes = [f"num_projections={num_projections}: only every J-th kernel is carried over; train before use"]
    return [*notes, *([STRUCTURE[method]] if method in STRUCTURE else [])]


def _take_place(new: nn.Module, old: nn.Module) -> None:
    """Mode and hooks of the module that goes; the same dicts, so that the handles which users hold still work."""
    new.train(old.training)
    for key in vars(old):
        if key.startswith(("_forward_hooks", "_forward_pre_hooks", "_backward", "_is_full_backward_hook")):
            new.__dict__[key] = old.__dict__[key]


def _size(conv: nn.Conv2d) -> int:
    return 0 if isinstance(conv, nn.LazyConv2d) else conv.weight.numel()


def _check_choices(model: object, relu_before_sign: str) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(f"model={model!r}: use an nn.Module, made already (a class is not)")
    if relu_before_sign not in {"remove", "prelu", "keep"}:
        raise ValueError(f"relu_before_sign={relu_before_sign!r}: use 'remove', 'prelu' or 'keep'")


def _revive(
    model: nn.Module, one_bit: set[int], how: str, like: torch.Tensor
) -> tuple[dict[int, nn.Module], list[str]]:
    """What to put in the place of each ReLU that makes a 1-bit input dead, by the ReLU's id; and notes."""
    flow = SignFlow(model, one_bit)
    new: dict[int, nn.Module] = {}
    notes: list[str] = []
    while dead := flow.dead_inputs(removed=set(new)):
        found = [(conv, node, flow.module_of(node)) for conv, culprits in dead for node in culprits]
        relus = [(conv, node, module) for conv, node, module in found if isinstance(module, RELUS)]
        if not relus:
            node = found[0][1]
            convs = ", ".join(dict.fromkeys(conv for conv, _, _ in found))
            raise ValueError(
                f"{convs}: its 1-bit input comes from {getattr(node.target, '__name__', node.target)}, is never "
                f"negative, and so its sign is +1 everywhere. Put a norm between them, or write it as an nn.ReLU, "
                f"which can be replaced (relu_before_sign='keep' would leave the layer dead)"
            )
        for conv, node, relu in relus:
            if how == "remove" and not flow.feeds_only_signs(relu):
                raise ValueError(
                    f"{conv}: its 1-bit input comes from the ReLU {node.target} and is +1 everywhere, but that "
                    f"ReLU feeds other layers too. Pass relu_before_sign='prelu' for a PReLU instead, or use a net "
                    f"made for 1-bit inputs, such as onebit.models.resnet18(activation_bits=1)"
                )
            made = nn.Identity() if how == "remove" else nn.PReLU(device=like.device, dtype=like.dtype)
            _take_place(made, relu)
            new[id(relu)] = made
            if flow.feeds_max_pool(relu):
                notes.append(
                    f"{node.target} feeds a max pool, behind which few values are negative: a norm there helps"
                )
    return new, list(dict.fromkeys(notes))


def _replace(model: ModuleType, new: dict[int, nn.Module]) -> ModuleType:
    for module in list(model.modules()):
        for name, child in list(module._modules.items()):  # noqa: SLF001 named_children would give a shared one once
            if id(child) in new:
                module._modules[name] = new[id(child)]  # noqa: SLF001 setattr would not do for a name like '0'
    return new.get(id(model), model)  # type: ignore[return-value]


def _with_report(model: ModuleType, report: BinarizationReport) -> ModuleType:
    model.__dict__["_onebit_report"] = report
    return model
