"""Every net that can be exported, in ONNX (floats, packed bits) and QONNX: programs agree with the reference."""

import pytest
import torch

import foreign_nets
import onebit
import test_export as exports
from exchanged import FORMS, margins, needs, run_form
from onebit.modelfile import read_model
from onebit.reference import Reference
from packed_nets import Inception, Mobile, assert_agrees, lived_in

LEVELS = 1e-2  # one value on the edge of two levels, rounded to the other one, moves the outputs by that at most


@pytest.fixture(autouse=True)
def _programs():
    needs("onnx", "onnxruntime", "qonnx")


def assert_forms_agree(net, tmp_path, x, **options):
    path = tmp_path / "net.onebit"
    onebit.export(net, path, x[:1], **options)
    model, images = read_model(path), x.numpy()
    has_levels = any(node.op == "quantize" for node in model.graph.nodes)
    expected, margin = Reference(model)(images), margins(model, images)
    for form in FORMS:
        count = 1 if form == "qonnx" and (margin[:1] > 1e-5).all() else len(images)  # it takes its time
        found = run_form(form, model, images[:count])
        assert_agrees(found, expected[:count], margin[:count], LEVELS if has_levels else 1e-4)


@pytest.mark.parametrize(("name", "bits", "J"), exports.grid(exports.NETS, exports.QUICK))
def test_models(name, bits, J, tmp_path):
    assert_forms_agree(exports.model_net(name, bits, J), tmp_path, exports.images(2))


@pytest.mark.parametrize(
    ("method", "options"), [case[:2] for case in exports.test_methods.pytestmark[0].args[1]], ids=str
)
def test_methods(method, options, tmp_path):
    assert_forms_agree(exports.method_net(method, options), tmp_path, exports.images(2))


@pytest.mark.parametrize(("make", "bits", "J"), exports.grid(exports.OTHERS, exports.QUICK_OTHERS))
def test_nets_of_others(make, bits, J, tmp_path):
    net = exports.net_of_others(make, bits, J)
    assert_forms_agree(net, tmp_path, exports.images(2)[:, :, :20, :23])


@pytest.mark.parametrize("make", [Mobile, lambda: Mobile(hard=False), Inception, foreign_nets.MobileNet])
def test_float_nets(make, tmp_path):
    torch.manual_seed(1)
    assert_forms_agree(lived_in(make()), tmp_path, exports.images(2, size=33))


@pytest.mark.parametrize(
    "options", [{"activation_bits": 8}, {"int8_layers": True}, {"float_bits": 16}, {"float_bits": 8}], ids=str
)
def test_fewer_bits(options, tmp_path):
    net, x = exports.model_net("wrn22", 32, 2), exports.images(2)
    calibration = None if "float_bits" in options else [x]
    assert_forms_agree(net, tmp_path, x, calibration=calibration, **options)
