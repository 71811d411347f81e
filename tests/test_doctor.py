"""`onebit doctor`: right here, and right about what is wrong elsewhere."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from data_files import cifar10_binary, cifar100, image_folder
from onebit import checkup, selfcheck
from onebit.engine import Engine
from onebit.reference import Reference
from terminals import Terminal, piped
from training_runs import call

WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(",")))
import onebit.commands
sys.exit(onebit.commands.entry_point())
"""


def found(out):
    return {finding["name"]: finding for finding in json.loads(out)["findings"]}


def test_all_is_well_here():
    code, out, err = piped("doctor")
    assert (code, err) == (0, "")
    marks = {line.split()[0]: line.split()[1] for line in out.splitlines() if not line.startswith(" ")}
    names = (
        "onebit Python numpy safetensors engine kernels exactness CPU torch rich pydantic pillow matplotlib shtab"
    )
    for name in (*names.split(), "tensorboard", "digits", "disk"):
        assert marks[name] == "ok", out
    assert "agree bit for bit" in out
    assert out.splitlines()[-1].startswith(".onebit files can run here")


def test_quiet_says_nothing_where_nothing_is_wrong():
    assert piped("doctor", "--quiet") == (0, "", "")


def test_marks_have_colours_in_a_terminal_only():
    _, shown = Terminal("doctor").end()
    assert "\x1b[32mok" in shown
    _, shown = Terminal("doctor", NO_COLOR="1").end()
    assert "\x1b" not in shown


@pytest.mark.parametrize("isa", ["neon9", "AVX2"])
def test_a_wrong_isa_is_an_error(isa):
    code, out, _ = piped("doctor", "--quiet", ONEBIT_ISA=isa)
    assert code == 1
    first, advice = out.splitlines()
    assert first.split()[:2] == ["kernels", "wrong"]
    assert f"$ONEBIT_ISA={isa}" in first
    assert advice.strip().startswith("unset ONEBIT_ISA, or let it be one of ")


def test_an_isa_that_is_asked_for():
    code, out, _ = piped("doctor", "--json", ONEBIT_ISA="scalar", OMP_NUM_THREADS="3")
    assert code == 0
    assert found(out)["kernels"]["found"].startswith("scalar ($ONEBIT_ISA); ")
    assert "OMP_NUM_THREADS=3" in found(out)["CPU"]["found"]


def test_it_works_where_nearly_nothing_is_installed():
    names = "torch,rich,pydantic,PIL,matplotlib,tensorboard,shtab"
    code, out, err = piped(names, "doctor", "--json", command=[sys.executable, "-c", WITHOUT])
    assert (code, err) == (0, "")
    about = found(out)
    for name in names.replace("PIL", "pillow").split(","):
        assert about[name]["mark"] == "missing", name
    assert about["torch"]["advice"].startswith("pip install 'onebit[train]'")
    assert about["torch"]["advice"].endswith("pip install torch --index-url https://download.pytorch.org/whl/cpu")
    assert about["tensorboard"]["advice"] == "pip install 'onebit[tensorboard]'"
    assert about["pillow"]["advice"] == about["rich"]["advice"] == "pip install 'onebit[cli]'"
    assert about["shtab"]["advice"] == "pip install 'onebit[cli]'"
    assert json.loads(out)["ok"]


@pytest.mark.parametrize(("module", "name"), [("onebit._native", "engine"), ("safetensors", "safetensors")])
def test_what_must_be_there(module, name):
    code, out, err = piped(module, "doctor", "--json", command=[sys.executable, "-c", WITHOUT])
    assert (code, err) == (1, "")
    assert found(out)[name]["mark"] == "wrong"
    assert "install" in found(out)[name]["advice"]
    assert not json.loads(out)["ok"]


def test_engines_that_disagree(monkeypatch, capsys):
    def wrong(self, images):
        made = Reference(self.model)(images)
        made[-1, -1, -1, -1] += 1
        return made

    monkeypatch.setattr(Engine, "__call__", wrong)
    code, out, _ = call(capsys, "doctor", "--quiet")
    assert code == 1
    assert out.split()[:2] == ["exactness", "wrong"]
    assert "scalar and the reference engine disagree" in out


