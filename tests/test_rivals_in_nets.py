"""The rival methods in nets: foreign ones by binarize, the package's own, and in training."""

import copy
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import foreign_nets
import onebit
from onebit.binarization import STRUCTURE
from onebit.convolution import QuantizedConv2d
from onebit.counting import bits_of
from onebit.errors import UserError
from onebit.methods import METHODS, activation_bits_of, layer_of, method_options
from onebit.models.resnet import bireal_name
from onebit.training.learner import Learner
from onebit.training.nets import build_trained, read_weights
from onebit.training.schedule import factor, stages
from training_runs import assert_same_run, records, small_config, small_run

RIVALS = [method for method in METHODS if method not in {"pcnn", "float"}]


def layers_of(net):
    return [module for module in net.modules() if isinstance(module, QuantizedConv2d)]


@pytest.mark.parametrize("method", RIVALS)
@pytest.mark.parametrize("make", [foreign_nets.VGG, foreign_nets.ResNet])
def test_binarize_on_a_foreign_net(method, make):
    model = make()
    convs = {name: module for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}
    weights = {name: module.weight for name, module in convs.items()}
    one_bit = activation_bits_of(method) == 1
    how = {"relu_before_sign": "prelu"} if one_bit and make is foreign_nets.ResNet else {}
    assert onebit.binarize(model, method, **how) is model
    layers = {name: module for name, module in model.named_modules() if isinstance(module, QuantizedConv2d)}
    assert layers
    assert all(type(layer) is layer_of(method) for layer in layers.values())
    report = onebit.binarization_report(model)
    assert report.replaced.keys() == layers.keys()
    for name, layer in layers.items():
        if layer.KERNEL:
            assert getattr(layer, layer.KERNEL) is weights[name]  # the trained weights themselves
    assert ("begin at random" in str(report)) == (method == "lbcnn")
    optimizer = torch.optim.SGD(onebit.parameter_groups(model, lr=0.01), momentum=0.9)
    onebit.discrete_backprop(model, optimizer)
    x = torch.randn(4, 3, 32, 32)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert model.eval()(x).isfinite().all()


@pytest.mark.parametrize("method", RIVALS)
def test_a_frozen_conv_stays_frozen(method):
    model = foreign_nets.VGG()
    for parameter in model.parameters():
        parameter.requires_grad_(requires_grad=False)
    onebit.binarize(model, method)
    assert not any(p.requires_grad for layer in layers_of(model) for p in layer.parameters())


@pytest.mark.parametrize("K", [1, 2])
def test_mcn_begins_with_bits_of_the_kernels_size_and_matrices_near_1(K):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, 3))
    with torch.no_grad():
        weight = model[1].weight.mul_(9).clone()
    layer = onebit.binarize(model, "mcn", num_projections=K)[1]
    assert torch.equal(layer.C, weight[::K])
    torch.testing.assert_close(layer.b, weight[::K].abs().mean())
    if K == 1:
        assert torch.equal(layer.M, torch.ones(1, 3, 3))
    else:
        assert (layer.M >= 0.5).all()
        assert (layer.M <= 1.5).all()
        assert layer.M.std() > 0


def test_the_package_s_nets_have_the_structure_and_their_report_does_not_deny_it():
    for method in ("bireal", "mcdonnell", "xnor", "lbcnn"):
        assert len(onebit.binarization_report(onebit.models.wrn22(4, method=method)).notes) == 1
        assert STRUCTURE[method] in onebit.binarization_report(onebit.binarize(foreign_nets.VGG(), method)).notes
    assert "no shortcuts" in str(onebit.binarization_report(onebit.models.vgg16(4, method="bireal", hidden=8)))
    assert "no shortcuts" in str(onebit.binarization_report(onebit.binarize(foreign_nets.VGG(), "bireal")))


def test_binarize_takes_options_of_a_method_and_refuses_others():
    net = onebit.binarize(foreign_nets.VGG(), "abc", weight_bases=3, activation_bases=2)
    assert {(layer.weight_bases, layer.activation_bases) for layer in layers_of(net)} == {(3, 2)}
    net = onebit.binarize(foreign_nets.VGG(), "mcn", num_projections=2)
    assert {layer.num_projections for layer in layers_of(net)} == {2}
    assert {layer.activation_bits for layer in layers_of(onebit.binarize(foreign_nets.VGG(), "dorefa"))} == {4}


