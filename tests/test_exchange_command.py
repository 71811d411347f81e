"""`onebit export --to`: from runs and from files, for each program; what it says, and what it refuses."""

import json
import subprocess
import sys

import numpy as np
import pytest

import onebit
from exchanged import needs
from onebit.modelfile import read_model, write_model
from onebit.packing import pack_signs
from onebit.peers.exchanged import TURNED
from onebit.peers.runner import Runner
from onebit.reference import Reference
from packed_nets import small_model
from training_runs import call, small_run
from wire_models import Chain


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    small_run(folder, epochs=1, projections=2, activation_bits=1)
    return folder


@pytest.fixture
def file(tmp_path):
    write_model(small_model(), tmp_path / "small.onebit")
    return tmp_path / "small.onebit"


def test_a_run_for_onnx_runtime(run_folder, capsys):
    needs("onnx", "onnxruntime")
    import onnxruntime

    code, out, err = call(capsys, "export", str(run_folder), "--to", "onnx")
    assert (code, err) == (0, "for exchange: every bit is a float of 32 bits in it (--packed keeps bits)\n")
    path = run_folder / "net.onnx"
    lines = out.splitlines()
    assert lines[0].startswith(f"{path}: {path.stat().st_size:,} bytes (")
    assert lines[1].startswith(
        "onnxruntime against onebit: 100% of 4 random images in the same class, outputs differ"
    )
    assert lines[2].startswith("against PyTorch: 8 of 8 random images in the same class")
    assert call(capsys, "export", str(run_folder), "--to", "onnx", "--quiet") == (0, out, "")
    assert not (run_folder / "net.onebit").exists()  # it was not asked for

    call(capsys, "export", str(run_folder), "--quiet")
    model = read_model(run_folder / "net.onebit")
    session = onnxruntime.InferenceSession(path)
    (given,) = session.get_inputs()
    assert (given.name, given.shape) == ("input", ["N", 1, 8, 8])
    x = np.random.default_rng(0).standard_normal((5, 1, 8, 8), np.float32)
    np.testing.assert_allclose(session.run(None, {"input": x})[0], Reference(model)(x), rtol=1e-4, atol=1e-4)
    again = path.with_name("again.onnx")
    code, out, _ = call(capsys, "export", str(run_folder / "net.onebit"), "-o", str(again), "--json")
    assert (code, json.loads(out)["onebit_bytes"]) == (0, (run_folder / "net.onebit").stat().st_size)
    assert path.read_bytes() == again.read_bytes()  # from the run and from its file


def test_options_of_runs_go_before(run_folder, tmp_path, capsys):
    needs("onnx", "onnxruntime")
    path = tmp_path / "net.onnx"
    words = ["export", str(run_folder), "-o", str(path), "--packed", "--float-bits", "16", "--json"]
    code, out, _ = call(capsys, *words)
    found = json.loads(out)
    assert (code, found["to"], found["packed"], found["bytes"]) == (0, "onnx", True, path.stat().st_size)
    assert found["agreement"]["program"] == "onnxruntime"
    assert found["agreement"]["difference"] < 1e-4
    assert found["pytorch"]["of"] == 8
    import onnx

    types = {tensor.data_type for tensor in onnx.load(path).graph.initializer}
    assert onnx.TensorProto.FLOAT16 in types


def test_names_of_files(file, tmp_path, capsys, monkeypatch):
    """Beside the file; a net of the zoo into this folder, not into the package."""
    needs("onnx")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits-w1a1").mkdir()  # of no matter
    other = tmp_path / "model.v1.2"
    other.write_bytes(file.read_bytes())
    for words, name in [
        ([str(file), "--to", "onnx"], "small.onnx"),
        ([str(file), "--to", "onnx", "--packed"], "small.packed.onnx"),
        ([str(file), "--to", "qonnx"], "small.qonnx.onnx"),
        ([str(file), "--to", "npz"], "small.npz"),
        (["zoo:digits-w1a1", "--to", "npz"], "digits-w1a1.npz"),
        ([str(other), "--to", "npz"], "model.v1.2.npz"),
        ([str(file), "--out", "my.npz"], "my.npz"),
        ([str(file), "--out", "MY.ONNX", "--packed"], "MY.ONNX"),
    ]:
        before = set(tmp_path.iterdir())
        code, out, err = call(capsys, "export", *words)
        assert (code, len(err.splitlines())) in {(0, 1), (0, 2)}  # 2: what could run it is not installed
        assert {made.name for made in set(tmp_path.iterdir()) - before} == {name}
        assert out.splitlines()[0].endswith(" as .onebit)")


