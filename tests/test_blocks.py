"""The blocks that the nets of the paper are made of, written out: what a shortcut takes, and where norms stand."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from onebit.models import resnet18, vgg16
from onebit.models.resnet import BasicBlock
from onebit.models.wrn import Block

X = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1))


def unlike_each_other(net):
    """Norms with numbers of their own for each channel, so that none can stand for another or be left out."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            for numbers in (module.weight, module.running_var):
                nn.init.uniform_(numbers, 0.5, 1.5)
            for numbers in (module.bias, module.running_mean):
                nn.init.normal_(numbers)
    return net.eval()


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("width", "stride"), [(4, 1), (8, 1), (8, 2)])
def test_a_block_of_a_wrn(width, stride, relu, each):
    """One that widens takes its shortcut behind its first norm (and ReLU), another takes what comes in."""
    block = unlike_each_other(Block(4, width, stride, 0.5, relu, "pcnn", each))
    act = F.relu if relu else nn.Identity()
    first = act(block.norm1(X))
    past = X if width == 4 else F.conv2d(first, block.shortcut.weight, stride=stride)
    middle = F.conv2d(first, block.conv1.weight, stride=stride, padding=1)
    if each:
        middle = past = middle + past
    expected = F.conv2d(act(block.norm2(middle)), block.conv2.weight, padding=1) + past
    torch.testing.assert_close(block(X), expected)
    assert expected.shape == (2, width, 8 // stride, 8 // stride)


@pytest.mark.parametrize(("width", "stride"), [(4, 1), (8, 2)])
def test_a_standard_block(width, stride):
    block = unlike_each_other(BasicBlock(4, width, stride))
    past = X if width == 4 else block.shortcut[1](F.conv2d(X, block.shortcut[0].weight, stride=stride))
    inner = F.relu(block.norm1(F.conv2d(X, block.conv1.weight, stride=stride, padding=1)))
    expected = F.relu(block.norm2(F.conv2d(inner, block.conv2.weight, padding=1)) + past)
    torch.testing.assert_close(block(X), expected)


@pytest.mark.parametrize(
    ("method", "form", "has_relu"), [("float", "bireal", True), ("bwn", "own", True), ("pcnn", "bireal", False)]
)
def test_what_stands_before_the_blocks_of_a_resnet18(method, form, has_relu):
    """Norm, ReLU and pool; where signs may follow, pool and norm, so that they see both signs."""
    net = unlike_each_other(resnet18(4, method=method, form=form, num_classes=3))
    seen = []
    net.blocks.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = torch.randn(1, 3, 32, 32)
    net(x)
    stem = F.conv2d(x, net.stem.weight, stride=2, padding=3)
    expected = net.pool(F.relu(net.norm(stem))) if has_relu else net.norm(net.pool(stem))
    torch.testing.assert_close(seen[0], expected)
    assert bool((seen[0] < 0).any()) != has_relu


@pytest.mark.parametrize(("bits", "has_relus"), [(32, True), (1, False)])
def test_units_of_a_vgg(bits, has_relus):
    """Norm, ReLU and pool; pool and norm where signs follow, which is behind all units but the last."""
    net = unlike_each_other(vgg16(2, activation_bits=bits, num_classes=3, hidden=4))
    x = torch.randn(1, 3, 32, 32)
    for number, unit in enumerate(net.features):
        made, has_relu = unit.conv(x), has_relus or number == 12
        expected = unit.pool(F.relu(unit.norm(made))) if has_relu else unit.norm(unit.pool(made))
        x = unit(x)
        torch.testing.assert_close(x, expected)
        assert bool((x < 0).any()) != has_relu
    assert number == 12