@pytest.mark.parametrize("method", METHODS)
def test_options_that_a_method_does_not_take_are_refused(method):
    """Every option of every method, given to every other one."""
    values = {
        "lam": 1e-3, "eta": 0.5, "forward_w": "mean", "w_init": "ones", "scale": "kernel", "levels": 3,
        "num_projections": 2, "scale_map": True, "weight_bases": 2, "activation_bases": 2, "theta": 0.1,
        "sparsity": 0.5, "num_intermediate": 4, "magnitude_aware": False,
    }  # fmt: skip
    assert set(values) | {"activation_bits"} == {name for each in METHODS for name in method_options(each)}
    for name, value in values.items():
        model = foreign_nets.VGG()
        before = [type(module) for module in model.modules()]
        if name in method_options(method):
            continue
        with pytest.raises(ValueError, match=f"{name}=.*method '{method}' does not take it"):
            onebit.binarize(model, method, **{name: value})
        assert [type(module) for module in model.modules()] == before
    bits = () if layer_of(method) is None else layer_of(method).ACTIVATION_BITS
    for wrong in {1, 2, 3, 16} - set(bits):
        with pytest.raises(ValueError, match=f"activation_bits={wrong}"):
            onebit.binarize(foreign_nets.VGG(), method, activation_bits=wrong)


@pytest.mark.parametrize("make", [onebit.models.wrn22, onebit.models.resnet18, onebit.models.vgg16])
def test_an_unknown_method_names_the_known_ones(make):
    with pytest.raises(ValueError) as caught:
        make(8, method="bireel")
    for word in ["method='bireel'", "did you mean 'bireal'?", *METHODS]:
        assert word in str(caught.value)


@pytest.mark.parametrize("method", RIVALS)
@pytest.mark.parametrize("name", ["wrn22", "resnet18", "vgg16"])
def test_the_nets_take_every_method(method, name):
    small = {"wrn22": {"width": 4}, "resnet18": {"width": 4}, "vgg16": {"width": 4, "hidden": 8}}[name]
    torch.manual_seed(0)
    net = getattr(onebit.models, name)(method=method, num_classes=5, **small)
    assert layers_of(net)
    assert all(type(layer) is layer_of(method) for layer in layers_of(net))
    seen = []
    for layer in layers_of(net):
        layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    y = net(torch.randn(3, 3, 32, 32))
    assert y.shape == (3, 5)
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    if activation_bits_of(method) == 1:  # no ReLU makes an input +1 everywhere
        assert all((x < 0).any() and (x > 0).any() for x in seen if x[0, 0].numel() > 1)
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    if method == "mcdonnell":  # that of the images alone
        assert [norm.num_features for norm in norms if norm.affine] == [3]
        assert norms[0].affine
    else:
        assert all(norm.affine for norm in norms)
    if method == "lbcnn":  # no ReLU before the fixed filters
        assert all((x < 0).any() for x in seen)


@pytest.mark.parametrize(
    ("one", "another"),
    [
        ({"method": "bireal"}, {"method": "bnn"}),
        ({"shortcuts": "conv"}, {}),
        ({"method": "bireal"}, {"method": "bireal", "shortcuts": "block"}),
    ],
)
def test_a_wrn_can_have_a_shortcut_round_every_conv(one, another):
    """With both convs silenced a block passes its input on; with the second silenced, the first conv's sum."""
    net = onebit.models.wrn22(8, activation_bits=1, **one).eval()
    plain = onebit.models.wrn22(8, activation_bits=1, **another).eval()
    block, other = net.blocks[1], plain.blocks[1]
    other.load_state_dict(block.state_dict())
    x = torch.randn(2, 8, 8, 8)
    for conv in (block.conv2, other.conv2):
        conv.quantized_weight = lambda: torch.zeros(8, 8, 3, 3)
    first, seen = block.conv1(block.norm1(x)), []
    block.norm2.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    torch.testing.assert_close(block(x), x + first)
    torch.testing.assert_close(seen[0], x + first)
    torch.testing.assert_close(other(x), x)


@pytest.mark.parametrize("method", RIVALS)
def test_resnet18_in_the_form_of_its_authors(method):
    net = onebit.models.resnet18(4, method=method, num_classes=5, form="own")
    seen = {}
    for layer in layers_of(net):
        layer.register_forward_pre_hook(lambda layer, inputs: seen.update({layer: inputs[0]}))
    net(torch.randn(4, 3, 64, 64)).sum().backward()
    assert len(seen) == 16
    assert all(parameter.grad is not None for parameter in net.parameters())
    assert not any(isinstance(module, nn.PReLU) for module in net.modules())
    if activation_bits_of(method) == 1:
        for x in seen.values():
            assert 0.01 < (x < 0).float().mean() < 0.99
    shared = onebit.models.resnet18(4, method=method, num_classes=5)
    assert sum(isinstance(module, nn.PReLU) for module in shared.modules()) == 16


