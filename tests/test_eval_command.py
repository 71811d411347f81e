"""`onebit eval` of runs and of packed files, and `onebit.load_trained`."""

import contextlib
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import onebit
from data_files import cifar10_binary, image_folder
from onebit.commands.eval import _check_fits
from onebit.data.catalog import load_data
from onebit.engine import Engine
from onebit.errors import UserError
from onebit.graph import Graph, Node
from onebit.modelfile import Model, Preprocessing, read_model, write_model
from onebit.training.nets import read_weights
from packed_nets import small_model
from terminals import Terminal
from training_runs import call, command, small_run


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    small_run(folder, epochs=2, limit_images=0, width=4)
    assert command("export", str(folder))[0] == 0
    return folder


def evaluated(capsys, *words):
    code, out, err = call(capsys, "eval", *map(str, words), "--json")
    assert code == 0, err
    return json.loads(out)


def test_a_file_beside_its_run_is_as_good_as_the_run(run_folder, capsys):
    """W1A32: no sign can flip, so the class of each image is the same; the loss to rounding."""
    trained, packed = (evaluated(capsys, path) for path in (run_folder, run_folder / "net.onebit"))
    data, net = load_data("digits"), onebit.load_trained(run_folder)
    with torch.inference_mode():
        logits = net((torch.from_numpy(data.test.images) / 255 - data.mean[0]) / data.deviation[0]).double().numpy()
    labels = data.test.labels
    ranks = (logits > logits[range(449), labels][:, None]).sum(
        axis=1
    )  # classes that are more likely than the true one
    assert trained["top1"] == pytest.approx(100 * (ranks < 1).mean())
    assert trained["top5"] == pytest.approx(100 * (ranks < 5).mean())
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[range(449), labels]
    assert trained["loss"] == pytest.approx(losses.mean(), rel=1e-4)
    assert packed["top1"] == trained["top1"] > 20
    assert packed["top5"] == trained["top5"] > trained["top1"]
    assert packed["loss"] == pytest.approx(trained["loss"], rel=1e-4)
    assert (packed["images"], packed["data"]) == (449, "digits")
    assert packed["net"] == "pcnn wrn22, width 4, J = 1, W1A32, digits"


def test_a_file_alone_needs_to_know_its_data(run_folder, tmp_path, capsys):
    path = tmp_path / "net.onebit"
    path.write_bytes((run_folder / "net.onebit").read_bytes())
    code, out, err = call(capsys, "eval", str(path))
    names = "digits|cifar10|cifar100|imagefolder|imagenet"
    line = f"{path}: a .onebit file does not say which images it is for: use --data {names}"
    assert (code, out, err) == (2, "", f"onebit eval: {line}\n")
    assert evaluated(capsys, path, "--data", "digits") == evaluated(capsys, run_folder / "net.onebit")
    code, out, err = call(capsys, "eval", str(path), "--data", "digits", "-b", "100")
    assert (code, err) == (0, "")
    assert out.startswith("pcnn wrn22, width 4, J = 1, W1A32, digits on digits: top-1 ")
    assert out.endswith(" of 449 test images\n")


def test_threads(run_folder, capsys, monkeypatch):
    """All cores, or as many as is said; of processes that torchrun starts here, each has its share."""
    seen = []

    class Watched(Engine):
        def __init__(self, model, isa="auto", threads=1):
            seen.append(threads)
            super().__init__(model, isa, threads)

    monkeypatch.setattr("onebit.loading.Engine", Watched)
    for place in ("onebit.native", "onebit.commands"):
        monkeypatch.setattr(f"{place}.cores", lambda: 6)
    path = run_folder / "net.onebit"
    found = [evaluated(capsys, path, *words) for words in ([], ["--threads", 1], ["--threads", 4])]
    assert found[0] == found[1] == found[2]
    for processes in (3, 4, 12):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        assert evaluated(capsys, path) == found[0]
    assert seen == [6, 1, 4, 2, 1, 1]