def test_qonnx_is_run_by_qonnx(file, capsys):
    needs("onnx", "qonnx")
    code, out, _ = call(capsys, "export", str(file), "--to", "qonnx", "--json")
    assert code == 0
    assert json.loads(out)["agreement"]["program"] == "qonnx"
    assert json.loads(out)["agreement"]["difference"] < 1e-4


def test_what_is_wrong_is_said(run_folder, file, tmp_path, capsys):
    for words, told in [
        ([str(file)], "is exported already; `onebit inspect` shows what is in it, --to onnx, qonnx or npz"),
        ([str(file), "--to", "npz", "--float-bits", "8"], "--float-bits: is for the folder of a run; "),
        ([str(file), "--to", "npz", "--which", "best"], "--which: is for the folder of a run; "),
        ([str(file), "--to", "npz", "--int8-layers"], "--int8-layers: is for the folder of a run; "),
        ([str(file), "--to", "npz", "--activation-bits", "8"], "--activation-bits: is for the folder of a run; "),
        ([str(file), "--to", "npz", "--calibrate", "0"], "--calibrate: is for the folder of a run; "),
        ([str(file), "--to", "npz", "--data-dir", "X"], "--data-dir: is for the folder of a run; "),
        ([str(file), "--to", "npz", "-o", str(tmp_path / "a.onnx")], "has the name of another kind of file"),
        ([str(file), "--to", "onnx", "-o", str(file)], "has the name of another kind of file"),
        ([str(run_folder), "--to", "npz", "-o", str(tmp_path / "nowhere" / "a.npz")], "there is no folder"),
        ([str(file), "--to", "npz", "--packed"], "--packed: is for --to onnx"),
        ([str(run_folder), "--packed"], "--packed: is for --to onnx"),
        ([str(run_folder), "--to", "npz", "--calibrate", "3"], "--calibrate 3: a number of images, with "),
        ([str(file), "--to", "tflite"], "invalid choice: 'tflite'"),
        ([str(tmp_path / "lost.onebit"), "--to", "npz"], "lost.onebit"),
        ([str(file), "--to", "npz", "-o", str(tmp_path / "nowhere" / "a.npz")], "there is no folder"),
        ([str(file), "--to", "npz", "-o", str(tmp_path)], "a folder; name a file in it"),
    ]:
        code, out, err = call(capsys, "export", *words)
        assert (code, out) == (2, ""), words
        assert len(err.splitlines()) == 1
        assert told in err
    assert {each.name for each in tmp_path.iterdir()} == {"small.onebit"}


def test_a_net_that_a_format_cannot_hold_leaves_no_file(tmp_path, capsys):
    net = Chain(1, 2, 2).add("relu", "a/b")
    write_model(net.model(), tmp_path / "net.onebit")
    code, out, err = call(capsys, "export", str(tmp_path / "net.onebit"), "--to", "npz")
    assert (code, out) == (2, "")
    assert err == "onebit export: a/b: a name with '/', '\\' or ':' can't be that of an array in an .npz file\n"
    assert [each.name for each in tmp_path.iterdir()] == ["net.onebit"]


def without(*modules):
    """Python in which some modules are not installed; the command's words follow."""
    code = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {modules!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.split(".")[0])