def test_what_the_authors_forms_of_resnet18_are():
    as_float = onebit.models.resnet18(4, method="float", num_classes=5)
    standard = onebit.models.resnet18(4, method="bwn", num_classes=5, form="own")
    assert standard.state_dict().keys() == as_float.state_dict().keys()
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():  # with kernels of +-1, each filter's scale is 1: the same net
        for name, parameter in standard.named_parameters():
            if name.endswith(("conv1.weight", "conv2.weight")):
                parameter.copy_(parameter.sign())
    as_float.load_state_dict(standard.state_dict())
    torch.testing.assert_close(standard.eval()(x), as_float.eval()(x))
    unit = onebit.models.resnet18(4, method="bireal", num_classes=5, form="own").eval().blocks[1]
    x = torch.randn(2, 4, 8, 8)
    torch.testing.assert_close(unit(x), unit.norm(unit.conv(x)) + x)
    net = onebit.models.resnet18(4, method="bnn", num_classes=5, form="own").eval()
    block, x = net.blocks[1], torch.randn(2, 4, 8, 8)
    torch.testing.assert_close(block(x), block.conv2(block.norm2(block.conv1(block.norm1(x)))) + x)
    x = torch.randn(2, 3, 32, 32)
    y = net.blocks(net.norm(net.pool(net.stem(x))))
    torch.testing.assert_close(net(x), net.classifier(net.last[0](y).relu().mean(dim=(2, 3))))
    for method in ("pcnn", "float"):  # theirs is what they have anyway
        one, other = (onebit.models.resnet18(4, method=method, form=form) for form in ("bireal", "own"))
        assert one.state_dict().keys() == other.state_dict().keys()
    with pytest.raises(ValueError, match="form='mine': use 'bireal' or 'own'"):
        onebit.models.resnet18(4, form="mine")


def test_xnor_normalises_before_the_sign():
    net = onebit.models.resnet18(8, method="xnor", num_classes=4)
    seen = {}
    unit = net.blocks[3]
    unit.norm.register_forward_hook(lambda *a: seen.update(norm=a[2]))
    unit.conv.register_forward_pre_hook(lambda _, inputs: seen.update(conv=inputs[0]))
    net(torch.randn(4, 3, 64, 64))
    assert seen["conv"] is seen["norm"]