@pytest.mark.parametrize("bits", [32, 1])
def test_photographs(bits, tmp_path, capsys):
    """Images of files: the loader's crop, the file's mean and deviation."""
    images = image_folder(tmp_path / "images")
    run = tmp_path / "run"
    keys = {"data": "imagefolder", "data_dir": str(images), "image_size": 16, "limit_images": 0, "batch_size": 8}
    small_run(run, activation_bits=bits, epochs=1, hold_out=0, workers=0, **keys)
    assert call(capsys, "export", str(run))[0] == 0
    trained, packed = (evaluated(capsys, path, "-j", 0) for path in (run, run / "net.onebit"))
    assert packed["images"] == 12
    assert packed["loss"] == pytest.approx(trained["loss"], rel=1e-3 if bits == 32 else 0.2)
    if bits == 32:
        assert packed["top1"] == trained["top1"]


@pytest.mark.parametrize("crop", [1.0, 0.5])
def test_photographs_of_a_net_that_was_trained_elsewhere(crop, tmp_path, capsys):
    """Of a picture the part that its file says, as `net.prepare` has it, not the part that `onebit train` takes."""
    image_folder(tmp_path)
    rng, names = np.random.default_rng(0), [f"n{label:08d}" for label in range(3)]
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 2), torch.nn.Flatten(), torch.nn.Linear(8 * 49, 3)).eval()
    preprocessing = onebit.Preprocessing((0.4, 0.5, 0.6), (0.2, 0.3, 0.1), crop)
    path = tmp_path / "net.onebit"
    onebit.export(model, path, torch.zeros(1, 3, 16, 16), preprocessing=preprocessing, class_names=names)
    for file in sorted(tmp_path.glob("val/*/*")):
        Image.fromarray(rng.integers(0, 256, (20, 24, 3), np.uint8)).resize((48, 40)).save(file)
    net, files = onebit.load(path), sorted(tmp_path.glob("val/*/*"))
    logits = torch.from_numpy(net(net.prepare(files)))
    labels = torch.tensor([names.index(file.parent.name) for file in files])
    found = evaluated(capsys, path, "--data", "imagefolder", "--data-dir", tmp_path, "-j", 0)
    assert found["loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item(), rel=1e-5)
    assert found["top1"] == pytest.approx(100 * (logits.argmax(1) == labels).double().mean().item())


def test_probabilities_are_no_logits(run_folder, tmp_path, capsys):
    """A net that ends with a softmax has the same loss as the same net without it."""
    model = read_model(run_folder / "net.onebit")
    last = model.graph.nodes[-1].name
    nodes = [*model.graph.nodes, type(model.graph.nodes[0])("softmax", "softmax", (last,))]
    path = tmp_path / "soft.onebit"
    graph = type(model.graph)(model.graph.input_shape, nodes)
    write_model(Model(graph, model.preprocessing, model.classes), path)
    found, expected = evaluated(capsys, path, "--data", "digits"), evaluated(capsys, run_folder)
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    assert found["net"] == "soft.onebit"


def test_a_probability_of_0(run_folder, tmp_path, capsys):
    """A class that a net rules out costs as much as the smallest number that is above 0, not infinitely much."""
    model = read_model(run_folder / "net.onebit")
    last = model.graph.nodes[-1].name
    sure = Node("sure", "affine", (last,), {}, {"scale": np.full(1, 1e6, np.float32)})
    graph = Graph(model.graph.input_shape, [*model.graph.nodes, sure, Node("softmax", "softmax", ("sure",))])
    path = tmp_path / "sure.onebit"
    write_model(Model(graph, model.preprocessing, model.classes), path)
    found = evaluated(capsys, path, "--data", "digits")
    assert 0 < found["top1"] < 100
    wrong, most = 1 - found["top1"] / 100, -math.log(np.finfo(np.float32).tiny)
    assert found["loss"] == pytest.approx(wrong * most, rel=1e-3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["NET", "--data", "cifra10"], "--data cifra10: use digits, cifar10, cifar100, imagefolder or imagenet"),
        (["NET", "--data", "cifar10", "--data-dir", "DATA"], "is for images (1, 8, 8), the data has (3, 32, 32)"),
        (["NET", "--which", "best"], "--which best: not for a .onebit file"),
        (["NET", "--device", "cuda"], "--device cuda: not for a .onebit file"),
        (["SMALL", "--data", "digits"], "its net knows 3 classes, the data has 10"),
        (["BARE", "--data", "digits"], "does not say how its images are prepared"),
        (["NET", "--batch-size", "0"], "--batch-size 0: use at least 1"),
        (["NET", "--threads", "1.5"], "--threads 1.5: use a whole number, or 'auto' (or 0) for all cores"),
        (["RUN", "--threads", "1"], "--threads 1: for a .onebit file; $OMP_NUM_THREADS are those of PyTorch"),
        (["RUN/config.toml"], "not a whole weights file"),
        (["own.pt"], "own.pt: a file of torch.save, and a run of `onebit train` is expected; of a net of your own"),
    ],
)  # fmt: skip
def test_mistakes(words, said, run_folder, tmp_path, capsys):
    cifar10_binary(tmp_path)
    model = small_model()
    write_model(model, tmp_path / "small.onebit")
    write_model(Model(model.graph), tmp_path / "bare.onebit")
    names = {"NET": run_folder / "net.onebit", "SMALL": tmp_path / "small.onebit", "BARE": tmp_path / "bare.onebit"}
    torch.save({"weight": torch.zeros(2)}, tmp_path / "own.pt")
    names["own.pt"] = tmp_path / "own.pt"
    names |= {"DATA": tmp_path, "RUN": run_folder, "RUN/config.toml": run_folder / "config.toml"}
    code, out, err = call(capsys, "eval", *(str(names.get(word, word)) for word in words))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_classes_of_another_name(run_folder, tmp_path, capsys):
    model = read_model(run_folder / "net.onebit")
    images = image_folder(tmp_path, classes=10, train=1, test=1)
    path = tmp_path / "other.onebit"
    colour = Preprocessing((0.5,) * 3, (0.5,) * 3)
    net = onebit.models.wrn22(width=2, in_channels=3).eval()
    names = ["a", *model.classes[1:]]
    onebit.export(net, path, torch.zeros(1, 3, 16, 16), preprocessing=colour, class_names=names)
    code, _, err = call(capsys, "eval", str(path), "--data", "imagefolder", "--data-dir", str(images), "-j", "0")
    assert (code, "its net knows a, ..., the data has other classes" in err) == (2, True)


