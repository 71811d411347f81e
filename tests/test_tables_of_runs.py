"""Tables of a reproduction: what stands in which column, and what is said of data and budgets."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes

from onebit.data.catalog import load_data
from onebit.reproduction import eight_bits
from onebit.reproduction.diversity import diversity, feature_maps
from onebit.reproduction.imagenet import SMOKE_NAME, smoke_folder
from onebit.reproduction.making import PLANNERS, name_of_data
from onebit.reproduction.outcomes import outcomes
from onebit.reproduction.records import write_record
from onebit.reproduction.sheets import Sheet, as_table
from onebit.reproduction.tables import sheet_of
from onebit.training.config import Config
from test_reproduction import fake_record, setting
from training_runs import small_run


def test_top5_stands_beside_top1(tmp_path):
    """Of the paper and ours, in the table and for a program; means over the seeds."""
    target = PLANNERS["table-imagenet"](setting(tmp_path, seeds=(0, 1), data_dir="DATA"))
    entry = next(e for e in target.entries if e.where == ("Resnet18", "32/32"))
    for run, top1, top5 in zip(entry.runs, (61.0, 63.0), (83.0, 88.0), strict=True):
        write_record(tmp_path, fake_record(tmp_path, run, top1).model_copy(update={"top5": top5}))
    found = outcomes(target, tmp_path)
    sheet = sheet_of(target, found)
    (row,) = [row for row in sheet.rows if row[:2] == entry.where]
    shown = dict(zip(sheet.heads, row, strict=True))
    assert shown == {
        "model": "Resnet18", "W/A": "32/32", "paper, top-1 %": "69.30", "paper, top-5 %": "89.20",
        "ours, top-1 %": "62.00 ± 1.00", "ours, top-5 %": "85.50", "bytes": "20", "lr": "0.1", "epochs": "5",
        "seeds": "2",
    }  # fmt: skip
    told = next(o for o in found if o.entry == entry).as_json(target.heads)
    expected = {"paper_top1": 69.3, "paper_top5": 89.2, "top1": 62.0, "top5": 85.5, "spread": 1.0, "lr": 0.1}
    assert told.items() >= (expected | {"epochs": 5, "bytes": 20, "parameters": 10, "kernel_rate": 1.0}).items()


def test_columns_of_figures_are_aligned_to_the_right():
    sheet = Sheet(("net", "file", "bytes"), [("a", "b", "1")], 2)
    assert as_table(sheet) == ["| net | file | bytes |", "|---|---|---:|", "| a | b | 1 |"]
    assert as_table(sheet._replace(words=1))[1] == "|---|---:|---:|"


def test_what_8_bits_cost_in_a_table():
    compared = eight_bits.Compared(100, 97.0, 91.0, 90.0, 0.01)
    shown = eight_bits.sheet([eight_bits.Row("a net", "both", 12_345, compared)])
    assert dict(zip(shown.heads, shown.rows[0], strict=True)) == {
        "net": "a net", "file": "both", "bytes": "12,345", "top-1 %, PyTorch": "91.00", "top-1 %, file": "90.00",
        "same class %": "97.00",
    }  # fmt: skip
    assert shown.words == 2


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"data": "cifar10", "data_dir": "/data/mine"}, "CIFAR-10"),
        ({"data": "cifar100"}, "CIFAR-100"),
        ({"data": "imagenet", "data_dir": "/data/mine"}, "ImageNet"),
        ({"data": "imagefolder", "data_dir": "/data/pets"}, "pets"),
        ({"data": "imagefolder"}, "imagefolder"),
        ({"data": "imagefolder", "data_dir": str(smoke_folder(Path("/out")))}, SMOKE_NAME),
    ],
)
def test_data_is_called_as_people_call_it(keys, name):
    assert name_of_data(setting("/out"), SimpleNamespace(config=Config(**keys))) == name


def test_what_is_not_as_in_the_paper_is_said_where_it_is_not(tmp_path):
    for budget, notes in (("paper", ()), ("cpu", ("the paper's are J = 4; ours J = 1 in this budget",))):
        assert PLANNERS["table-lambda"](setting(tmp_path, budget)).notes == notes
        config = PLANNERS["table-lambda"](setting(tmp_path, budget)).experiments[0].config
        assert config.projections == (4 if budget == "paper" else 1)


@pytest.mark.parametrize("budget", ["paper", "cpu", "smoke"])
def test_w_learns_a_tenth_as_fast_in_every_run(tmp_path, budget):
    for plan in PLANNERS.values():
        for run in plan(setting(tmp_path, budget, data_dir="DATA")).experiments:
            lr_w = run.config.lr / 10 if run.config.lr_w is None else run.config.lr_w
            assert lr_w == pytest.approx(run.config.lr / 10), run.name


def test_the_kernels_that_are_shown_are_before_images_become_smaller(tmp_path, monkeypatch):
    """And below each stand its feature map, and where that is above its mean."""
    small_run(tmp_path, projections=2, epochs=1)
    made, shown = [], []

    def kept(*words):
        made.extend(feature_maps(*words))
        return made

    monkeypatch.setattr("onebit.reproduction.diversity.feature_maps", kept)
    monkeypatch.setattr(Axes, "imshow", lambda self, image, **_: shown.append(torch.as_tensor(image).numpy()))
    diversity(tmp_path, load_data("digits"), "title")
    last = max(n for n, maps in enumerate(made) if maps.shape[1:] == made[0].shape[1:])
    assert len(shown) == 6, "three for each j"
    for j, (kernel, maps, above) in enumerate(zip(shown[::3], shown[1::3], shown[2::3], strict=True)):
        assert kernel.shape == (3, 3)
        assert set(kernel.flatten()) <= {-1.0, 1.0}
        assert np.array_equal(maps, made[last][j].numpy())
        assert np.array_equal(above, maps >= maps.mean())
