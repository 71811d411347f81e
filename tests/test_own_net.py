"""The code of docs/own-net.md, as printed but for its sizes, on a few digits as photos."""

import copy
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import onebit
from onebit.data.digits import load_digit_pixels

GUIDE = Path(__file__).parent.parent / "docs" / "own-net.md"
SMALLER = {
    "SIZE = 64": "SIZE = 16",
    "BATCH = 64": "BATCH = 20",
    "= 20, 15, 30  # epochs": "= 5, 5, 10",
    "width=32": "width=16",
    "(4, 4, 4, 4)": "(1, 1, 1, 1)",
    "randint(9, (2,))": "randint(3, (2,))",
    "< 0.5  # not for text or digits of your own": "< 0",  # these are digits
}
CLASSES = "one", "two", "three", "four", "five"


def blocks():
    text = GUIDE.read_text()
    for printed, smaller in SMALLER.items():
        assert text.count(printed) == 1
        text = text.replace(printed, smaller)
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def lay_out_photos(folder):
    """Digits of 1 to 5 as files of colour, 60 of each to train, 40 to test; of sizes that must be resized."""
    pixels, labels = load_digit_pixels()[0]
    for number, name in enumerate(CLASSES, 1):
        chosen = pixels[labels == number][:100, 0]
        for place, part in (("train", chosen[:60]), ("test", chosen[60:])):
            (folder / place / name).mkdir(parents=True)
            for index, digit in enumerate(part):
                image = Image.fromarray(digit).convert("RGB").resize((24, 20))
                image.save(folder / place / name / f"{index:02d}.png")


@pytest.fixture(scope="module")
def guide(tmp_path_factory):
    """What is named after all blocks, and what was printed."""
    folder = tmp_path_factory.mktemp("guide")
    lay_out_photos(folder / "photos")
    printed = []
    names = {"print": lambda *words: printed.append(" ".join(map(str, words)))}
    with pytest.MonkeyPatch.context() as patched, torch.random.fork_rng():
        patched.chdir(folder)
        torch.manual_seed(0)
        for block in blocks():
            exec(block, names)
        names["folder"] = folder
        yield names, printed


def percent(line):
    return float(re.search(r"([\d.]+) %", line)[1])


def test_what_is_printed(guide):
    _, printed = guide
    assert [line.split()[0] for line in printed] == [
        "float", "W1A32", "W1A1", "int8.onebit:", "w1a8.onebit:", "w1a1.onebit:"
    ]  # fmt: skip
    accuracies = dict(zip(("float", "W1A32", "W1A1", "int8", "w1a8", "w1a1"), map(percent, printed), strict=True))
    for kind in ("float", "W1A32", "W1A1"):
        assert accuracies[kind] > 80, "chance is 20"
    assert abs(accuracies["w1a8"] - accuracies["W1A32"]) <= 2
    assert abs(accuracies["int8"] - accuracies["float"]) <= 2
    assert abs(accuracies["w1a1"] - accuracies["W1A1"]) <= 2


def test_answers_of_the_files_are_those_of_the_nets(guide):
    names, _ = guide
    images = names["test_images"]
    for file, model, share in (("w1a8", "w1a32", 0.98), ("int8", "float_net", 0.98), ("w1a1", "w1a1", 0.99)):
        net = onebit.load(names["folder"] / f"{file}.onebit")
        answers = net(np.ascontiguousarray(images.numpy())).argmax(1)
        with torch.inference_mode():
            assert (answers == names[model].eval()(images).argmax(1).numpy()).mean() >= share
        assert net.model.classes == tuple(sorted(CLASSES))


def test_what_the_nets_are(guide):
    names, _ = guide
    kinds = {}
    for file in ("int8", "w1a8", "w1a1"):
        model = onebit.load(names["folder"] / f"{file}.onebit").model
        read = {node.inputs[0] for node in model.graph.nodes if node.op == "bconv2d"}
        kinds[file] = {model.values[name].kind for name in read}
    assert kinds == {"int8": set(), "w1a8": {"levels"}, "w1a1": {"bits"}}
    sizes = {file: (names["folder"] / f"{file}.onebit").stat().st_size for file in kinds}
    assert sizes["w1a8"] < sizes["int8"] / 2
    assert len(onebit.binarization_report(names["w1a1"]).replaced) == 12


def test_pixels_are_those_of_prepare(guide):
    """What training saw is what the file says, to 1 of 255."""
    names, _ = guide
    net = onebit.load(names["folder"] / "w1a8.onebit")
    files = sorted((names["folder"] / "photos" / "test").glob("*/*"))
    spread = names["std"].numpy()[:, None, None]
    apart = np.abs(net.prepare(files) - names["test_images"].numpy()) * spread
    assert apart.max() < 1.01 / 255


def test_without_training_the_kernels_are_of_no_use(guide):
    """As the text says, so that nobody exports such a net."""
    names, _ = guide
    for options in ({}, {"activation_bits": 1, "relu_before_sign": "prelu"}):
        untrained = onebit.binarize(copy.deepcopy(names["float_net"]), **options)
        assert names["accuracy"](untrained) < 50


def test_the_rates_rise_and_fall(guide):
    """As the text says: over an epoch, then along a cosine to 0; kernels at 4 times the rate, W at a tenth."""
    names, _ = guide
    seen = []

    def watched(*words, make=torch.optim.SGD, **options):
        made = make(*words, **options)
        made.register_step_post_hook(
            lambda optimizer, *_: seen.append({group["name"]: group["lr"] for group in optimizer.param_groups})
        )
        return made

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.optim, "SGD", watched)
        names["train"](onebit.binarize(names["Net"](5)), 3, lr=0.05)
    rates = [each["others"] for each in seen]
    steps = len(names["images"]) // 20
    assert len(rates) == 3 * steps
    assert rates[0] == pytest.approx(0.05 / (steps + 1))
    assert rates[: steps + 1] == sorted(rates[: steps + 1])
    assert max(rates) == rates[steps] == pytest.approx(0.05)
    assert rates[steps:] == sorted(rates[steps:], reverse=True)
    assert 0 < rates[-1] < 0.01
    for each in seen:
        assert each["kernels"] == pytest.approx(4 * each["others"])
        assert each["projections"] == pytest.approx(each["others"] / 10)