@pytest.mark.parametrize(
    ("known", "found", "fits"),
    [
        (["a", "b", "c"], ["a", "b", "c"], True),
        (("a", "b", "c"), ["a", "b", "c"], True),
        (None, ["a", "b", "c"], True),
        (["a", "b", "c"], ["0", "1", "2"], True),  # data without names
        (["a", "b", "c"], ["a", "c", "b"], False),
        (["a", "b", "c"], ["a", "b", "d"], False),
        (["a", "b", "c"], ["d", "b", "c"], False),
        (["a", "b", "c"], ["a", "1", "2"], False),
    ],
)
def test_classes_fit_by_name_and_order(known, found, fits):
    about = {"num_classes": 3, "image_shape": (1, 8, 8)}
    subject, data = SimpleNamespace(class_names=known, **about), SimpleNamespace(class_names=found, **about)
    with contextlib.nullcontext() if fits else pytest.raises(UserError, match="the data has other classes"):
        _check_fits("net.onebit", subject, data)


def test_progress_in_a_terminal(run_folder):
    code, shown = Terminal("eval", str(run_folder / "net.onebit"), "-b", "7").end()
    assert code == 0
    assert "evaluating" in shown
    assert "/449" in shown
    assert shown.rstrip().endswith("of 449 test images")


def test_load_trained(run_folder, capsys):
    net = onebit.load_trained(run_folder)
    assert not any(module.training for module in net.modules())
    x = torch.randn(5, 1, 8, 8)
    with torch.inference_mode():
        expected = net(x)
        again = onebit.load_trained(str(run_folder / "last.safetensors"))(x)
        best = onebit.load_trained(run_folder, which="best")
    assert torch.equal(again, expected)
    assert torch.equal(best.state_dict()["stem.weight"], read_weights(run_folder, "best").tensors["stem.weight"])
    packed = onebit.load(run_folder / "net.onebit")(x.numpy())
    assert np.abs(packed - expected.numpy()).max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize(
    ("path", "which", "said"),
    [("nowhere", "last", "no such file or run folder"), (".", "last", "has no last.safetensors"),
     ("RUN", "worst", "which='worst': use 'last' or 'best'"), ("RUN/net.onebit", "last", "says nothing about")],
)  # fmt: skip
def test_load_trained_says_what_is_wrong(path, which, said, run_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said):
        onebit.load_trained(path.replace("RUN", str(run_folder)), which)
