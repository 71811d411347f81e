"""Nets that can be built again: what a weights file says about its net, and how weights come into a net."""

from __future__ import annotations

import json
import math
import zipfile
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from onebit import models
from onebit.checking import MAX_VALUE
from onebit.console import counted
from onebit.convolution import QuantizedConv2d
from onebit.data.splits import DataSet
from onebit.errors import UserError
from onebit.methods import revision_of
from onebit.modelfile import MAX_NUMBER, MIN_STD
from onebit.models.resnet import bireal_name, form_of
from onebit.paths import user_path
from onebit.training.config import OPTIONS, Config, Net, activation_bits

Size = Annotated[int, Field(ge=1, le=1 << 20)]


class KnownNet(Net):
    """The keys of a net, and no others."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NetSpec(BaseModel):
    """Everything that builds a net and feeds it; the metadata of a weights file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    net: KnownNet
    data: str
    num_classes: Size
    image_shape: tuple[Size, Size, Size]
    revision: Annotated[int, Field(ge=1)] = 1  # of the method: see `onebit.methods.revision_of`
    mean: tuple[Annotated[float, Field(gt=-MAX_NUMBER, lt=MAX_NUMBER)], ...]
    deviation: tuple[Annotated[float, Field(ge=MIN_STD, lt=MAX_NUMBER)], ...]
    class_names: tuple[str, ...]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        channels = self.image_shape[0]
        if (
            len(self.class_names) != self.num_classes
            or len(self.mean) != channels
            or len(self.deviation) != channels
        ):
            raise ValueError("as many names as classes, and a mean and a deviation for each channel")
        return self

    def build(self) -> nn.Module:
        """The net, newly initialised."""
        net = self.net
        options = {key: getattr(net, key) for key in ("width", "dropout", "shortcuts", "form", *OPTIONS)}
        if net.model == "resnet18" and net.dropout is not None:
            raise UserError("--dropout: resnet18 has none")
        if not net.model.startswith("wrn") and net.shortcuts is not None:
            raise UserError(f"--shortcuts {net.shortcuts}: a choice of wrn22 and wrn40; {net.model} has no such")
        if net.model != "resnet18" and net.form is not None:
            raise UserError(f"--form {net.form}: a choice of resnet18; {net.model} has no such")
        try:
            built: nn.Module = getattr(models, net.model)(
                num_projections=net.projections,
                method=net.method,
                activation_bits=net.activation_bits,
                num_classes=self.num_classes,
                in_channels=self.image_shape[0],
                **{key: value for key, value in options.items() if value is not None},
            )
        except ValueError as error:
            raise UserError(f"{net.model}: {error}") from None
        return built

    def summary(self) -> str:
        """Such as 'pcnn wrn22, width 16, J = 4, W1A32'."""
        net = self.net
        width = f", width {net.width}" if net.width else ""
        if net.method == "float":
            return f"float {net.model}{width}"
        J = f", {'K' if net.method == 'mcn' else 'J'} = {net.projections}" if net.method in {"pcnn", "mcn"} else ""
        each = ", shortcuts round every conv" if net.shortcuts == "conv" else ""
        form = ", form of its authors" if net.form == "own" else ""
        return f"{net.method} {net.model}{width}{J}, W{net.weight_bases or 1}A{activation_bits(net)}{each}{form}"


def spec_of(config: Config, data: DataSet, bits: int | None = None) -> NetSpec:
    """The spec of a config's net for these images; `bits` of activations if not the config's own."""
    net = KnownNet(**{key: getattr(config, key) for key in Net.model_fields})
    net = net.model_copy(update={"activation_bits": bits or activation_bits(net)})
    return NetSpec(
        net=net,
        data=config.data,
        revision=revision_of(config.method),
        num_classes=data.num_classes,
        image_shape=data.image_shape,
        mean=data.mean,
        deviation=data.deviation,
        class_names=tuple(data.class_names),
    )


def check_takes_images(net: nn.Module, spec: NetSpec) -> None:
    """One black image through the net, before anything else is done."""
    was_training = net.training
    try:
        with torch.inference_mode():
            net.eval()(torch.zeros(1, *spec.image_shape))
    except (RuntimeError, ValueError) as error:
        size = " x ".join(str(side) for side in spec.image_shape)
        raise UserError(f"{spec.net.model} can't take images of {size}: {str(error).splitlines()[0]}") from None
    finally:
        net.train(was_training)


class Weights(NamedTuple):
    """What a weights file holds."""

    spec: NetSpec
    tensors: dict[str, Tensor]


