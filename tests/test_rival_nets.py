"""What belongs to rival methods beyond their layers; and nets of earlier forms of a method, which are refused."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import onebit
from onebit.errors import UserError
from onebit.methods import METHODS, revision_of
from onebit.models.common import PaddingShortcut
from onebit.rivals import LocalBinaryConv2d
from onebit.training.nets import pack_weights, read_tensors, read_weights
from training_runs import call, small_run


def padded_by_hand(x):
    """Means over the pixels that are there of 3x3 windows around every second one, then as many planes of zeros."""
    images, planes, height, width = x.shape
    y = np.zeros((images, 2 * planes, (height + 1) // 2, (width + 1) // 2))
    for n, p, row, column in np.ndindex(images, planes, *y.shape[2:]):
        rows = [r for r in (2 * row - 1, 2 * row, 2 * row + 1) if 0 <= r < height]
        columns = [c for c in (2 * column - 1, 2 * column, 2 * column + 1) if 0 <= c < width]
        y[n, p, row, column] = np.mean([x[n, p, r, c] for r in rows for c in columns])
    return y


@pytest.mark.parametrize("size", [(8, 8), (7, 5), (1, 2), (6, 1)])
def test_mcdonnell_s_shortcut(size):
    x = np.random.default_rng(0).normal(size=(2, 3, *size))
    shortcut = PaddingShortcut()
    found = shortcut(torch.from_numpy(x))
    np.testing.assert_allclose(found.numpy(), padded_by_hand(x), rtol=1e-12, atol=1e-15)
    conv = nn.Conv2d(3, 6, 3, 2, padding=1)
    assert found.shape == conv(torch.zeros(2, 3, *size)).shape  # what it is added to
    assert not list(shortcut.parameters())


@pytest.mark.parametrize("name", ["wrn22", "resnet18"])
def test_mcdonnell_s_shortcuts_take_what_comes_in(name):
    """With the convolution silenced, a block that widens gives its shortcut of x itself, not of a norm of it."""
    net = getattr(onebit.models, name)(4, method="mcdonnell", num_classes=5).eval()
    assert sum(isinstance(module, PaddingShortcut) for module in net.modules()) == {"wrn22": 2, "resnet18": 3}[name]
    assert not any("shortcut" in key for key in net.state_dict())
    block = next(block for block in net.blocks if isinstance(block.shortcut, PaddingShortcut))
    last = block.conv2 if name == "wrn22" else block.conv
    last.scale_of_signs = lambda: torch.zeros(())
    x = torch.randn(2, 4, 8, 8)
    torch.testing.assert_close(block(x), torch.from_numpy(padded_by_hand(x.numpy())).float())


def test_mcdonnell_s_net_sees_images_through_a_norm_that_learns():
    net = onebit.models.wrn22(4, method="mcdonnell").eval()
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        net.norm_of_images.weight.copy_(torch.tensor([2.0, -1.0, 0.5]))
        net.norm_of_images.bias.copy_(torch.tensor([0.1, 0.2, 0.3]))
        net.norm_of_images.eps = 0.0
        seen = []
        net.stem.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        net(x)
    torch.testing.assert_close(seen[0], torch.stack([2 * x[:, 0] + 0.1, 0.2 - x[:, 1], 0.5 * x[:, 2] + 0.3], 1))


def test_lbcnn_has_four_times_as_many_fixed_filters_as_outputs():
    layer = LocalBinaryConv2d(4, 6, 3, groups=2)
    assert layer.fixed.shape == (24, 2, 3, 3)
    assert layer.pointwise.shape == (6, 12, 1, 1)
    assert "num_intermediate" not in repr(layer)
    assert "num_intermediate=6" in repr(LocalBinaryConv2d(4, 6, 3, num_intermediate=6))
    net = onebit.models.wrn22(4, method="lbcnn")
    assert {len(m.fixed) // m.out_channels for m in net.modules() if isinstance(m, LocalBinaryConv2d)} == {4}


def rewritten(file, **changes):
    """The weights file, with other facts about its net."""
    weights = read_weights(file)
    net = weights.spec.build()
    net.load_state_dict(weights.tensors)
    spec = weights.spec.model_copy(update=changes)
    file.write_bytes(pack_weights(net, spec))


@pytest.mark.parametrize("method", ["mcn", "lbcnn", "mcdonnell"])
def test_weights_of_an_earlier_form_of_a_method_are_refused(method, tmp_path, capsys):
    """One line says so, whoever asks; the run can't be gone on with as if nothing had happened."""
    small_run(tmp_path / "run", method=method, epochs=1)
    file = tmp_path / "run" / "last.safetensors"
    described = json.loads(read_tensors(file, "weights")[1])
    assert described["revision"] == revision_of(method) == 2
    rewritten(file, revision=1)
    told = f"its net is {method} of revision 1, .* revision 2: train it anew"
    with pytest.raises(UserError, match=told):
        small_run(tmp_path / "run", method=method, epochs=1, resume=True)
    with pytest.raises(UserError, match=told):
        small_run(tmp_path / "next", method=method, epochs=1, initial_checkpoint=str(file))
    with pytest.raises(UserError, match=told):
        onebit.load_trained(file)
    code, _, errors = call(capsys, "export", str(tmp_path / "run"))
    assert code == 2
    assert "of revision 1" in errors
    assert "Traceback" not in errors


def test_a_weights_file_that_tells_no_revision_is_of_the_first(tmp_path):
    """As those of earlier versions of the package are."""
    small_run(tmp_path / "run", method="bwn", epochs=1)
    weights = read_weights(tmp_path / "run")
    assert weights.spec.revision == 1
    described = weights.spec.model_dump(mode="json", exclude={"revision"})
    assert type(weights.spec).model_validate(described) == weights.spec
    assert {method for method in METHODS if revision_of(method) > 1} == {"mcn", "lbcnn", "mcdonnell"}
