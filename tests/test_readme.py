"""The README's Python and shell blocks run; command lines of all documents are right ones."""

import importlib.util
import re
import shlex
import socket
import tomllib
from pathlib import Path

import pytest
import torch
from PIL import Image

import foreign_nets
import onebit
from data_files import cifar10_python
from onebit.commands import COMMANDS, EXAMPLES, compare, make_parser, train
from onebit.comparison.plan import parse_contestants
from onebit.data.digits import load_digit_pixels
from onebit.training.recipes import resolve
from training_runs import call, start

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_a_trained_net_to_a_file_as_written(capsys, tmp_path, monkeypatch):
    """The long example: binarize a net, train on, export, load."""
    monkeypatch.chdir(tmp_path)
    model = foreign_nets.ResNet()
    before = [p.detach().clone() for p in model.parameters()]
    loader = [(torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))) for _ in range(2)]
    names = {"model": model, "loader": loader}
    exec(BLOCKS[0], names)
    assert "convolutions replaced" in capsys.readouterr().out
    changed = [
        not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=False) if p.shape == q.shape
    ]
    assert changed
    assert all(changed)
    with torch.inference_mode():
        expected = names["model"](loader[-1][0]).numpy()
    assert names["logits"].shape == expected.shape == (4, 10)
    assert (names["logits"].argmax(1) == expected.argmax(1)).all()
    assert any(node.op == "bconv2d" for node in names["net"].model.graph.nodes)
    Image.new("RGB", (50, 40)).save("photo.jpg")
    assert names["net"](names["net"].prepare("photo.jpg")).shape == (1, 10)


def test_the_nets_of_the_package_are_what_their_comments_say():
    """A block of single lines, each of which makes something."""
    names, made = {"onebit": onebit}, []
    for line in BLOCKS[1].splitlines():
        exec(line, names)
        made.append(names[line.partition(" = ")[0]])
    pcnn, resnet, layer = made
    with torch.inference_mode():
        assert pcnn.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
        assert layer(torch.zeros(1, 64, 5, 5)).shape == (1, 64, 5, 5)
    layers = [module for module in pcnn.modules() if isinstance(module, onebit.ProjectionConv2d)]
    assert {each.num_projections for each in layers} == {4}
    assert {each.out_channels for each in layers} == {4 * 16, 4 * 32, 4 * 64}
    layers = [module for module in resnet.modules() if isinstance(module, onebit.ProjectionConv2d)]
    assert len(layers) == 16
    assert {each.activation_bits for each in layers} == {1}
    assert layer.C.shape == (32, 64, 3, 3)


def test_there_are_blocks():
    assert len(BLOCKS) == 2


def shell_lines():
    """Every command of the README's shell blocks, in order, as words."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return [shlex.split(line, comments=True) for block in blocks for line in block.splitlines() if line.strip()]


# What makes a line of the README quick enough for a test, behind what it says; the slow test runs them as written.
QUICKER = {
    "train": ["--epochs", "1"],
    "compare": ["--methods", "float", "--epochs", "1", "--lrs", "0.1", "--quiet"],
    "bench": ["--rounds", "1", "--seconds", "0.01"],
    "eval": [],
}


def planned(words):
    """Hours of training, and more images than DATA has: here its runs are only planned."""
    return [*words, "--plan"] if words[0] == "reproduce" and "cpu" in words else words


def quicker(words):
    words = planned(words)
    if words[:2] == ["train", "--resume"]:
        return words
    if "cpu" in words:
        words = [{"cpu": "smoke"}.get(word, word) for word in words]
    return [*words, *([] if "smoke" in words and words[0] == "train" else QUICKER.get(words[0], []))]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder like a clone after `make demo`: DATA has a little CIFAR-10, PHOTOS some digits, runs/demo nets."""
    monkeypatch.chdir(tmp_path)
    cifar10_python(tmp_path / "DATA", count=32)
    (tmp_path / "PHOTOS").mkdir()
    for number, pixels in enumerate(load_digit_pixels()[1].images[:3]):
        Image.fromarray(pixels[0]).save(tmp_path / "PHOTOS" / f"{number}.png")
    return tmp_path


def run_shell_lines(capsys, change, *, demo):
    done = []
    assert call(capsys, *demo)[0] == 0
    for words in shell_lines():
        if words[0] == "onebit":
            words = [word.replace("-cpu", "-smoke") if change is quicker else word for word in words]  # noqa: PLW2901
            code, _, err = call(capsys, *change(words[1:]))
            if {"onnx", "qonnx"} & set(words) and importlib.util.find_spec("onnx") is None:
                assert (code, err) == (2, "onebit export: needs onnx: pip install 'onebit[onnx]'\n")
            else:
                assert code == 0, f"{' '.join(words)}: {err}"
        elif words[0] == "torchrun":
            machines = 2 if "--nnodes" in words else 1
            module = ("-m", "torch.distributed.run")
            line = [word.replace("HOST:29500", f"localhost:{free_port()}") for word in words[1:]]
            at = line.index("onebit") + 1
            line = [*line[:at], *change(line[at:])]
            processes = [start(*line, module=module) for _ in range(machines)]
            for process in processes:
                _, err = process.communicate(timeout=600)
                assert process.returncode == 0, err
        done.append(words[0])
    return done


def free_port():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def test_shell_blocks(place, capsys):
    """Every line, the long ones with fewer epochs; `make` and `pip` lines are what brought us here."""
    done = run_shell_lines(capsys, quicker, demo=["demo", "--epochs", "1", "--quiet"])
    assert set(done) == {"make", "source", "onebit", "torchrun", "pip"}
    assert (place / "runs" / "demo" / "w1a1" / "report.html").exists()


@pytest.mark.slow
def test_shell_blocks_as_written(place, capsys):
    run_shell_lines(capsys, planned, demo=["demo", "--quiet"])


def test_make_and_pip_lines_name_what_is_there():
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for words in shell_lines():
        if words[0] == "make":
            assert words[1] in targets
        for extra in re.findall(r"\[([a-z,]+)\]", " ".join(words)) if words[0] == "pip" else []:
            assert set(extra.split(",")) <= set(extras)


def commands():
    """The lines of commands in the documents and in --help, as words."""
    texts = [path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]
    texts += [EXAMPLES, *(importlib.import_module(f"onebit.commands.{name}").EXAMPLES for name in COMMANDS)]
    known = "|".join(COMMANDS)
    lines = [line.split("onebit ", 1)[1] for text in texts for line in text.splitlines()
             if re.match(rf"\s*(torchrun .*)?onebit ({known})( |$)", line)]  # fmt: skip
    commands = [
        re.split(r"\s{2,}(?=[a-zA-Z])|\s[|>]\s", line, maxsplit=1)[0] for line in lines
    ]  # not what it says of it
    return [shlex.split(command, comments=True) for command in commands]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_a_command_of_the_documents_is_a_right_one(words):
    arguments = make_parser(words[0]).parse_args(words)
    if words[0] in {"train", "compare"} and "asked.toml" not in str(arguments.recipe):  # a file of `reproduce`
        base = resolve(arguments.recipe, arguments.budget, train.config_flags(arguments))
    if words[0] == "compare":
        parse_contestants(compare._words(arguments.methods or ["all"]), base)


def test_there_are_commands():
    assert len(commands()) > 40
    assert {words[0] for words in commands()} == set(COMMANDS)