def test_the_small_net_has_something_to_disagree_on():
    """Its outputs are many numbers, and each of its tensors counts."""
    model = selfcheck.small_net()
    images = np.random.default_rng(1).normal(size=(3, *model.graph.input_shape)).astype(np.float32)
    outputs = Reference(model)(images)
    assert len(np.unique(outputs)) > 20
    for node in model.graph.nodes:
        for role, tensor in node.tensors.items():
            changed = tensor.copy()
            changed.ravel()[:] = changed + 20 if role in {"thresholds", "scale", "shift"} else ~changed
            node.tensors[role] = changed
            assert not np.array_equal(Reference(model)(images), outputs), (node.name, role)
            node.tensors[role] = tensor


def test_a_broken_package_is_said_to_be_one(tmp_path, monkeypatch):
    (tmp_path / "brokenpackage.py").write_text("raise RuntimeError('its library\\nis not there')\n")
    monkeypatch.syspath_prepend(tmp_path)
    module, problem = checkup._imported("brokenpackage")
    assert module is None
    assert problem == "installed, but can't be imported (its library is not there)"


def test_data_is_looked_for_and_not_read(tmp_path):
    cifar10_binary(tmp_path)
    image_folder(tmp_path)
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(b"not read")
    about = {finding.name: finding for finding in checkup._data(str(tmp_path))}
    assert about["cifar10"].found == str(tmp_path / "cifar-10-batches-bin")
    assert about["cifar100"].found.endswith("cifar-100-python.tar.gz, unpacked at its first use")
    assert {about[name].mark for name in ("digits", "data folder", "cifar10", "cifar100", "imagefolder")} == {"ok"}


def test_data_that_is_not_there(tmp_path, monkeypatch):
    cifar100(tmp_path, "python")
    monkeypatch.setenv("ONEBIT_DATA", str(tmp_path))
    about = {finding.name: finding for finding in checkup._data(None)}
    assert about["data folder"].found.endswith("($ONEBIT_DATA)")
    assert (about["cifar10"].mark, about["cifar100"].mark, about["imagefolder"].mark) == (
        "missing",
        "ok",
        "missing",
    )
    assert "fetches it" in about["cifar10"].advice
    (_, nowhere) = checkup._data(str(tmp_path / "nowhere"))
    assert (nowhere.mark, nowhere.found) == ("missing", f"{tmp_path / 'nowhere'}: no such folder")
    monkeypatch.delenv("ONEBIT_DATA")
    (_, unnamed) = checkup._data(None)
    assert (unnamed.mark, unnamed.advice) == ("missing", "--data-dir DIR, or set ONEBIT_DATA")


def test_a_full_disk(monkeypatch):
    monkeypatch.setattr(checkup.shutil, "disk_usage", lambda _: SimpleNamespace(free=5e8))
    assert checkup._disk()[1:3] == ("missing", f"0.5 GB free in {checkup.Path.cwd()}")


def test_a_pillow_that_can_not_read_jpeg_is_named(monkeypatch):
    monkeypatch.setattr("PIL.features.check", lambda name: name != "jpg")
    (found,) = [finding for finding in checkup.findings() if finding.name == "pillow"]
    assert found.mark == "missing"
    assert found.found.endswith(", without JPEG")
    assert "pillow" in found.advice


def test_a_torch_that_is_too_old_is_named(monkeypatch):
    monkeypatch.delattr("torch.accelerator")
    (found,) = [finding for finding in checkup.findings() if finding.name == "torch"]
    assert found.mark == "missing"
    assert "too old" in found.found
    assert "torch>=2.6" in found.advice


@pytest.mark.parametrize(
    ("marks", "line"),
    [
        (["ok", "ok"], ".onebit files can run here"),
        (["ok", "missing", "missing"], ".onebit files can run here; 2 missing for other work"),
        (["ok", "wrong", "missing"], "1 thing to mend before .onebit files can run"),
        (["wrong", "wrong"], "2 things to mend before .onebit files can run"),
    ],
)
def test_what_it_comes_to(marks, line):
    assert checkup.summary([checkup.Finding("a", mark, "found") for mark in marks]) == line
