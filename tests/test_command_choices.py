"""Which file a command reads, where it writes if nothing is said, and what it says of what it found."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import onebit
from data_files import image_folder
from onebit import zoo
from onebit.commands import compare, demo, train
from onebit.commands.eval import trained_on
from onebit.modelfile import read_model, write_model
from onebit.training.config import Config
from onebit.training.nets import read_weights
from packed_nets import small_model
from training_runs import call, small_run
from wire_models import Chain


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Whose best epoch has another stem than its last; it has been told where data is."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    small_run(folder, epochs=1, data_dir=str(folder.parent), model_ema_decay=0.5)
    with safe_open(folder / "last.safetensors", "pt") as last:
        tensors, about = {key: last.get_tensor(key) for key in last.keys()}, last.metadata()  # noqa: SIM118 no dict
    save_file(tensors | {"stem.weight": tensors["stem.weight"] + 1}, folder / "best.safetensors", about)
    return folder


def stem_of(path):
    return next(node for node in read_model(path).graph.nodes if node.name == "stem").tensors["weight"]


def test_the_epoch_that_is_asked_for_is_exported(run, tmp_path, capsys):
    path = tmp_path / "net.onebit"
    for words, which in (([], "last"), (["--which", "last"], "last"), (["--which", "best"], "best")):
        assert call(capsys, "export", str(run), "-o", str(path), *words)[0] == 0
        np.testing.assert_array_equal(stem_of(path), read_weights(run, which).tensors["stem.weight"].numpy())


def test_a_file_of_weights_is_exported_beside_it(run, tmp_path, capsys):
    copied = shutil.copytree(run, tmp_path / "run")
    before = set(copied.iterdir())
    code, out, _ = call(capsys, "export", str(copied / "best.safetensors"))
    assert (code, out.partition(": ")[0]) == (0, str(copied / "best.onebit"))
    assert set(copied.iterdir()) - before == {copied / "best.onebit"}


def test_where_a_run_had_its_data_is_where_that_data_is(run):
    """And no other."""
    assert trained_on(str(run), same_data=True) == str(run.parent)
    assert trained_on(str(run), same_data=False) is None


def test_a_report_of_several_runs_is_written_here(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, tmp_path / "again")
    code, out, err = call(capsys, "report", str(run), "again", "--images", "0")
    assert (code, out.partition(": ")[0]) == (0, "report.html")
    assert (tmp_path / "report.html").stat().st_size > 1000
    assert not [*run.glob("*.html"), *(tmp_path / "again").glob("*.html")]
    assert "run: The epochs' histograms are of the net that learns, all else is of its running mean.\n" in err


def test_only_what_is_unusual_is_told_of_an_operation(tmp_path, capsys):
    net = Chain(4, 9, 9).add("sign").bconv(2, 4, groups=2, dilation=[2, 1], padding=[0, 1, 0, 0], masks=False)
    net.add("affine", tensors={"scale": net.floats(1)})
    net.add("conv2d", "plain", tensors={"weight": net.floats(2, 4, 1, 1)})
    net.add("conv2d", "strided", tensors={"weight": net.floats(2, 2, 1, 1)}, stride=[1, 2])
    write_model(net.model(), tmp_path / "net.onebit")
    code, out, _ = call(capsys, "inspect", str(tmp_path / "net.onebit"), "--graph")
    told = {line.split()[0]: line.partition("(")[2].rstrip(")") for line in out.splitlines() if "(" in line}
    assert code == 0
    assert told["plain"] == "affine2, weight: float32[2, 4, 1, 1]"
    assert told["strided"] == "plain, stride=[1, 2], weight: float32[2, 2, 1, 1]"
    parts = told["bconv2d1"].split(", kernels")[0]
    assert "padding=[0, 1, 0, 0]" in parts
    assert "dilation=[2, 1]" in parts
    assert "groups=2" in parts
    assert "stride" not in parts
    assert "projections" not in parts


def test_pictures_that_were_drawn_are_named(tmp_path, capsys):
    write_model(small_model(), tmp_path / "net.onebit")
    for words, files in (([], []), (["--images", str(tmp_path / "K")], [str(tmp_path / "K" / "00-conv.png")])):
        code, out, _ = call(capsys, "inspect", str(tmp_path / "net.onebit"), *words, "--json")
        assert (code, json.loads(out)["images"]) == (0, files)


def test_images_that_can_not_be_read_are_left_out_if_that_is_asked_for(tmp_path, capsys):
    image_folder(tmp_path)
    sorted(tmp_path.glob("val/*/*"))[4].write_bytes(b"no image")
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 2), torch.nn.Flatten(), torch.nn.Linear(8 * 49, 3)).eval()
    preprocessing = onebit.Preprocessing((0.4, 0.5, 0.6), (0.2, 0.3, 0.1))
    names = sorted(folder.name for folder in (tmp_path / "val").iterdir())
    path = tmp_path / "net.onebit"
    onebit.export(model, path, torch.zeros(1, 3, 16, 16), preprocessing=preprocessing, class_names=names)
    words = ["eval", str(path), "--data", "imagefolder", "--data-dir", str(tmp_path), "-j", "0"]
    code, out, err = call(capsys, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    code, out, _ = call(capsys, *words, "--on-bad-image", "skip")
    assert (code, out.endswith(" of 11 test images, 1 left out\n")) == (0, True)
    found = json.loads(call(capsys, *words, "--on-bad-image", "skip", "--json")[1])
    assert (found["images"], found["skipped_images"]) == (11, 1)


def test_folders_are_named_for_what_is_in_them(tmp_path, capsys, monkeypatch):
    def of_run(seed=0, recipe=None, budget="paper"):
        return train._name(SimpleNamespace(recipe=recipe, budget=budget), Config(seed=seed))

    assert [of_run(), of_run(3), of_run(budget="cpu")] == [
        "digits-pcnn-wrn22", "digits-pcnn-wrn22-seed3", "digits-pcnn-wrn22-cpu",
    ]  # fmt: skip
    assert of_run(2, "mine/some.toml", "smoke") == "some-smoke-seed2"

    def of_comparison(**given):
        words = {"resume": None, "out": None, "recipe": None, "budget": None} | given
        return str(compare._folder(SimpleNamespace(**words), Config()))

    assert [of_comparison(budget=budget) for budget in (None, "paper", "cpu", "smoke")] == [
        "compare/digits", "compare/digits", "compare/digits-cpu", "compare/digits-smoke",
    ]  # fmt: skip
    assert of_comparison(recipe="cifar10-pcnn22") == "compare/cifar10"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("a file")
    for data, folder in (("digits", "demo"), ("cifar10", "demo-cifar10")):
        code, _, err = call(capsys, "demo", "--data", data)
        assert (code, err.partition(": runs ")[0]) == (2, f"onebit demo: --out runs/{folder}")


def test_what_came_of_a_run():
    summary = {
        "net": "a net", "data": "digits", "test_top1": 12.346, "test_top5": 67.0, "epochs": 9, "test_images": 1,
        "training_seconds": 61.4, "best_held_out_top1": 54.0, "best_epoch": 7, "skipped_images": 1,
    }  # fmt: skip
    assert train._lines(summary, "runs/a") == [
        "a net on digits: top-1 12.35 %, top-5 67.00 % of 1 test image after 9 epochs (61 s of training)",
        "best epoch 7: 54.00 % of the held-out images (best.safetensors)",
        "left out, since they can't be read: 1 image",
        "all of it is in runs/a",
    ]
    short = train._lines(summary | {"best_held_out_top1": None, "skipped_images": 0}, "runs/a")
    assert [line[:3] for line in short] == ["a n", "all"]


def test_a_row_of_the_demo():
    row = SimpleNamespace(name="W1A1", top1=93.25, bytes=12345, times_smaller=20.04, torch_ms=1.5, engine_ms=0.25,
                          times_faster=6.0, same_class=3, test_images=4)  # fmt: skip
    assert demo.cells(row) == ("W1A1", "93.2 %", "12,345", "20.0 x", "1.500", "0.250", "6.0 x", "75.0 %")


@pytest.mark.parametrize("name", zoo.names())
def test_a_card_says_what_data_is_needed(name, capsys):
    (line,) = [line for line in call(capsys, "zoo", name)[1].splitlines() if line.startswith("onebit eval")]
    assert ("--data-dir DATA" in line) == (zoo.card(name).data_key != "digits")


def test_runs_at_once(monkeypatch):
    """As many as there are cores, but for very many; one on a GPU; never more than there are runs."""
    monkeypatch.setattr("onebit.machine.cores", lambda: 64)
    cpu, gpu = Config(device="cpu"), Config(device="cuda")
    assert [compare.jobs_of(asked, cpu, 100) for asked in (None, 3, 200)] == [8, 3, 100]
    assert (compare.jobs_of(None, gpu, 100), compare.jobs_of(None, cpu, 2)) == (1, 2)
