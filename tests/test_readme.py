"""The README's Python runs as it stands there."""

import importlib
import re
import shlex
from pathlib import Path

import pytest
import torch

import foreign_nets
import onebit
from onebit.commands import COMMANDS, EXAMPLES, compare, make_parser, train
from onebit.comparison.plan import parse_contestants
from onebit.training.recipes import resolve

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block(number, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = foreign_nets.ResNet()
    before = [p.detach().clone() for p in model.parameters()]
    loader = [(torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))) for _ in range(2)]
    names = {"model": model, "loader": loader}
    if "load" in BLOCKS[number] and "export" not in BLOCKS[number]:
        onebit.export(model.eval(), "net.onebit", torch.zeros(1, 3, 32, 32))
    exec("import onebit, torch\n" + BLOCKS[number], names)
    if "loader" in BLOCKS[number]:
        assert "convolutions replaced" in capsys.readouterr().out
        assert not any(
            torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=False) if p.shape == q.shape
        )


def test_there_are_blocks():
    assert len(BLOCKS) == 4


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
    if words[0] in {"train", "compare"}:
        base = resolve(arguments.recipe, arguments.budget, train.config_flags(arguments))
    if words[0] == "compare":
        parse_contestants(compare._words(arguments.methods or ["all"]), base)


def test_there_are_commands():
    assert len(commands()) > 40
    assert {words[0] for words in commands()} == set(COMMANDS)