sys.meta_path.insert(0, Missing())
from onebit.commands import main
code = main(sys.argv[1:])
assert "torch" not in sys.modules
sys.exit(code)
"""
    return [sys.executable, "-c", code]


def test_a_file_is_converted_without_torch(file):
    needs("onnx")
    for kind in ("onnx", "qonnx", "npz"):
        words = [*without("onnxruntime", "qonnx"), "export", str(file), "--to", kind]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr  # torch could be imported here, and is not
        if kind != "npz":
            program = {"onnx": "onnxruntime"}.get(kind, kind)
            told = f"not run to compare: pip install 'onebit[{kind}]' brings {program}"
            assert done.stderr.splitlines()[-1] == told


def test_in_python_it_says_what_to_install(file, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "onnx" or "onnx_" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    for kind in ("onnx", "qonnx"):
        with pytest.raises(ImportError, match=rf"^onebit.convert to {kind} needs onnx: .*onebit\[onnx\]"):
            onebit.convert(file, tmp_path / f"net.{kind}")
    assert list(tmp_path.glob("net.*")) == []


def test_without_onnx_it_says_what_to_install(file, tmp_path):
    for kind in ("onnx", "qonnx"):
        words = [*without("onnx"), "export", str(file), "--to", kind]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "onebit export: needs onnx: pip install 'onebit[onnx]'\n"
    done = subprocess.run([*without("onnx"), "export", str(file), "--to", "npz"], capture_output=True, check=False)
    assert done.returncode == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["small.npz", "small.onebit"]


def test_a_program_that_makes_something_else_is_told(file, tmp_path, capsys, monkeypatch):
    """Of a net of floats; where floats become bits, rounding alone may turn one."""
    needs("onnx", "onnxruntime")
    from onebit.peers import onnxruntime_net

    net = Chain(2, 3, 3).add("relu").model()
    write_model(net, tmp_path / "net.onebit")
    monkeypatch.setattr(onnxruntime_net, "session", lambda content: Runner(lambda x: x - 1))
    code, out, err = call(capsys, "export", str(tmp_path / "net.onebit"), "--to", "onnx")
    assert (code, out) == (1, "")
    assert "net.onnx is written, but onnxruntime does not make of it what onebit makes (outputs differ by" in err
    monkeypatch.setattr(onnxruntime_net, "session", lambda content: Runner(lambda x: np.full((len(x), 3), 9e9)))
    code, out, _ = call(capsys, "export", str(file), "--to", "onnx")
    assert (code, out.splitlines()[-1]) == (0, TURNED)

    def broken(content):
        raise RuntimeError("no such kernel\nand more")

    monkeypatch.setattr(onnxruntime_net, "session", broken)
    code, _, err = call(capsys, "export", str(file), "--to", "onnx")
    assert code == 1
    assert "small.onnx is written, but onnxruntime can't run it (RuntimeError: no such kernel)" in err
    assert (tmp_path / "small.onnx").exists()


def bits_of_levels(computed):
    """Bits of sums of levels, of the input or of floats that were computed of it; a bit counts for much."""
    net = Chain(3, 64, 64)
    if computed:
        net.add("conv2d", tensors={"weight": net.floats(32, 3, 3, 3)}, padding=[1] * 4)
    net.add("quantize", per_unit=20.0, low=-127, high=127).bconv(32 if computed else 3, 32)
    thresholds = {"thresholds": np.zeros(32, np.int32), "at_most": pack_signs(-np.ones(32))}
    net.add("threshold", tensors=thresholds).bconv(32, 4, taps=(1, 1), masks=False)
    return net.add("affine", tensors={"scale": net.floats(4)}).model()


@pytest.mark.parametrize("computed", [True, False])
def test_a_rounded_level_may_turn_bits_of_sums(computed, tmp_path, capsys, monkeypatch):
    """Of levels of the input, which are the same everywhere, all that follows is to be exact."""
    needs("onnx", "onnxruntime")
    from onebit.peers import onnxruntime_net

    write_model(bits_of_levels(computed), tmp_path / "net.onebit")
    assert call(capsys, "export", str(tmp_path / "net.onebit"), "--to", "onnx")[0] == 0
    session = onnxruntime_net.session

    def other(content):
        runner = session(content)
        return runner._replace(leave=lambda made: 1.5 * runner.leave(made))

    monkeypatch.setattr(onnxruntime_net, "session", other)
    code, _, err = call(capsys, "export", str(tmp_path / "net.onebit"), "--to", "onnx")
    assert (code, "does not make of it what onebit makes" in err) == ((0, False) if computed else (1, True))


def test_a_hostile_file_is_refused_as_everywhere(tmp_path, capsys):
    bad = tmp_path / "bad.onebit"
    bad.write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    code, _, err = call(capsys, "export", str(bad), "--to", "npz")
    assert code == 2
    assert "bad.onebit" in err
    assert [each.name for each in tmp_path.iterdir()] == ["bad.onebit"]


def test_onebit_convert_is_public():
    assert "convert" in onebit.__all__
    assert onebit.convert.__module__ == "onebit.exchange.converting"