@pytest.mark.parametrize("method", METHODS)
def test_storage_is_counted_from_the_layers(method):
    net = onebit.models.wrn22(8, method=method)
    kept = onebit.storage(net)
    float_net = onebit.models.wrn22(8, method="float")
    total = sum(p.numel() for p in float_net.parameters())
    # The convs that are replaced: all 3x3 ones but the stem.
    replaced = sum(
        p.numel() for n, p in float_net.named_parameters() if n.endswith(("conv1.weight", "conv2.weight"))
    )
    filters = sum(
        p.shape[0] for n, p in float_net.named_parameters() if n.endswith(("conv1.weight", "conv2.weight"))
    )
    layers = 18
    if method == "mcdonnell":  # the float net's two shortcuts learn, his do not; and he has a norm of the images
        total += 2 * 3 - sum(p.numel() for n, p in float_net.named_parameters() if "shortcut" in n)
    assert kept.parameters == sum(p.numel() for p in net.parameters())
    if method == "lbcnn":
        fixed = [layer.fixed for layer in layers_of(net)]
        assert kept.bits == sum(f.numel() + int((f != 0).sum()) for f in fixed)
        assert kept.floats == total - replaced + sum(layer.pointwise.numel() for layer in layers_of(net))
        assert kept.bytes == -(-kept.bits // 8) + 4 * kept.floats
        assert bits_of(net) == (2, 32)
        return
    bits = {"float": 0, "pcnn": replaced + 9 * layers}.get(method, replaced)
    scales = {"pcnn": layers, "bwn": filters, "xnor": filters, "bireal": filters, "dorefa": layers,
              "abc": 3 * layers, "mcn": 9 * layers, "float": replaced}.get(method, 0)  # fmt: skip
    assert (kept.bits, kept.floats) == (bits, total - replaced + scales)
    assert kept.bytes == -(-bits // 8) + 4 * (total - replaced + scales)
    expected = {"float": (32, 32), "dorefa": (1, 4)}.get(method, (1, activation_bits_of(method)))
    assert bits_of(net) == expected


def test_storage_of_projections_bases_and_shared_weights():
    J4 = onebit.ProjectionConv2d(16, 16, 3, num_projections=4, bias=True)
    assert onebit.storage(J4) == (4 * 16 * 9 + 4 * 9 + 16, 4 * 16 * 9 + 4 * 9, 1 + 16)
    assert onebit.storage(onebit.ProjectionConv2d(16, 16, 3, scale="kernel", forward_w="mean"))[1:] == (2304, 16)
    assert onebit.storage(onebit.ProjectionConv2d(16, 16, 3, levels=5))[1:] == (3 * 2304, 1)
    several = onebit.ProjectionConv2d(16, 16, 3, num_projections=4, levels=5)  # of a kernel four, each of 3 bits
    assert onebit.storage(several) == (4 * 16 * 9 + 4 * 9, 4 * 3 * 4 * 16 * 9, 1)
    abc = onebit.rivals.AbcConv2d(4, 4, 3, weight_bases=3, activation_bases=2)
    assert onebit.storage(abc)[1:] == (3 * 144, 3 + 4)
    assert bits_of(abc) == (3, 2)
    full = onebit.rivals.LocalBinaryConv2d(4, 4, 3, sparsity=1.0)
    assert onebit.storage(full)[1:] == (4 * 144, 4 * 16)
    assert bits_of(full) == (1, 32)
    assert "576 bits and 64 numbers of 32 bits" in str(onebit.storage(full))
    assert onebit.storage(onebit.rivals.LocalBinaryConv2d(4, 4, 3, sparsity=1.0, num_intermediate=4))[1:] == (
        144,
        16,
    )
    layer = onebit.rivals.BwnConv2d(4, 4, 3)
    twice = nn.Sequential(layer, onebit.rivals.BwnConv2d(4, 4, 3), layer)
    twice[1].weight = layer.weight
    assert onebit.storage(twice)[1:] == (144, 4)
    assert onebit.storage(nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)))[1:] == (0, 6 + 3 + 6)


def test_storage_of_resnet18_is_the_papers():
    """374.1 Mbit in float, 33.7 Mbit with J = 1 (where BN has four vectors and PReLU none)."""
    assert round(8e-6 * onebit.storage(onebit.models.resnet18(method="float")).bytes, 1) == 374.1
    assert abs(8e-6 * onebit.storage(onebit.models.resnet18()).bytes - 33.7) < 0.1


@pytest.mark.parametrize(("method", "more"), [("bwn", {}), ("mcn", {"projections": 2, "width": 4}), ("abc", {})])
def test_a_resumed_run_of_a_rival_is_the_uninterrupted_one(method, more, tmp_path):
    keys = {"method": method, "epochs": 2, "checkpoint_steps": 3} | more
    small_run(tmp_path / "whole", **keys)
    update, count = Learner.update, iter(range(100))

    def stop_at_the_fifth(self, *args):
        if next(count) == 5:
            raise KeyboardInterrupt
        return update(self, *args)

    Learner.update = stop_at_the_fifth
    try:
        with pytest.raises(KeyboardInterrupt):
            small_run(tmp_path / "parts", **keys)
    finally:
        Learner.update = update
    small_run(tmp_path / "parts", resume=True, **keys)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert "flipped_kernels" in records(tmp_path / "whole", "epoch")[0]


