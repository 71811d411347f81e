"""`onebit.export`: a trained net as a .onebit file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from onebit.convolution import QuantizedConv2d
from onebit.errors import ExportError, ModelFileError
from onebit.exporting.calibration import Wanted, quantize_inputs
from onebit.exporting.folding import fold
from onebit.exporting.lowering import Lowering
from onebit.exporting.rounding import round_weights
from onebit.exporting.rules import RULES
from onebit.exporting.tracing import trace
from onebit.graph import Graph
from onebit.jsonfields import plain_text
from onebit.modelfile import Counts, Model, Preprocessing, check_preprocessing, writable, write_model
from onebit.summary import Summary, summarize


def export(
    model: nn.Module,
    path: str | Path,
    example_input: Tensor,
    *,
    activation_bits: int | None = None,
    int8_layers: bool = False,
    calibration: Iterable[Any] | None = None,
    float_bits: int = 32,
    preprocessing: Preprocessing | None = None,
    class_names: Sequence[str] | None = None,
    description: str = "",
) -> Summary:
    """Write a trained net as a .onebit file, and return what is in it.

        onebit.export(model.eval(), "net.onebit", torch.zeros(1, 3, 224, 224))

    model             any net that `binarize` or `onebit.models` made, in eval mode
    example_input     images (N, channels, height, width) of the size that the file's net will take
    activation_bits   8: float inputs of 1-bit layers become whole numbers of 8 bits (W1A8); None: as trained
    int8_layers       the layers that are not 1-bit (stem, 1x1 convolutions, classifier) in whole numbers of 8 bits,
                      weights and inputs; those in groups stay in float
    calibration       with activation_bits=8 or int8_layers: batches of images, from which the 8-bit scales are
                      taken; without, they come from the batch norms, that of the input from the preprocessing
    float_bits        of the weights that are not 1-bit: 32, 16, or 8 (with a scale for each output)
    preprocessing     how a picture becomes an input: a `onebit.Preprocessing`
    class_names       of the outputs

    What can't be exported raises ExportError, which names the layer, the operation and its line. The file is
    written whole or not at all.
    """
    file = writable(path)
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    prepared, names = _prepared(preprocessing), _names(class_names)
    described = _text(description, "description")
    graph = pack_net(
        model,
        example_input,
        activation_bits=activation_bits,
        int8_layers=int8_layers,
        calibration=calibration,
        preprocessing=prepared,
    )
    round_weights(graph, float_bits)
    try:
        packed = Model(graph, prepared, names, described, count_parameters(model))
        size = write_model(packed, file)
    except ValueError as error:  # GraphError, ModelFileError
        raise ExportError(str(error)) from None
    except OSError as error:
        raise ExportError(f"{path}: can't be written ({error.strerror})") from error
    return summarize(packed, size)


def pack_net(
    model: nn.Module,
    example_input: Tensor,
    *,
    activation_bits: int | None = None,
    int8_layers: bool = False,
    calibration: Iterable[Any] | None = None,
    preprocessing: Preprocessing | None = None,
) -> Graph:
    """The packed net, folded, not yet a file."""
    _check_net(model, example_input)
    if activation_bits not in {None, 8}:
        raise ExportError(f"activation_bits={activation_bits!r}: use 8, or None for what the net was trained with")
    if calibration is not None and activation_bits is None and not int8_layers:
        raise ExportError("calibration= is for activation_bits=8 and for int8_layers=True")
    _, channels, height, width = example_input.shape
    with torch.no_grad():
        lowered = Lowering(trace(model, example_input), (channels, height, width), RULES).run()
    if activation_bits == 8 or int8_layers:
        images = None if calibration is None else _batches(calibration)
        quantize_inputs(lowered, Wanted(activation_bits == 8, int8_layers, images, preprocessing))
    return fold(lowered)


def count_parameters(model: nn.Module) -> Counts:
    """What the paper counts (its memory table): PReLU's slopes are left out, since the float nets have ReLU."""
    in_float = kept = 0
    seen: set[int] = set()
    for module in model.modules():
        own = [p for p in module.parameters(recurse=False) if id(p) not in seen]
        seen.update(id(parameter) for parameter in own)
        size = sum(parameter.numel() for parameter in own)
        if isinstance(module, QuantizedConv2d):
            planes = module.in_channels // module.groups * module.kernel_size[0] * module.kernel_size[1]
            in_float += module.out_channels * (planes + (module.bias is not None)) if own else 0
        elif isinstance(module, nn.Conv2d | nn.Linear):
            in_float, kept = in_float + size, kept + size
        elif not isinstance(module, nn.PReLU):
            in_float += size
    return Counts(in_float, kept)


def _prepared(preprocessing: Preprocessing | None) -> Preprocessing | None:
    if preprocessing is None:
        return None
    try:
        mean, std, crop = Preprocessing(*preprocessing)
        prepared = Preprocessing(tuple(map(float, mean)), tuple(map(float, std)), float(crop))
    except (TypeError, ValueError):
        raise ExportError("preprocessing: use onebit.Preprocessing(mean, std), a number for each channel") from None
    try:
        check_preprocessing(*prepared)
    except ModelFileError as error:
        raise ExportError(str(error)) from None
    return prepared


def _names(class_names: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(class_names, str):
        raise ExportError(f"class_names={class_names!r}: use a list of names")
    if class_names is None:
        return None
    return tuple(_text(name, f"class_names: {name!r:.100}") for name in class_names)


def _text(value: Any, what: str) -> str:
    try:
        return plain_text(value, what)
    except ModelFileError as error:
        raise ExportError(str(error)) from None


def _batches(calibration: Any) -> Iterable[Any]:
    """Batches of images, or a single one; as a loader has them, with labels, or without."""
    if isinstance(calibration, Tensor | np.ndarray) and calibration.ndim == 4:
        return [_batch(calibration)]
    if not isinstance(calibration, Iterable):
        raise ExportError(f"calibration is a {type(calibration).__name__}: use batches of images")
    return map(_batch, calibration)


def _batch(images: Any) -> Any:
    batch = images[0] if isinstance(images, tuple | list) and images else images
    if not isinstance(batch, Tensor | np.ndarray):
        raise ExportError(f"calibration holds a {type(batch).__name__}: use batches of images")
    if not (batch.is_floating_point() if isinstance(batch, Tensor) else batch.dtype.kind == "f"):
        kind = str(batch.dtype).removeprefix("torch.")
        raise ExportError(f"calibration: images of {kind}: use floats, prepared as in training")
    return batch.detach().cpu().float().numpy() if isinstance(batch, Tensor) else batch.astype(np.float32)


def _check_net(model: nn.Module, example_input: Tensor) -> None:
    if not isinstance(model, nn.Module):
        raise ExportError(f"model is a {type(model).__name__}: use an nn.Module")
    if not isinstance(example_input, Tensor) or example_input.ndim != 4 or not len(example_input):
        raise ExportError("example_input: use images, a tensor (N, channels, height, width)")
    training = [name or type(model).__name__ for name, module in model.named_modules() if module.training]
    if training:
        raise ExportError(f"{training[0]} is in training mode: call model.eval() first")
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and not tensor.isfinite().all():
            raise ExportError(f"{name} holds numbers that are not finite: the training has diverged")
