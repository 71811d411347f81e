"""`onebit export --to`: from runs and from files, for each program; what it says, and what it refuses."""

import json
import subprocess
import sys

import numpy as np
import pytest

import onebit
from exchanged import needs
from onebit.modelfile import read_model, write_model
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
    assert (code, err) == (0, "")
    path = run_folder / "net.onnx"
    lines = out.splitlines()
    assert lines[0].startswith(f"{path}: {path.stat().st_size:,} bytes (")
    assert lines[1] == "for exchange: every bit is a float of 32 bits in it (--packed keeps bits)"
    assert lines[2].startswith(
        "onnxruntime against onebit: 100% of 4 random images in the same class, outputs differ"
    )
    assert lines[3].startswith("against PyTorch: 8 of 8 random images in the same class")
    assert not (run_folder / "net.onebit").exists()  # it was not asked for

    call(capsys, "export", str(run_folder), "--quiet")
    model = read_model(run_folder / "net.onebit")
    session = onnxruntime.InferenceSession(path)
    (given,) = session.get_inputs()
    assert (given.name, given.shape) == ("input", ["N", 1, 8, 8])
    x = np.random.default_rng(0).standard_normal((5, 1, 8, 8), np.float32)
    np.testing.assert_allclose(session.run(None, {"input": x})[0], Reference(model)(x), rtol=1e-4, atol=1e-4)
    code, _, _ = call(capsys, "export", str(run_folder / "net.onebit"), "--to", "onnx", "-o", str(path) + "2")
    assert code == 0
    assert path.read_bytes() == path.with_name("net.onnx2").read_bytes()  # from the run and from its file


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
    for words, name in [
        ([str(file), "--to", "onnx"], "small.onnx"),
        ([str(file), "--to", "qonnx"], "small.qonnx.onnx"),
        ([str(file), "--to", "npz"], "small.npz"),
        (["zoo:digits-w1a1", "--to", "npz"], "digits-w1a1.npz"),
        ([str(file), "--out", "my.npz"], "my.npz"),
        ([str(file), "--out", "MY.ONNX", "--packed"], "MY.ONNX"),
    ]:
        before = set(tmp_path.iterdir())
        code, out, err = call(capsys, "export", *words)
        assert (code, err) == (0, "")
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


def without(tmp_path, *modules):
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


def test_a_file_is_converted_without_torch(file, tmp_path):
    needs("onnx")
    for kind in ("onnx", "qonnx", "npz"):
        words = [*without(tmp_path, "torch", "onnxruntime", "qonnx"), "export", str(file), "--to", kind]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        if kind != "npz":
            program = {"onnx": "onnxruntime"}.get(kind, kind)
            assert (
                done.stdout.splitlines()[-1] == f"not run to compare: pip install 'onebit[{kind}]' brings {program}"
            )


def test_without_onnx_it_says_what_to_install(file, tmp_path):
    for kind in ("onnx", "qonnx"):
        words = [*without(tmp_path, "onnx", "torch"), "export", str(file), "--to", kind]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "onebit export: needs onnx: pip install 'onebit[onnx]'\n"
    done = subprocess.run(
        [*without(tmp_path, "onnx", "torch"), "export", str(file), "--to", "npz"], capture_output=True, check=False
    )
    assert done.returncode == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["small.npz", "small.onebit"]


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
