"""Layers take one image (channels, height, width) as well, as `nn.Conv2d` does."""

import pytest
import torch

from onebit.methods import METHODS, layer_of

CASES = [*((method, {}) for method in METHODS if method != "float"), ("xnor", {"scale_map": True})]


@pytest.mark.parametrize(("method", "options"), CASES, ids=str)
def test_one_image_is_a_batch_of_one(method, options):
    layer = layer_of(method)(4, 6, 3, padding=1, groups=2, bias=True, **options)
    x = torch.randn(2, 4, 6, 7)
    torch.testing.assert_close(torch.stack([layer(image) for image in x]), layer(x))
