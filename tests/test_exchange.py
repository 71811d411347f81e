"""ONNX and QONNX of packed nets: exact integers, odd cases, clean graphs, refusals that name what they refuse."""

import errno
import json
import os

import numpy as np
import pytest
from hypothesis import assume, given, settings

import onebit
from exchanged import FORMS, needs, run_form
from onebit.errors import ExportError, UserError
from onebit.exchange.converting import content_of, kind_of
from onebit.graph import Graph, Node
from onebit.modelfile import Model, write_model
from onebit.operations import OPERATIONS
from onebit.packing import pack_kernels, pack_signs
from onebit.peers.agreement import draw_images
from onebit.reference import Reference
from packed_nets import small_model
from random_nets import nets
from wire_models import Chain, wire_models

ONNX = ("onnx", "packed onnx")
SMALL = [*wire_models(), *(small_model(J, kind) for J in (1, 2) for kind in ("bits", "levels", "float"))]


def assert_same(form, model, x):
    expected = Reference(model)(x)
    np.testing.assert_allclose(
        run_form(form, model, x), expected, rtol=1e-4, atol=1e-4 * max(np.abs(expected).max(), 1e-3), err_msg=form
    )


def test_onnx_knows_every_operation():
    needs("onnx")
    from onebit.exchange.onnx_nodes import CONVERSIONS

    assert set(CONVERSIONS) == set(OPERATIONS)


@pytest.mark.parametrize("form", FORMS)
def test_every_operation(form):
    needs("onnx", FORMS[form][2])
    seen = set()
    for model in SMALL:
        assert_same(form, model, draw_images(3, model.graph.input_shape))
        seen |= {node.op for node in model.graph.nodes}
    assert seen == set(OPERATIONS)


@settings(max_examples=40, deadline=None)
@given(net=nets())
def test_every_geometry(net):
    needs("onnx", "onnxruntime")
    model = net.model()
    x = draw_images(2, model.graph.input_shape)
    for form in ONNX:
        assert_same(form, model, x)


@settings(max_examples=15, deadline=None)
@given(net=nets())
def test_every_geometry_in_qonnx(net):
    needs("onnx", "qonnx")
    assert_same("qonnx", net.model(), draw_images(1, net.model().graph.input_shape))


@settings(max_examples=40, deadline=None)
@given(net=nets())
def test_integers_of_a_layer_are_exact(net):
    """A 1-bit layer that is fed the same bits or levels, up to its sums."""
    needs("onnx", "onnxruntime")
    end = next((at for at, node in enumerate(net.nodes) if node.op == "bconv2d"), None)
    first = net.nodes[0].op
    assume(end is not None and first != "pad")  # else there are only floats
    # ONNX Runtime multiplies scales into weights; 2^-3 keeps that exact.
    one = Node("as floats", "affine", (net.nodes[end].name,), {}, {"scale": np.full(1, 0.125, np.float32)})
    model = Model(Graph(net.shape, [*net.nodes[: end + 1], one]))
    x = draw_images(2, net.shape)
    expected = Reference(model)(x)
    assert (8 * expected == np.rint(8 * expected)).all()
    for form in ONNX:
        np.testing.assert_array_equal(run_form(form, model, x), expected, err_msg=form)


def bits_net(channels=3, side=5):
    """Bits of the input's signs, ready for a layer."""
    return Chain(channels, side, side).add("sign", "signs")


def ended(net):
    return net.add("affine", tensors={"scale": np.ones(1, np.float32)}).model()


