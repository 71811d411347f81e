"""1-bit layers of every method with a bias, groups and other geometry than usual: the file does what they do."""

import pytest
import torch
from torch import nn

from onebit.methods import METHODS, layer_of
from packed_nets import agreement, assert_agrees

GEOMETRY = {
    "groups": {"kernel_size": 3, "padding": 1, "groups": 2},
    "stride": {"kernel_size": (3, 2), "stride": (1, 2), "padding": (0, 1)},
    "dilation": {"kernel_size": (2, 3), "dilation": (3, 1), "padding": (1, 2), "padding_mode": "reflect"},
}
LAYERS = [
    *((method, {}) for method in METHODS if method != "float"),
    ("pcnn", {"num_projections": 3, "scale": "kernel"}),
    ("pcnn", {"levels": 5}),
    ("pcnn", {"levels": (-1.0, 0.0, 0.5), "activation_bits": 1}),
    ("xnor", {"scale_map": True}),
    ("lbcnn", {"sparsity": 1.0}),
    ("abc", {"weight_bases": 2, "activation_bases": 3}),
    ("mcn", {"num_projections": 3}),
]


@pytest.mark.parametrize("geometry", GEOMETRY)
@pytest.mark.parametrize(("method", "options"), LAYERS, ids=str)
def test_a_layer_with_a_bias(method, options, geometry, tmp_path):
    layer = layer_of(method)(4, 6, bias=True, **GEOMETRY[geometry], **options)
    with torch.no_grad():
        layer.bias.copy_(torch.linspace(-2, 3, 6))
    x = torch.randn(3, 4, 9, 8)
    if method == "dorefa":  # on its 16 levels, so that no rounding can differ
        x = (15 * x.clamp(0, 1)).round() / 15
    found, expected, _ = agreement(nn.Sequential(layer).eval(), tmp_path / "net.onebit", x)
    assert_agrees(found, expected)
