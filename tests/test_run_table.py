"""What `onebit run` prints of a net with classes of many lengths, and which files of a folder it takes."""

import json

import numpy as np
import pytest
from PIL import Image

from onebit.modelfile import Preprocessing, write_model
from training_runs import call
from wire_models import Chain

CLASSES = ("a", "a class of many words", "emu")


def net_of(folder, *, softmax=False):
    """Of grey images, by how bright they are: the brighter, the later the class."""
    net = Chain(1, 2, 2).add("adaptive_avg_pool2d", output_size=[1, 1]).add("reshape", shape=[1])
    weight, bias = np.array([[-2], [0], [2]], np.float32), np.array([0, 0.5, -1], np.float32)
    net.add("linear", tensors={"weight": weight, "bias": bias})
    if softmax:
        net.add("softmax")
    path = folder / "net.onebit"
    write_model(net.model(preprocessing=Preprocessing((0.0,), (1.0,)), classes=CLASSES), path)
    return str(path)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def image(path, grey):
    path.parent.mkdir(exist_ok=True)
    Image.new("L", (2, 2), grey).save(path, "PNG")


def test_columns_are_as_wide_as_what_is_in_them(here, capsys):
    """Names of classes, and of files as they are printed; one that is very long pushes its own line only."""
    long = "x" * 70 + ".png"
    for name in ("bird\n\n.png", "short.png", long):
        image(here / name, 255)
    net = net_of(here)
    code, out, _ = call(capsys, "run", net, "short.png", "bird\n\n.png", "--top", "9")
    head, short, odd = out.splitlines()
    assert code == 0
    assert head.split() == ["image", *["class", "sure"] * 3], "no more than there are classes"
    assert (short[:12], odd[:12]) == ("short.png   ", "bird\\n\\n.png")
    starts = [head.index("class"), head.index("class", 30), head.rindex("class")]
    for line in (short, odd):
        assert [line[start:].split("  ")[0] for start in starts] == ["emu", "a class of many words", "a"]
        assert [at for at, c in enumerate(line) if c == "%"] == [start + 21 + 2 + 7 for start in starts]
    code, out, _ = call(capsys, "run", net, "short.png", long, "--top", "1")
    head, short, pushed = out.splitlines()
    assert short.index("emu") == head.index("class") == 60 + 3
    assert pushed.index("emu") == len(long) + 3


@pytest.mark.parametrize("softmax", [True, False])
def test_probabilities_are_made_once(softmax, here, capsys):
    """Of a net that makes them itself, they are what it makes."""
    image(here / "a.png", 255)
    code, out, _ = call(capsys, "run", net_of(here, softmax=softmax), "a.png", "--json")
    shares = np.exp([-2, 0.5, 1]) / np.exp([-2, 0.5, 1]).sum()
    top = json.loads(out)["top"]
    assert (code, [(guess["class"], guess["index"]) for guess in top]) == (
        0, [("emu", 2), ("a class of many words", 1), ("a", 0)],
    )  # fmt: skip
    np.testing.assert_allclose([guess["probability"] for guess in top], shares[::-1], rtol=1e-5)


def names_of(capsys, *words):
    code, out, err = call(capsys, "run", *words, "--json")
    assert (code, err) == (0, "")
    return [json.loads(line)["image"] for line in out.splitlines()]


def test_which_files_are_taken(here, capsys):
    """Of a folder images by their endings, large or small, but none that is hidden; all in order."""
    for name in ("b.PNG", "a.png", "c.Png", ".hidden.png"):
        image(here / "in" / name, 0)
        image(here / "in" / "deep" / name, 0)
    (here / "in" / "notes.txt").write_text("no image")
    net = net_of(here)
    deep = [f"in/deep/{name}" for name in ("a.png", "b.PNG", "c.Png")]
    assert names_of(capsys, net, "in") == ["in/a.png", "in/b.PNG", "in/c.Png", *deep]
    assert names_of(capsys, net, "in/*.[Pp][Nn][Gg]") == ["in/a.png", "in/b.PNG", "in/c.Png"]
    assert names_of(capsys, net, "in/**/a.png") == ["in/a.png", "in/deep/a.png"]
    assert names_of(capsys, net, "in/.hidden.png", "in/a.png") == ["in/.hidden.png", "in/a.png"]  # as asked


def test_a_single_bad_image_is_one_line(here, capsys):
    (here / "bad.png").write_text("no image")
    image(here / "a.png", 0)
    net = net_of(here)
    code, out, err = call(capsys, "run", net, "bad.png")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("onebit run: bad.png: ")
    code, out, err = call(capsys, "run", net, "bad.png", "a.png")
    assert (code, len(out.splitlines())) == (1, 2)
    assert err.splitlines()[-1] == "onebit run: 1 of 2 images could not be read"