def test_ties_zeros_infinite_thresholds_and_negative_directions():
    """0 and -0.0 are +1; a value on its threshold is +1, in both directions; a bit that never changes."""
    needs("onnx", "onnxruntime", "qonnx")
    thresholds = np.array([0.5, 0.5, -np.inf, np.inf, np.inf, -np.inf, 0, 0], np.float32)
    at_most = np.array([-1, 1, -1, -1, 1, 1, -1, 1])
    net = Chain(8, 1, 4).add(
        "threshold", "bits", tensors={"thresholds": thresholds, "at_most": pack_signs(at_most)}
    )
    model = ended(net)
    row = np.array([0.5, np.nextafter(np.float32(0.5), np.float32(0)), -0.0, 0.0], np.float32)
    x = np.broadcast_to(row, (1, 8, 1, 4)).copy()
    expected = Reference(model)(x)
    assert expected[0, :, 0].tolist()[:4] == [[1, -1, -1, -1], [1, 1, 1, 1], [1, 1, 1, 1], [-1, -1, -1, -1]]
    signs = ended(Chain(8, 1, 4).add("sign"))
    for form in FORMS:
        np.testing.assert_array_equal(run_form(form, model, x), expected, err_msg=form)
        np.testing.assert_array_equal(run_form(form, signs, x - 0.5), Reference(signs)(x - 0.5), err_msg=form)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 255), (-127, 127), (-128, 127), (0, 1), (0, 3), (-100, 150), (-1, 1)]
)
def test_levels_of_any_bounds(low, high):
    """Halves go to the even one; what is beyond the bounds goes to them."""
    needs("onnx", "onnxruntime", "qonnx")
    net = Chain(1, 8, 8).add("quantize", per_unit=2.0, low=low, high=high).bconv(1, 2, taps=(1, 1))
    model = ended(net)
    x = np.concatenate([np.arange(-16, 16) / 4, np.linspace(-200, 200, 32)]).astype(np.float32).reshape(1, 1, 8, 8)
    for form in FORMS:
        np.testing.assert_array_equal(run_form(form, model, x), Reference(model)(x), err_msg=form)


def test_zero_padding_adds_nothing():
    needs("onnx", "onnxruntime", "qonnx")
    net = bits_net().bconv(3, 2, padding=[2, 0, 1, 2], J=2)
    model = ended(net)
    x = draw_images(2, (3, 5, 5))
    for form in FORMS:
        np.testing.assert_array_equal(run_form(form, model, x), Reference(model)(x), err_msg=form)


@pytest.mark.parametrize("count", [1, 7, 8, 9])
def test_any_number_of_bits(count):
    """The last byte may be full or not."""
    needs("onnx", "onnxruntime", "qonnx")
    model = ended(bits_net(channels=1).bconv(1, count, taps=(1, 1)))
    x = draw_images(2, (1, 5, 5))
    for form in FORMS:
        np.testing.assert_array_equal(run_form(form, model, x), Reference(model)(x), err_msg=form)


def test_scales_of_8_bit_weights_may_be_negative_or_0():
    needs("onnx", "onnxruntime", "qonnx")
    net = Chain(2, 3, 3)
    weight = np.array([[[[-128]], [[127]]], [[[1]], [[0]]], [[[5]], [[-3]]]], np.int8)
    scale = np.array([-0.5, 0, 0.3], np.float32)
    model = net.add("conv2d", tensors={"weight": weight, "weight_scale": scale}).model()
    for form in FORMS:
        assert_same(form, model, draw_images(2, (2, 3, 3)))


def test_names_that_are_taken_are_not_taken_again():
    needs("onnx", "onnxruntime", "qonnx")
    net = Chain(2, 4, 4).add("sign", "number_1").bconv(2, 2, J=2)
    net.nodes[-1].name = "a"
    net.add("affine", "a/weight", tensors={"scale": net.floats(4), "shift": net.floats(4)})
    net.add("affine", "a/weight/scaled", tensors={"scale": net.floats(4), "shift": net.floats(4)})
    model = net.add("relu", "a/kernels").model()
    for form in FORMS:
        assert_same(form, model, draw_images(1, (2, 4, 4)))


