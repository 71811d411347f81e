"""What layers and nets begin with: as `nn.Conv2d` does it, and He's initialisation of the nets of the paper."""

import pytest
import torch
from torch import nn

from onebit.methods import METHODS, layer_of
from onebit.models import resnet18, vgg16, wrn22

AS_CONV = [method for method in METHODS if layer_of(method) is not None and layer_of(method).CARRIES_OVER]
NETS = {"wrn22": (wrn22, {"width": 16}), "resnet18": (resnet18, {"width": 16}),
        "vgg16": (vgg16, {"width": 8, "hidden": 32})}  # fmt: skip


@pytest.mark.parametrize("method", AS_CONV)
@pytest.mark.parametrize("groups", [1, 2])
def test_kernels_and_bias_are_those_of_a_conv_of_the_same_seed(method, groups):
    geometry = {"kernel_size": (3, 5), "groups": groups, "bias": True}
    torch.manual_seed(5)
    conv = nn.Conv2d(6, 8, **geometry)
    torch.manual_seed(5)
    layer = layer_of(method)(6, 8, **geometry)
    assert torch.equal(getattr(layer, layer.KERNEL), conv.weight)
    assert torch.equal(layer.bias, conv.bias)


def test_an_lbcnn_begins_without_a_bias():
    assert layer_of("lbcnn")(6, 8, 3, bias=True).bias.tolist() == [0.0] * 8


@pytest.mark.parametrize("method", ["float", "pcnn"])
@pytest.mark.parametrize("name", NETS)
def test_a_net_begins_with_he_s_numbers(name, method):
    """Normal, with variance 2 / (outputs * taps); small numbers in linear layers; biases of 0."""
    make, options = NETS[name]
    net = make(method=method, **options)
    seen = 0
    for module in net.modules():
        kernel = getattr(module, "C", getattr(module, "weight", None))
        size = None if kernel is None else kernel.std().item()
        if isinstance(module, nn.Linear):
            assert size == pytest.approx(0.01, rel=0.1)
            assert not module.bias.any()
        elif kernel is not None and kernel.ndim == 4:
            assert module.bias is None
            assert size == pytest.approx((2 / (kernel.shape[0] * kernel[0, 0].numel())) ** 0.5, rel=0.15)
            seen += 1
    assert seen >= 13