@pytest.mark.parametrize("method", RIVALS)
def test_a_float_net_is_a_beginning_for_every_method(method, tmp_path):
    small_run(tmp_path / "float", method="float", epochs=1)
    start = {"initial_checkpoint": str(tmp_path / "float"), "epochs": 1, "lr": 1e-12, "weight_decay": 0.0}
    small_run(tmp_path / method, method=method, **start)
    trained, begun = (build_trained(read_weights(tmp_path / name)) for name in ("float", method))
    weights = {name: p for name, p in trained.named_parameters() if name.endswith("conv1.weight")}
    kernels = {name: m for name, m in begun.named_modules() if isinstance(m, QuantizedConv2d)}
    for name, weight in weights.items():
        layer = kernels[name.removesuffix(".weight")]
        if layer.KERNEL:
            expected = after_a_step(method, weight)
            torch.testing.assert_close(getattr(layer, layer.KERNEL), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(trained.stem.weight, begun.stem.weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["bnn", "xnor", "bireal", "abc"])
def test_a_rival_in_two_stages(method, tmp_path):
    small_run(tmp_path / "run", method=method, two_stage=True, epochs=1)
    first, last = (read_weights(tmp_path / "run" / name) for name in ("stage1.safetensors", "last.safetensors"))
    assert (first.spec.net.activation_bits, last.spec.net.activation_bits) == (32, 1)


UNMOVED = {"lr": 1e-12, "weight_decay": 0.0}


@pytest.mark.parametrize("bits", [32, 1])
def test_a_rival_goes_on_from_its_own_weights(bits, tmp_path):
    """With and without the parameters that belong to 1-bit inputs; a rate of nearly 0 leaves what it began with."""
    start = {"method": "abc", "activation_bits": bits, "epochs": 1}
    small_run(tmp_path / "first", **start, lr=0.3)
    small_run(tmp_path / "second", **start, **UNMOVED, seed=1, initial_checkpoint=str(tmp_path / "first"))
    first, second = (build_trained(read_weights(tmp_path / name)) for name in ("first", "second"))
    parameters = dict(second.named_parameters())
    assert any(name.endswith(".v") for name in parameters) == (bits == 1)
    for name, parameter in first.named_parameters():
        torch.testing.assert_close(parameters[name], parameter, rtol=1e-5, atol=1e-6)
    fresh = dict(onebit.models.wrn22(2, method="abc", activation_bits=bits, in_channels=1).named_parameters())
    assert all(not torch.allclose(parameters[name], fresh[name]) for name in fresh if name.endswith(".v"))


def test_a_rival_with_signs_goes_on_from_its_weights_without(tmp_path):
    """What belongs to 1-bit inputs is new, the rest is carried over."""
    small_run(tmp_path / "first", method="abc", activation_bits=32, epochs=1)
    small_run(tmp_path / "second", method="abc", epochs=1, **UNMOVED, initial_checkpoint=str(tmp_path / "first"))
    first, second = (build_trained(read_weights(tmp_path / name)) for name in ("first", "second"))
    trained, begun = dict(first.named_parameters()), dict(second.named_parameters())
    assert {name.rpartition(".")[2] for name in begun.keys() - trained.keys()} == {"v", "beta"}
    for name, parameter in trained.items():
        torch.testing.assert_close(begun[name], parameter, rtol=1e-5, atol=1e-6)
    assert all((p == 0.5).all() for name, p in begun.items() if name.endswith(".v"))


@pytest.mark.parametrize("method", ["xnor", "mcdonnell", "bireal", "lbcnn", "mcn"])
def test_a_float_resnet18_is_a_beginning(method, tmp_path):
    """Block by block, though the Bi-Real form names them otherwise; what a method has of its own is new."""
    keys = {"model": "resnet18", "width": 4, "epochs": 1, "limit_images": 80, "hold_out": 10}
    small_run(tmp_path / "float", method="float", **keys)
    small_run(tmp_path / "next", method=method, initial_checkpoint=str(tmp_path / "float"), **keys, **UNMOVED)
    trained, begun = (build_trained(read_weights(tmp_path / name)) for name in ("float", "next"))
    found = dict(begun.named_parameters())
    kernels = {name: m for name, m in begun.named_modules() if isinstance(m, QuantizedConv2d)}
    carried = set()
    for name, parameter in trained.named_parameters():
        mine = bireal_name(name)
        layer = kernels.get(mine.removesuffix(".weight"))
        if layer is not None and layer.KERNEL:
            mine = mine.removesuffix("weight") + layer.KERNEL
        if mine not in found or (method == "xnor" and ".norm." in mine):
            continue  # norms that stand elsewhere, shortcuts that learn nothing, kernels that are fixed
        expected = after_a_step(method, parameter) if layer is not None else parameter
        torch.testing.assert_close(found[mine], expected, rtol=1e-5, atol=1e-6, msg=lambda m, n=mine: f"{n}: {m}")
        carried.add(mine)
    assert {"stem.weight", "classifier.weight"} <= carried
    assert len([name for name in carried if "conv." in name]) == (0 if method == "lbcnn" else 16)
    new = {name for name in found if name not in carried}
    own = {"lbcnn": "pointwise", "mcn": ".M", "mcdonnell": "norm_of_images", "xnor": ".norm."}.get(method, "prelu")
    assert all(own in name or "prelu" in name for name in new), new


def after_a_step(method, weight):
    """What the first step makes of a kernel that is carried over."""
    weight = weight.detach()
    if method in {"bwn", "xnor"}:
        weight = weight - weight.mean(dim=1, keepdim=True)
    return weight.clamp(-1, 1) if method in {"binaryconnect", "bnn", "bwn", "xnor"} else weight


@pytest.mark.parametrize("method", ["bwn", "xnor", "bireal", "mcdonnell"])
def test_a_float_resnet18_is_a_beginning_in_the_form_of_its_authors(method, tmp_path):
    keys = {"model": "resnet18", "width": 4, "epochs": 1, "limit_images": 80, "hold_out": 10}
    small_run(tmp_path / "float", method="float", **keys)
    start = str(tmp_path / "float")
    small_run(tmp_path / "next", method=method, form="own", initial_checkpoint=start, **keys, **UNMOVED)
    weights = read_weights(tmp_path / "next")
    assert weights.spec.net.form == "own"
    assert weights.spec.summary().endswith(", form of its authors")
    begun = dict(build_trained(weights).named_parameters())
    carried = set()
    for name, parameter in build_trained(read_weights(tmp_path / "float")).named_parameters():
        mine = bireal_name(name) if method == "bireal" else name
        is_kernel = re.search(r"conv\d?\.weight$", mine) is not None
        if method in {"xnor", "mcdonnell"} and mine.startswith("blocks.") and not is_kernel:
            continue  # norms and shortcuts stand elsewhere
        if mine in begun:
            expected = after_a_step(method, parameter) if is_kernel else parameter
            torch.testing.assert_close(begun[mine], expected, rtol=1e-5, atol=1e-6)
            carried.add(mine)
    assert len([name for name in carried if re.search(r"conv\d?\.weight$", name)]) == 16
    assert {"stem.weight", "classifier.weight"} <= carried
    if method in {"bwn", "bireal"}:
        assert carried == begun.keys()


def test_a_form_is_resnet18_s(tmp_path):
    with pytest.raises(UserError, match="--form own: a choice of resnet18; wrn22 has no such"):
        small_run(tmp_path / "run", form="own")


def test_a_net_with_a_weight_that_is_nan_is_not_sound():
    """Behind sign activations its outputs may still be numbers."""
    net, images = onebit.models.vgg16(2, method="bnn", num_classes=3, hidden=8), torch.randn(2, 3, 32, 32)
    learner = SimpleNamespace(net=net)
    assert Learner.is_sound(learner, images)
    with torch.no_grad():
        net.features[0].conv.weight[0, 0, 0, 0] = float("nan")
    assert net.eval()(images).isfinite().all()
    assert not Learner.is_sound(learner, images)


def test_a_float_net_of_other_width_is_refused(tmp_path):
    small_run(tmp_path / "float", method="float", epochs=1, width=4)
    with pytest.raises(UserError, match=r"has blocks.0.conv1.weight as \[4, 4, 3, 3\]"):
        small_run(tmp_path / "bnn", method="bnn", initial_checkpoint=str(tmp_path / "float"), width=8)


def test_restarts():
    """McDonnell's schedule: cosines of 2, 4, 8 epochs, each from the top to (nearly) 0."""
    config = small_config(sched="restarts", epochs=14, restart_epochs=2, restart_factor=2, warmup_epochs=0)
    (stage,) = stages(config)
    steps = 10
    found = [factor(config, stage, epoch, step, steps) for epoch in range(14) for step in range(steps)]
    for begin, end in ((0, 2), (2, 6), (6, 14)):
        cycle = found[begin * steps : end * steps]
        assert cycle[0] == 1
        assert cycle == sorted(cycle, reverse=True)
        assert cycle[len(cycle) // 2] == pytest.approx(0.5)
        assert cycle[-1] < 0.02
    constant = small_config(sched="restarts", epochs=6, restart_epochs=2, restart_factor=1, warmup_epochs=1)
    factors = [factor(constant, stages(constant)[0], epoch, 0, steps) for epoch in range(6)]
    assert factors[1] == factors[3] == factors[5] == 1
    assert factors[0] < 0.1
    assert factors[2] == pytest.approx(factors[4]) == pytest.approx(0.5)


def test_a_copy_is_independent():
    net = onebit.models.wrn22(4, method="mcn", num_projections=2)
    twin = copy.deepcopy(net)
    nn.init.zeros_(twin.blocks[0].conv1.M)
    assert net.blocks[0].conv1.M.abs().sum() > 0
