"""Nets to export, with norms as after training; and small files, made by hand."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import onebit
from onebit.exporting.building import Builder
from onebit.modelfile import Counts, Model, Preprocessing
from onebit.packing import pack_kernels, pack_signs


def lived_in(net, seed=0):
    """The net as if it had been trained: norms with statistics, negative and zero gammas; slopes of either sign."""
    generator = torch.Generator().manual_seed(seed)

    def draw(tensor, low, high):
        with torch.no_grad():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) * (high - low) + low)

    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            draw(module.running_mean, -0.5, 0.5)
            draw(module.running_var, 0.5, 2)
            if module.affine:
                draw(module.weight, -0.5, 1.5)
                draw(module.bias, -0.5, 0.5)
                with torch.no_grad():
                    module.weight[0] = 0
        if isinstance(module, nn.PReLU):
            draw(module.weight, 0.2, 0.6)
            with torch.no_grad():
                module.weight[1::3] *= -1
    return net.eval()


def agreement(net, path, x, **options):
    """Export; the outputs of the file and of PyTorch, and how near to its threshold any value before a sign is.

    The outputs are the reference's; the native engine's must agree with them.
    """
    onebit.export(net, path, x[:1], **options)
    margins = []
    signs = [layer for layer in net.modules() if getattr(layer, "activation_bits", 32) == 1]
    hooks = [
        layer.register_forward_pre_hook(
            lambda _, inputs: margins.append(inputs[0].abs().flatten(1).min(dim=1).values)
        )
        for layer in signs
    ]
    with torch.no_grad():
        expected = net(x).numpy()
    for hook in hooks:
        hook.remove()
    margin = torch.stack(margins).min(dim=0).values.numpy() if margins else np.full(len(x), np.inf)
    found = onebit.load(path, engine="reference")(x.numpy())
    assert_agrees(onebit.load(path)(x.numpy()), found, margin)
    return found, expected, margin


def assert_agrees(found, expected, margin=None, tolerance=1e-4):
    """DESIGN's agreement: 1e-4 of the largest output, where no value before a sign is within 1e-5 of 0."""
    clear = np.ones(len(found), bool) if margin is None else margin > 1e-5
    assert clear.any(), "every image has a value too near to a threshold: the test tells nothing"
    error = np.abs(found - expected)[clear].max() / np.abs(expected).max()
    assert error < tolerance, error


class SqueezeExcite(nn.Module):
    """A gate: mean over the image, two layers, sigmoid, times the image."""

    def __init__(self, width, hard):
        super().__init__()
        self.reduce, self.expand, self.hard = nn.Conv2d(width, 4, 1), nn.Linear(4, width), hard

    def forward(self, x):
        y = F.relu(self.reduce(F.adaptive_avg_pool2d(x, 1)))
        y = self.expand(y.flatten(1))
        y = F.hardsigmoid(y) if self.hard else torch.sigmoid(y)
        return x * y[:, :, None, None]


class Mobile(nn.Module):
    """Depthwise convs, hard-swish, ReLU6, squeeze-excite, dropout: as MobileNetV3 is written."""

    def __init__(self, hard=True):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish(inplace=True)
        )
        self.depthwise = nn.Conv2d(8, 8, 5, padding=2, groups=8)
        self.norm, self.gate = nn.BatchNorm2d(8), SqueezeExcite(8, hard)
        self.conv = nn.Conv2d(8, 8, 3, padding="same", dilation=2)
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 10))

    def forward(self, x):
        x = self.stem(x)
        x = x + self.gate(F.relu6(self.norm(self.depthwise(x))))
        x = self.conv(F.silu(x, inplace=True)) - x * 0.5 + 1
        return self.head(x.mean([2, 3]))


class Inception(nn.Module):
    """Branches that join by channels; pools that overlap; a split; constants for each channel."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.a, self.b = nn.Conv2d(8, 6, 3, padding=1), nn.Conv2d(8, 4, (1, 5), padding=(0, 2), stride=1)
        self.c = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(8, 2, 1), nn.LeakyReLU(0.1), nn.Tanh())
        self.norm = nn.BatchNorm2d(12)
        self.scale = nn.Parameter(torch.linspace(-1, 1, 12).view(12, 1, 1))
        self.register_buffer("shift", torch.linspace(0, 1, 12).view(1, 12, 1, 1))
        self.out = nn.Conv2d(6, 10, 3, padding=1, padding_mode="reflect", groups=2)

    def forward(self, x):
        x = self.stem(x)
        x = torch.cat([self.a(x), F.elu(self.b(x)), self.c(x)], dim=1)
        x = self.norm(x) * self.scale + self.shift / 2
        x = F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)
        left, right = x.chunk(2, dim=1)
        x = F.max_pool2d(left - right, 2, ceil_mode=True)
        x = F.pad(self.out(x), (1, 0, 0, 2))
        x = F.adaptive_avg_pool2d(x, (3, 2))
        return F.softmax(x.reshape(x.shape[0], -1)[:, :20], dim=1)


def small_model(J=2, kind="bits"):
    """A packed net made by hand that has nearly every kind of node."""
    rng = np.random.default_rng(0)

    def floats(*shape):
        return rng.normal(size=shape).astype(np.float32)

    build = Builder((2, 6, 5))
    x = build.add(
        "conv2d", "stem", "input", tensors={"weight": floats(4, 2, 3, 3), "bias": floats(4)}, padding=[1] * 4
    )
    if kind == "bits":
        x = build.threshold("bits", x, floats(4), np.array([0, 1, 0, 0]))
    elif kind == "levels":
        x = build.add("quantize", "levels", x, per_unit=50.0, low=-127, high=127)
    tensors = {"kernels": pack_kernels(floats(6 // J, 4, 3, 3)), "masks": pack_signs(floats(J, 3, 3))}
    x = build.add(
        "bconv2d", "conv", x, tensors=tensors, padding=[1] * 4, out_channels=6, kernel_size=[3, 3], projections=J,
        method="pcnn",
    )  # fmt: skip
    x = build.affine("norm", x, floats(6), floats(6))
    x = build.add("prelu", "prelu", x, tensors={"slope": floats(6)})
    x = build.add("adaptive_avg_pool2d", "pool", x, output_size=[1, 1])
    x = build.add("reshape", "flat", x, shape=[6])
    weight = rng.integers(-127, 128, (3, 6)).astype(np.int8)
    build.add("linear", "fc", x, tensors={"weight": weight, "weight_scale": floats(3), "bias": floats(3)})
    from onebit.exporting.building import narrowed
    from onebit.graph import Graph

    graph = Graph(build.graph.input_shape, [narrowed(node) for node in build.graph.nodes])
    return Model(graph, Preprocessing((0.5, 0.5), (0.2, 0.3), 0.875), ("a", "b", "c"), "small", Counts(1000, 100))
