"""The README's Python runs as it stands there."""

import re
from pathlib import Path

import pytest
import torch

import foreign_nets

BLOCKS = re.findall(r"```python\n(.*?)```", (Path(__file__).parent.parent / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block(number, capsys):
    model = foreign_nets.ResNet()
    before = [p.detach().clone() for p in model.parameters()]
    loader = [(torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))) for _ in range(2)]
    names = {"model": model, "loader": loader}
    exec("import onebit, torch\n" + BLOCKS[number], names)
    if "loader" in BLOCKS[number]:
        assert "convolutions replaced" in capsys.readouterr().out
        assert not any(
            torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=False) if p.shape == q.shape
        )


def test_there_are_blocks():
    assert len(BLOCKS) == 2