def test_shapes_are_said_and_right():
    """Strict inference finds for every value the shape that the packed net has, for a batch of any size."""
    needs("onnx")
    import onnx

    for model in SMALL:
        for packed in (False, True):
            made = onnx.load_from_string(content_of(model, "onnx", packed=packed))
            onnx.checker.check_model(made, full_check=True)
            graph = onnx.shape_inference.infer_shapes(made, True, True, True).graph
            infos = [*graph.input, *graph.output, *graph.value_info]
            found = {
                info.name: tuple(side.dim_param or side.dim_value for side in info.type.tensor_type.shape.dim)
                for info in infos
            }
            expected = {name: ("N", *value.shape) for name, value in model.values.items()}
            assert {name: found[name] for name in expected} == expected
            said = {info.name for info in [*made.graph.input, *made.graph.output, *made.graph.value_info]}
            assert set(expected) <= said


def test_qonnx_says_what_has_few_bits():
    """After its own clean-up, data types are inferred from the operators that the file has."""
    needs("onnx", "qonnx")
    import onnx
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.transformation.infer_datatypes import InferDataTypes

    net = Chain(3, 6, 6).add("quantize", "levels", per_unit=20.0, low=0, high=255).bconv(3, 4)
    net.add(
        "threshold",
        "bits",
        tensors={"thresholds": np.arange(4, dtype=np.int32), "at_most": pack_signs(net.floats(4))},
    )
    model = net.bconv(4, 2, J=2).add("affine", tensors={"scale": net.floats(4)}).model()
    made = ModelWrapper(onnx.load_from_string(content_of(model, "qonnx")))
    made = made.transform(InferDataTypes())
    kernels = [node.name for node in model.graph.nodes if node.op == "bconv2d"]
    assert made.get_tensor_datatype("levels").name == "UINT8"
    assert made.get_tensor_datatype("bits").name == "BIPOLAR"
    for name in kernels:
        assert made.get_tensor_datatype(f"{name}/weight").name == "BIPOLAR"


@pytest.mark.parametrize(
    ("numbers", "name"),
    [((-1, 0, 1), "INT2"), ((-2, 1), "INT2"), ((-7, 3), "INT4"), ((-128, 127), "INT8"), ((5, 100), "INT8")],
)
def test_qonnx_says_how_few_bits_weights_need(numbers, name):
    needs("onnx", "qonnx")
    import onnx
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.transformation.infer_datatypes import InferDataTypes

    weight = np.resize(np.array(numbers, np.int8), (2, 3))
    net = Chain(1, 1, 3).add("reshape", shape=[3])
    net.add("linear", "fc", tensors={"weight": weight, "weight_scale": np.ones(2, np.float32)})
    made = ModelWrapper(onnx.load_from_string(content_of(net.model(), "qonnx"))).transform(InferDataTypes())
    assert made.get_tensor_datatype("fc/weight").name == name
    assert_same("qonnx", net.model(), draw_images(1, (1, 1, 3)))


@pytest.mark.parametrize(
    ("low", "high", "name"), [(0, 1, "BINARY"), (0, 3, "UINT2"), (-128, 127, "INT8"), (-127, 127, "INT8")]
)
def test_qonnx_says_how_few_bits_levels_have(low, high, name):
    needs("onnx", "qonnx")
    import onnx
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.transformation.infer_datatypes import InferDataTypes

    net = Chain(1, 3, 3).add("quantize", "levels", per_unit=1.0, low=low, high=high).bconv(1, 1)
    made = ModelWrapper(onnx.load_from_string(content_of(ended(net), "qonnx"))).transform(InferDataTypes())
    assert made.get_tensor_datatype("levels").name == name
    assert "Clip" not in {node.op_type for node in made.graph.node}


def test_qonnx_is_left_as_it_was():
    needs("onnx", "qonnx")
    from qonnx.core import onnx_exec

    before = onnx_exec.qonnx_make_model
    assert_same("qonnx", SMALL[0], draw_images(1, SMALL[0].graph.input_shape))
    assert onnx_exec.qonnx_make_model is before