def pack_weights(net: nn.Module, spec: NetSpec) -> bytes:
    """The bytes of a weights file."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in net.state_dict().items()}
    return save(tensors, {"onebit": json.dumps(spec.model_dump(mode="json", exclude_none=True))})


def read_tensors(file: Path, what: str) -> tuple[dict[str, Tensor], str | None]:
    """The tensors of a safetensors file, and what its metadata tells us."""
    try:
        with safe_open(file, framework="pt") as opened:
            described = (opened.metadata() or {}).get("onebit")
            return {name: opened.get_tensor(name) for name in opened.keys()}, described  # noqa: SIM118 not a dict
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file}: not a whole {what} ({error})") from None


def read_weights(path: str | Path, which: str = "last") -> Weights:
    """The weights in a file, or in the last (or 'best') checkpoint of a run folder."""
    if str(path).startswith("zoo:"):
        raise UserError(f"{path}: a net of the zoo is a file of bits, which can't be trained on; name a run folder")
    file = user_path(path)
    if file.is_dir():
        folder, file = file, file / f"{which}.safetensors"
        if not file.is_file():
            raise UserError(f"{folder}: has no {file.name}; a run folder of `onebit train` is expected")
    if not file.is_file():
        raise UserError(f"{path}: no such file or run folder")
    if zipfile.is_zipfile(file):
        raise UserError(
            f"{file}: a file of torch.save, and a run of `onebit train` is expected; of a net of your own "
            f"onebit.export makes a .onebit file, in Python"
        )
    tensors, description = read_tensors(file, "weights file")
    if description is None:
        raise UserError(f"{file}: says nothing about its net; weights files of `onebit train` do")
    try:
        spec = NetSpec.model_validate_json(description)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(f"{file}: its description of the net is wrong at {where or 'its beginning'}") from None
    if (size := math.prod(spec.image_shape)) > MAX_VALUE:
        raise UserError(f"{file}: its images have {size} numbers, and at most {MAX_VALUE} are allowed")
    if spec.revision != (now := revision_of(spec.net.method)):
        raise UserError(
            f"{file}: its net is {spec.net.method} of revision {spec.revision}, which is another net than this "
            f"version's revision {now}: train it anew, or use the version of onebit that trained it"
        )
    _check_shapes(file, spec, tensors)
    return Weights(spec, tensors)


def build_trained(weights: Weights) -> nn.Module:
    """The net that a weights file describes, with its weights."""
    net = weights.spec.build()
    net.load_state_dict(weights.tensors)
    return net


def load_trained(path: str | Path, which: Literal["last", "best"] = "last") -> nn.Module:
    """The net of a run of `onebit train`, with its weights, in eval mode, on the CPU.

    path    the folder of the run, or one of its .safetensors files
    which   of a folder: the last checkpoint, or the epoch that did best on held-out images
    """
    if which not in {"last", "best"}:
        raise UserError(f"which={which!r}: use 'last' or 'best'")
    return build_trained(read_weights(path, which)).eval()


def begin_from(net: nn.Module, spec: NetSpec, weights: Weights, path: str) -> None:
    """Take over weights: of the same net, of the same net in float, or with inputs of other bits."""
    if weights.spec.num_classes != spec.num_classes:
        raise UserError(
            f"{path}: its net knows {counted(weights.spec.num_classes, 'class')}, the data has {spec.num_classes}: "
            f"use other data or another checkpoint"
        )
    tensors = weights.tensors
    if weights.spec.net.method == "float" and spec.net.method != "float":
        tensors = _kernels_from_float(net, spec, tensors, path)
    own = net.state_dict()
    if weights.spec.net.activation_bits == 32:  # it has no parameters of 1-bit inputs: they stay new
        tensors = {name: own[name] for name in _of_inputs(net) if name in own} | tensors
    for name, tensor in own.items():
        if name not in tensors or tensors[name].shape != tensor.shape:
            what = f"has no {name}" if name not in tensors else f"has {name} as {list(tensors[name].shape)}"
            raise UserError(f"{path}: {what}, and {spec.summary()} needs {list(tensor.shape)}")
    net.load_state_dict({name: tensors[name] for name in own})


def _kernels_from_float(net: nn.Module, spec: NetSpec, tensors: dict[str, Tensor], path: str) -> dict[str, Tensor]:
    """Names and shapes of the 1-bit net, its kernels carried over; what only it has stays new."""
    form = form_of(spec.net.method, spec.net.form) if spec.net.model == "resnet18" else None
    if form == "bireal":
        tensors = {bireal_name(name): tensor for name, tensor in tensors.items()}
    tensors = dict(tensors)
    for name, layer in _quantized(net).items():
        weight = tensors.pop(f"{name}.weight", None)
        expected = (layer.out_channels, layer.in_channels // layer.groups, *layer.kernel_size)
        if weight is None or weight.shape != expected:
            what = f"has no {name}.weight" if weight is None else f"has {name}.weight as {list(weight.shape)}"
            raise UserError(f"{path}: {what}, and {spec.summary()} needs {list(expected)}")
        layer.carry_over(nn.Parameter(weight.clone()))
    own = net.state_dict()
    new = {name for name in own if name.rpartition(".")[0] in _quantized(net) or name.endswith(".prelu.weight")}
    new |= {name for name in own if name.startswith(("norm_of_images.", "last."))}  # McDonnell's alone; of one form
    moved = {name for name in own if _stands_elsewhere(name, spec.net.method, form)}
    return {name: own[name] for name in new | moved} | {n: t for n, t in tensors.items() if n not in moved}


def _stands_elsewhere(name: str, method: str, form: str | None) -> bool:
    """Whether this of a Resnet18 is in another place, or of another size, than in the standard net."""
    if not name.startswith("blocks."):
        return False
    part = name.split(".")[2]
    if form == "preactivation":
        return part.startswith("norm") or part == "shortcut"
    return form == "bireal" and method == "xnor" and part == "norm"


def _quantized(net: nn.Module) -> dict[str, QuantizedConv2d]:
    return {name: module for name, module in net.named_modules() if isinstance(module, QuantizedConv2d)}


def _of_inputs(net: nn.Module) -> list[str]:
    return [f"{name}.{own}" for name, layer in _quantized(net).items() for own in layer.OF_INPUT]


def _check_shapes(file: Path, spec: NetSpec, tensors: dict[str, Tensor]) -> None:
    """Before memory is taken for a net that a file only claims to hold."""
    with torch.device("meta"):
        expected = {name: tensor.shape for name, tensor in spec.build().state_dict().items()}
    found: dict[str, Any] = {name: tensor.shape for name, tensor in tensors.items()}
    if expected != found:
        wrong = sorted({*expected, *found} - {name for name in expected if expected[name] == found.get(name)})
        raise UserError(f"{file}: does not hold the net that it describes (look at {wrong[0]})")
