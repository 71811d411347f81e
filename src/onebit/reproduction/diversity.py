"""Fig. 5: four kernels that share one C, what each makes of an image, and the signs of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from onebit.data.splits import DataSet
from onebit.layers import ProjectionConv2d
from onebit.reproduction.figures import new_figure
from onebit.training.evaluation import Feed
from onebit.training.nets import build_trained, read_weights

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

IMAGE = 0  # the first test image


def diversity(run: Path, data: DataSet, title: str) -> tuple[Figure, dict[str, Any]]:
    """The figure, and numbers for it: of all layers, how far the J kernels and their feature maps differ."""
    weights = read_weights(run)
    net = build_trained(weights).eval()
    layers = [module for module in net.modules() if isinstance(module, ProjectionConv2d)]
    made = feature_maps(net, layers, _image(data))
    shown = len(layers) // 3 - 1  # the last layer before images become smaller
    layer, maps = layers[shown], made[shown]
    J = layer.num_projections
    figure = new_figure(2.0 * J, 6.6, title)
    axes = figure.subplots(3, J, squeeze=False)
    kernels = layer.quantized_weight().detach().sign()[:J, 0]
    for j in range(J):
        axes[0, j].imshow(kernels[j], cmap="gray", vmin=-1, vmax=1)
        axes[0, j].set_title(f"j = {j + 1}", fontsize="medium")
        axes[1, j].imshow(maps[j], cmap="gray")
        axes[2, j].imshow(maps[j] >= maps[j].mean(), cmap="gray")
    for row, label in zip(axes, ("kernel, a plane", "feature map", "above its mean"), strict=True):
        row[0].set_ylabel(label)
        for ax in row:
            ax.set_xticks([])
            ax.set_yticks([])
    numbers = [_numbers(each, of) for each, of in zip(layers, made, strict=True)]
    means = {key: float(np.mean([of[key] for of in numbers])) for key in numbers[0]}
    return figure, {"J": J, "layers": numbers, "mean": means}


def _image(data: DataSet) -> Tensor:
    (batch,) = data.test.batches([np.array([IMAGE])])
    images: Tensor = Feed(data.mean, data.deviation, torch.device("cpu"))(batch)[0]
    return images


def feature_maps(net: nn.Module, layers: list[ProjectionConv2d], image: Tensor) -> list[Tensor]:
    """What each layer makes of the image: (channels, height, width)."""
    made: list[Tensor] = []
    hooks = [layer.register_forward_hook(lambda _, __, output: made.append(output[0])) for layer in layers]
    with torch.inference_mode():
        net(image)
    for hook in hooks:
        hook.remove()
    return made


def _numbers(layer: ProjectionConv2d, maps: Tensor) -> dict[str, float]:
    """Means over pairs of projections of one kernel.

    different_taps   the share of taps in which two kernels have other signs
    correlation      |r| of their feature maps; 1: they see the same
    """
    J = layer.num_projections
    signs = layer.W.detach() >= 0
    taps, correlations = [], []
    for one in range(J):
        for other in range(one + 1, J):
            taps.append(float((signs[one] != signs[other]).float().mean()))
            for o in range(len(maps) // J):
                pair = torch.stack([maps[o * J + one].flatten(), maps[o * J + other].flatten()])
                correlations.append(float(torch.corrcoef(pair)[0, 1].nan_to_num().abs()))
    return {"different_taps": float(np.mean(taps)), "correlation": float(np.mean(correlations))}