def test_what_is_known_of_the_net_goes_along():
    needs("onnx")
    import onnx

    model = wire_models()[0]
    made = onnx.load_from_string(content_of(model, "onnx"))
    about = {entry.key: json.loads(entry.value) for entry in made.metadata_props}
    assert about["onebit.classes"] == ["a", "b", "ü"]
    assert about["onebit.preprocessing"] == {"mean": [0.5, 0.25], "std": [0.2, 0.3], "crop": 0.875}
    assert (made.producer_name, made.producer_version) == ("onebit", onebit.__version__)
    assert made.graph.doc_string == "small"
    assert (made.ir_version, [(opset.domain, opset.version) for opset in made.opset_import]) == (8, [("", 17)])
    assert content_of(model, "onnx") == content_of(model, "onnx")


def wide_sums():
    """Levels of 255 through 256 planes of 17 x 17 taps: up to 18,865,920, more than 2^24."""
    return (
        Chain(256, 17, 17).add("quantize", per_unit=1.0, low=0, high=255).bconv(256, 1, taps=(17, 17), masks=False)
    )


@pytest.mark.parametrize("kind", ["onnx", "qonnx"])
def test_sums_that_floats_do_not_hold_are_not_compared(kind):
    needs("onnx")
    net = wide_sums()
    content_of(net.add("affine", tensors={"scale": net.floats(1)}).model(), kind)  # scaled, they may be rounded
    net = wide_sums()
    net.add(
        "threshold", "bits", tensors={"thresholds": np.zeros(1, np.int32), "at_most": pack_signs(np.array([-1]))}
    )
    with pytest.raises(ExportError, match=r"^bits: threshold of sums up to 18,865,920; "):
        content_of(ended(net), kind)


def test_sums_of_2_to_the_24_are_compared():
    """Levels of 128 through 512 planes of 16 x 16 taps: no more than floats hold; more taps, and it is refused."""
    needs("onnx")
    for taps, refused in (((16, 16), False), ((16, 17), True)):
        net = Chain(512, 16, 17).add("quantize", per_unit=1.0, low=0, high=128)
        net.bconv(512, 1, taps=taps, masks=False)
        at_most = pack_signs(np.array([-1]))
        net.add("threshold", tensors={"thresholds": np.array([1 << 24], np.int32), "at_most": at_most})
        if refused:
            with pytest.raises(ExportError, match="threshold of sums"):
                content_of(ended(net), "onnx")
        else:
            content_of(ended(net), "onnx")


def test_a_matrix_of_means_has_a_limit():
    needs("onnx")
    net = Chain(1, 1, 1 << 17).add("adaptive_avg_pool2d", "parts", output_size=[1, 1000])
    with pytest.raises(ExportError, match="^parts: adaptive_avg_pool2d with means of too many parts"):
        content_of(net.model(), "onnx")


def test_matrices_count_for_the_size(monkeypatch):
    """Nodes with a matrix each can't take more memory than weights may; equal matrices are one."""
    needs("onnx")
    from onebit.exchange import limits

    net = Chain(1, 900, 1)
    for _ in range(4):
        net.add("adaptive_avg_pool2d", output_size=[899, 1]).add("adaptive_avg_pool2d", output_size=[900, 1])
    both = 2 * 4 * 900 * 899
    assert both < len(content_of(net.model(), "onnx")) < 1.1 * both
    monkeypatch.setattr(limits, "MAX_BYTES", both // 2)
    with pytest.raises(ExportError, match="its weights, written out, take"):
        content_of(net.model(), "onnx")


def test_packed_files_are_small_with_many_projections():
    """Masks are bits, too; without them nothing is written for a projection."""
    needs("onnx")
    for masks in (False, True):
        net = bits_net(channels=1, side=64).bconv(1, 1, J=64, taps=(64, 64), masks=masks)
        model = net.add("affine", tensors={"scale": net.floats(1)}).model()
        assert len(content_of(model, "onnx", packed=True)) < 512 * (1 + 64 * masks) + 4096


def test_pools_that_reach_far():
    """With taps apart, the last window of ceil_mode reaches farther than a pool of ONNX may pad."""
    needs("onnx", "onnxruntime", "qonnx")
    pool = {"kernel_size": [2, 2], "stride": [3, 3], "dilation": [2, 2], "ceil_mode": True}
    for shape in ((1, 4, 4), (2, 7, 5)):
        model = Chain(*shape).add("max_pool2d", **pool).model()
        for form in FORMS:
            assert_same(form, model, draw_images(2, shape) - 5)


@pytest.mark.parametrize("packed", [False, True])
def test_openvino_makes_the_same(packed):
    """In 32-bit floats; it has been seen to unpack bits wrongly without a word."""
    needs("onnx", "openvino")
    from onebit.peers import openvino_net

    for model in [*SMALL, onebit.load("zoo:digits-w1a1").model]:
        x = draw_images(2, model.graph.input_shape)
        ways = openvino_net.in_both_layouts(
            "", lambda model=model: openvino_net.read(content_of(model, "onnx", packed=packed))
        )
        runner = next(iter(ways.values()))()
        found = runner.leave(runner.run(runner.enter(x)))
        expected = Reference(model)(x)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def many_projections():
    """0.5 KB of bits that would be 1 GB of floats: one kernel of some 4,096 planes in 65,536 projections."""
    planes = (1 << 12) - 8
    net = bits_net(channels=planes, side=1)
    return net.bconv(planes, 1, J=1 << 16, taps=(1, 1), masks=False).add("affine", tensors={"scale": net.floats(1)})


@pytest.mark.parametrize(("kind", "packed"), [("onnx", False), ("onnx", True), ("qonnx", False), ("npz", False)])
def test_weights_that_no_program_holds_are_refused_before_memory_is_taken(kind, packed, tmp_path, monkeypatch):
    """With a lower limit: a net that a model file may hold is just below that of other programs."""
    from onebit.exchange import limits

    model = many_projections().model()
    monkeypatch.setattr(limits, "MAX_BYTES", 1 << 27)
    with pytest.raises(ExportError, match="written out, take (1,07|267,)[0-9,]* bytes"):
        onebit.convert(model, tmp_path / "net", to=kind, packed=packed)
    assert list(tmp_path.iterdir()) == []


def test_floats_that_nodes_share_count_at_each_in_arrays(tmp_path, monkeypatch):
    """An .npz file has them once for every node: in 4 bytes, not in one as bits are."""
    from onebit.exchange import limits

    net, weight = Chain(64, 1, 1), {"weight": np.ones((64, 64, 1, 1), np.float32)}
    for _ in range(10):
        net.add("conv2d", tensors=weight)
    model = net.model()
    monkeypatch.setattr(limits, "MAX_BYTES", 4 * 10 * 64 * 64)
    content_of(model, "npz")
    monkeypatch.setattr(limits, "MAX_BYTES", 4 * 10 * 64 * 64 - 1)
    with pytest.raises(ExportError, match="written out, take 163,840 bytes"):
        content_of(model, "npz")


def test_convert(tmp_path):
    """From a path, a name of the zoo, what is loaded; by the ending, or as asked for; whole files only."""
    needs("onnx", "onnxruntime")
    net = onebit.load("zoo:digits-w1a1")
    by_name = onebit.convert("zoo:digits-w1a1", tmp_path / "a.onnx")
    assert by_name == (tmp_path / "a.onnx").stat().st_size
    assert onebit.convert(net, str(tmp_path / "b"), to="onnx") == by_name
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b").read_bytes()
    assert onebit.convert(net, tmp_path / "packed.onnx", packed=True) * 10 < by_name
    onebit.convert(net.model, tmp_path / "c.qonnx.onnx")
    assert b"BipolarQuant" in (tmp_path / "c.qonnx.onnx").read_bytes()
    onebit.convert(net, tmp_path / "d.onnx", to="qonnx")  # it is one of ONNX, too
    assert (tmp_path / "c.qonnx.onnx").read_bytes() == (tmp_path / "d.onnx").read_bytes()
    assert b"BipolarQuant" not in (tmp_path / "a.onnx").read_bytes()
    assert {file.name for file in tmp_path.iterdir()} == {"a.onnx", "b", "packed.onnx", "c.qonnx.onnx", "d.onnx"}


def test_convert_says_what_is_wrong(tmp_path):
    net = onebit.load("zoo:digits-w1a1")
    for path, options, words in [
        (tmp_path / "net.tflite", {}, "name it .onnx, .qonnx.onnx or .npz, or say what it is to be"),
        (tmp_path / "net.onnx", {"to": "npz"}, "has the name of another kind of file; npz is named .npz"),
        (tmp_path / "net.onebit", {"to": "onnx"}, "has the name of another kind of file; onnx is named .onnx"),
        (tmp_path / "net.qonnx.onnx", {"to": "onnx"}, "has the name of another kind of file; onnx is named .onnx"),
        (tmp_path / "net", {"to": "tflite"}, "to='tflite': use 'onnx', 'qonnx', 'npz'"),
        (tmp_path / "net.npz", {"packed": True}, "packed=True is for 'onnx'; 'npz' has one form only"),
        (tmp_path / "nowhere" / "net.npz", {}, "there is no folder"),
        (tmp_path, {"to": "npz"}, "a folder; name a file in it"),
    ]:
        with pytest.raises(UserError, match=words):
            onebit.convert(net, path, **options)
    with pytest.raises(UserError, match="no such file"):
        onebit.convert(tmp_path / "lost.onebit", tmp_path / "net.npz")
    assert list(tmp_path.iterdir()) == []
    names = ("A.ONNX", "a.qonnx.onnx", "a.qonnx", "a.npz", "a.pth")
    assert [kind_of(name) for name in names] == ["onnx", "qonnx", "qonnx", "npz", None]


def test_the_net_itself_is_not_written_over(tmp_path):
    net = tmp_path / "odd.name"
    write_model(small_model(), net)
    before = net.read_bytes()
    with pytest.raises(ExportError, match="is the net that is to be written; name another file"):
        onebit.convert(net, net, to="npz")
    (tmp_path / "link.npz").symlink_to(net)
    (tmp_path / "other name.npz").hardlink_to(net)
    for path in (tmp_path / "link.npz", tmp_path / "other name.npz", tmp_path / "." / "odd.name"):
        with pytest.raises(ExportError, match="is the net that is to be written; name another file"):
            onebit.convert(str(net), path, to="npz")
    assert net.read_bytes() == before
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ExportError, match="is no ordinary file"):
        onebit.convert(net, tmp_path / "pipe", to="npz")


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = tmp_path / "net.npz"
    file.write_bytes(b"before")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ExportError, match="can't be written .No space left on device."):
        onebit.convert(small_model(), file)
    assert file.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_stays_as_it_was_if_a_net_is_refused(tmp_path, monkeypatch):
    from onebit.exchange import limits

    monkeypatch.setattr(limits, "MAX_BYTES", 1 << 27)
    file = tmp_path / "net.onnx"
    file.write_bytes(b"before")
    with pytest.raises(ExportError):
        onebit.convert(many_projections().model(), file)
    assert file.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [file]


def test_the_kernel_of_docs_in_bits():
    """docs/format.md's example, through operators: the byte 0b00110001 is (+ -), (- -), (+ +)."""
    needs("onnx", "onnxruntime")
    kernel = np.array([[[[1, -1, 1]], [[-1, -1, 1]]]])
    assert pack_kernels(kernel).tolist() == [0b00110001]
    net = Chain(2, 1, 3).add("sign")
    net.add("bconv2d", tensors={"kernels": pack_kernels(kernel)}, out_channels=1, kernel_size=[1, 3])
    found = run_form("packed onnx", ended(net), np.array([[[[1, -1, 1]], [[-1, -1, 1]]]], np.float32))
    assert found.item() == 6
