"""`onebit reproduce`: what is planned, what is kept of runs, what is made of it; and the budget of a minute."""

import fcntl
import io
import itertools
import json
import math
import os
import re
import shlex
import shutil
import signal
import time
from contextlib import redirect_stderr, redirect_stdout
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
from PIL import Image

from onebit.commands import main, make_parser
from onebit.commands.train import config_flags
from onebit.comparison import running
from onebit.console import counted
from onebit.errors import UserError
from onebit.methods import METHODS, authors_of, revision_of
from onebit.projection import initial_w
from onebit.reproduction import eight_bits, figures, memory, published
from onebit.reproduction.diversity import _numbers, feature_maps
from onebit.reproduction.making import MEMORY, PLANNERS, TITLES, missing_runs, ready
from onebit.reproduction.outcomes import _best, outcomes
from onebit.reproduction.plans import (
    Entry,
    Experiment,
    Setting,
    Target,
    check_names,
    run_name,
    same_run,
    share_of,
)
from onebit.reproduction.records import (
    CURVES,
    Histogram,
    Record,
    as_json,
    known_record,
    read_record,
    record_of,
    write_record,
)
from onebit.reproduction.tables import remarks, sheet_of
from onebit.training.config import settled
from onebit.training.kernels import BINS, REACH
from onebit.training.recipes import checked, resolve
from training_runs import call, command, small_config, small_run, start, trained_here

BUDGETS = ("paper", "cpu", "smoke")


def setting(out, budget="cpu", **keys):
    return Setting(budget, Path(out), **keys)


# What is planned.


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_name_stands_for_one_run_in_all_tables(tmp_path, budget):
    targets = [plan(setting(tmp_path, budget, data_dir="DATA")) for plan in PLANNERS.values()]
    check_names(targets)
    assert {target.name for target in targets} == set(TITLES) - {MEMORY}
    for target in targets:
        assert target.experiments
        assert all(len(entry.where) == len(target.heads) for entry in target.entries)
        for run in target.experiments:
            assert run.name == run_name(run.config)
            assert re.fullmatch(r"[\w.-]+", run.name)  # it is a folder
            assert not any(before.needs for before in run.needs)


def test_two_runs_of_one_name_are_refused():
    one, other = small_config(), small_config(weight_decay=0.1)
    targets = [
        Target("t", "", "", ("x",), (Entry(("a",), (Experiment("same", config),)),)) for config in (one, other)
    ]
    with pytest.raises(ValueError, match="same: two different runs have this name"):
        check_names(targets)


def test_the_papers_budget_is_the_papers_protocol(tmp_path):
    """PCNN and float of table-cifar and table-imagenet are the recipes, with all images; lambda's are J = 4."""
    in_paper = setting(tmp_path, "paper")
    own = {"hold_out": 0, "bn_batches": 0, "test_every": 1}
    for name, epochs, milestones, decay in (
        ("table-cifar", 200, (60, 120, 160), 5e-4), ("table-lambda", 200, (60, 120, 160), 5e-4),
        ("table-best", 200, (60, 120, 160), 5e-4), ("table-imagenet", 60, (20, 40), 1e-4),
    ):  # fmt: skip
        for run in PLANNERS[name](in_paper).experiments:
            config = run.config
            is_rival = config.method not in {"float", "pcnn"}
            held = {"table-cifar": 5000, "table-imagenet": 50_000}[name] if is_rival else 0
            expected = own | {"hold_out": held}
            assert {key: getattr(config, key) for key in own} == expected
            assert (config.limit_images, config.epochs, config.sched) == (0, epochs, "step")
            assert (config.milestones, config.weight_decay) == (milestones, decay), name
            assert is_rival or config.lr == (0.05 if config.initial_checkpoint else 0.1)
            assert is_rival or config.kernel_rate == 1
    rows = {e.where: e.runs for e in PLANNERS["table-cifar"](in_paper).entries}
    for where, recipe in {
        ("WRN (i = 16)", "0.27M", "0.27M", "cifar10"): "cifar10-wrn22",
        ("WRN (i = 64)", "4.29M", "4.28M", "cifar100"): "cifar100-wrn22-i64",
        ("PCNN (i = 16, J = 2)", "0.54M", "0.53M", "cifar10"): "cifar10-pcnn22-j2",
        ("PCNN (i = 64, J = 4)", "17.16M", "17.10M", "cifar100"): "cifar100-pcnn22-i64-j4",
    }.items():
        (run,) = rows[where]
        # lr_w of a float net is nobody's
        assert same_run(run.config.model_copy(update={"lr_w": 0.01}), resolve(recipe, "paper", own)), where
    assert len(rows) == 13 + 8  # five rivals have no figure for CIFAR-100
    table = PLANNERS["table-imagenet"](in_paper)
    by_bits = {e.where: e.runs[0].config for e in table.entries}
    assert same_run(by_bits["PCNN, J = 2", "1/32"], resolve("imagenet-pcnn-resnet18-j2", "paper", own))
    assert same_run(
        by_bits["PCNN on VGG16, J = 1", "1/32"],
        resolve("imagenet-pcnn-vgg16", "paper", own),
    )
    for run in PLANNERS["table-lambda"](in_paper).experiments:
        assert (run.config.projections, run.config.epochs, run.config.width) == (4, 200, 16)
    (shown,) = PLANNERS["figure-diversity"](in_paper).experiments
    assert (shown.config.projections, shown.config.width) == (4, 16)


GRIDS = {"binaryconnect": 3, "bnn": 3, "bwn": 3, "xnor": 3, "lbcnn": 1, "float": 1}  # kernel rates; else 2


def test_rivals_choose_their_rates_in_the_papers_budget_as_in_that_of_two_cores(tmp_path):
    for budget in ("paper", "cpu"):
        for entry in PLANNERS["table-methods"](setting(tmp_path, budget)).entries:
            method = entry.where[0]
            grid = {(run.config.lr, run.config.kernel_rate) for run in entry.runs}
            rates = {1, 10, "authors"} if GRIDS.get(method) == 3 else {1} if GRIDS.get(method) == 1 else {1, 10}
            assert grid == set(itertools.product((0.1, 0.3, 1.0), rates)), method
            assert {run.config.hold_out for run in entry.runs} == {5000}  # equal images, and some to choose by
            decays = {(run.config.kernel_rate, settled(run.config).decay_kernels) for run in entry.runs}
            theirs = {(rate, authors_of(method).decays_latents) for rate in rates}
            assert decays == theirs | ({(1, True)} if budget == "cpu" else set())  # the earlier runs at rate 1
    table = PLANNERS["table-cifar"](setting(tmp_path, "paper"))
    rows = {(e.where[0], e.where[-1]): e.runs for e in table.entries}
    assert len(rows["McDonnell", "cifar100"]) == 6
    assert {run.config.width for run in rows["BWN", "cifar10"]} == {64}
    assert len(rows["BWN", "cifar10"]) == 9
    assert len(table.experiments) == 65
    told = (Path(__file__).parents[1] / "docs/reproducing.md").read_text()
    assert "--array=1-65 " in told
    assert "--part $SLURM_ARRAY_TASK_ID/65\n" in told
    (told,) = [note for note in table.notes if "held out for it" in note]
    assert "of 0.1, 0.3, 1, with that of the kernels 1, 10 times as high" in told


def test_what_is_unequal_on_imagenet_is_said_below_the_table(tmp_path):
    for budget, epochs in (("paper", 60), ("smoke", 1)):
        target = PLANNERS["table-imagenet"](setting(tmp_path, budget))
        told = "\n".join(remarks(target, outcomes(target, tmp_path)))
        assert f"{epochs} + {epochs} epochs. W1A1 rivals have signs from the first update, and " in told
        assert f"and {counted(epochs, 'epoch')} in all" in told
        assert "rivals: all in the Resnet18 of PCNN, a shortcut round and a PReLU behind every conv" in told
        rivals = [run for run in target.experiments if run.config.method not in {"float", "pcnn"}]
        assert {run.config.epochs for run in rivals} == {epochs}
    entries = PLANNERS["table-imagenet"](setting(tmp_path, "paper")).entries
    rates = {entry.where: [run.config.kernel_rate for run in entry.runs] for entry in entries}
    assert rates["BWN", "1/32"] == rates["XNOR-Net", "1/1"] == [1, 10, "authors"]
    assert rates["ABC-Net", "1/1"] == [1, 10]
    assert rates["PCNN, J = 1", "1/1"] == [1]


def test_rivals_on_imagenet_can_have_the_structure_of_their_authors(tmp_path, capsys):
    shared, own = (
        PLANNERS["table-imagenet"](setting(tmp_path, "paper", own_structure=own)) for own in (False, True)
    )
    assert (shared.name, own.name) == ("table-imagenet", "table-imagenet-own-structure")
    for one, other in zip(shared.entries, own.entries, strict=True):
        assert one.where == other.where
        is_rival = one.runs[0].config.method not in {"float", "pcnn"}
        assert {run.config.form for run in one.runs} == {None}
        assert {run.config.form for run in other.runs} == ({"own"} if is_rival else {None})
        assert ({run.name for run in one.runs} == {run.name for run in other.runs}) != is_rival
    check_names([shared, own])
    assert "--own-structure" in "".join(shared.notes)
    assert "BWN: the standard net" in "".join(own.notes)
    for words, message in (
        (["table-cifar", "--own-structure"], "--own-structure: a choice of table-imagenet"),
        (["table-imagenet", "--own-structure"], "--own-structure: --budget cpu has no rivals on ImageNet"),
    ):
        code, _, errors = call(capsys, "reproduce", *words, "--out", str(tmp_path / "out"))
        assert (code, message in errors) == (2, True)


def changed(run, of):
    """The keys in which a run is another than a run."""
    mine, other = (each.config.model_dump() for each in (run, of))
    return {key: value for key, value in mine.items() if value != other[key]}


@pytest.mark.parametrize("budget", BUDGETS)
def test_an_ablation_changes_one_thing(tmp_path, budget):
    here = setting(tmp_path, budget)
    of_lambda = {entry.where: entry.runs for entry in PLANNERS["table-lambda"](here).entries}
    usual = of_lambda["PCNN-22", "0.0001"]
    for words, change in (("eta = 0", {"eta": 0.0}), ("no weight decay on C", {"decay_kernels": False})):
        runs = of_lambda[f"PCNN-22, {words}", "0.0001"]
        assert runs
        assert all(changed(run, of) == change for run, of in zip(runs, usual, strict=False))
    rows = {entry.where: entry.runs[0] for entry in PLANNERS["table-projections"](here).entries}
    as_written = [where for where in rows if where[4] == "normal"]
    assert [where[2] for where in as_written] == ["1", "2", "4"]
    for where in as_written:
        begins = "ones" if where[2] == "1" else "signs"
        assert changed(rows[where], rows[*where[:4], begins]) == {"w_init": "normal"}
    for (tensors, kernels, J, forward_w, begins), run in rows.items():
        config = run.config
        assert (config.width, config.projections) == (int(kernels), int(J))
        assert int(tensors) == int(kernels) * int(J)
        assert (config.forward_w or "elementwise") == forward_w
        W = initial_w(config.projections, (3, 3), config.w_init, forward_w)
        found = "ones" if bool((W == 1).all()) else "signs" if bool((W.abs() == 1).all()) else "normal"
        assert found == begins


def test_seeds_can_be_chosen(tmp_path):
    runs = PLANNERS["table-methods"](setting(tmp_path, seeds=(3, 5))).experiments
    assert {run.config.seed for run in runs} == {3, 5}
    with_decay = 4  # the earlier runs of binaryconnect, bnn, dorefa and bireal
    assert len(runs) == (sum(GRIDS.get(method, 2) for method in METHODS) + with_decay) * 3 * 2
    for budget in BUDGETS:
        here = setting(tmp_path, budget, seeds=(3, 5), data_dir="DATA")
        for name in ("table-best", "table-imagenet", "table-lambda"):
            for entry in PLANNERS[name](here).entries:
                assert {run.config.seed for run in entry.runs} in ({3, 5}, set())
                for run in entry.runs:
                    assert all(before.config.seed == run.config.seed for before in run.needs)


def test_folders_of_images_are_told_apart(tmp_path):
    one, other = (
        PLANNERS["table-imagenet"](setting(tmp_path, data_dir=f"/data/{name}")).experiments
        for name in ("pets", "my photos")
    )
    assert {run.name for run in one}.isdisjoint(run.name for run in other)


@pytest.mark.parametrize("of", [1, 2, 3, 7])
@pytest.mark.parametrize("budget", BUDGETS)
def test_shares_are_all_runs_once_with_what_they_need(tmp_path, budget, of):
    here = setting(tmp_path, budget, data_dir="DATA")
    targets = [plan(here) for plan in PLANNERS.values()]
    shares = [[run.name for run in share_of(targets, k, of)] for k in range(1, of + 1)]
    names = [name for share in shares for name in share]
    assert len(names) == len(set(names))
    wanted = {run.name: run for target in targets for run in target.experiments}
    assert set(names) == set(wanted) | {before.name for run in wanted.values() for before in run.needs}
    for share in shares:
        for run in map(wanted.get, share):
            assert run is None or {before.name for before in run.needs} <= set(share)
    assert max(map(len, shares)) <= len(names) // of + 4


def test_who_needs_another_run_waits_for_it(tmp_path):
    here = setting(tmp_path)
    waiting = missing_runs(here, [PLANNERS["table-best"](here)])
    first = ready(waiting)
    assert [run.config.method for run in first] == ["float", "pcnn"]
    (last,) = set(waiting) - set(first)
    assert last.needs == (first[0],)
    assert Path(last.config.teacher) == tmp_path / "runs" / first[0].name
    assert ready([last]) == [last]


NUMBERS = re.compile(r"\d+\.\d+")


@pytest.mark.skipif(not (Path(__file__).parents[2] / "shared/paper.tex").is_file(), reason="the paper is not here")
def test_the_papers_figures_are_copied_right():
    text = (Path(__file__).parents[2] / "shared/paper.tex").read_text()

    def table(label):
        part = text[: text.index(rf"\label{{table:{label}}}")]
        rows = part[part.rindex(r"\toprule") :].split(r"\\")
        return [" ".join(row.split()) for row in rows]

    for name, model in (("PCNN-22", "wrn22"), ("PCNN-40", "wrn40")):
        (row,) = [row for row in table("lambda") if name in row]
        assert tuple(map(float, NUMBERS.findall(row))) == published.LAMBDA_TOP1[model]
    powers = [float(f"1e{power}") for power in re.findall(r"e(-\d+)", " ".join(table("lambda")))]
    assert (*powers, 0.0) == published.LAMBDAS
    cifar = [row for row in table("cifar") if "M" in row and "&" in row and "Model" not in row]
    found = [[float(number) for number in NUMBERS.findall(row.replace("0.3$", ""))] for row in cifar]
    expected = [
        [float(r.parameters[:-1]), r.cifar10, *([r.cifar100] if r.cifar100 else [])] for r in published.CIFAR
    ]
    assert found == expected
    rows = [match for row in table("imagenet") if (match := re.search(r"([\w -]+) & (\d+) & (\d+) &(.*)", row))]
    found = []
    for model, weights, activations, cells in (match.groups() for match in rows):
        top1, top5 = (NUMBERS.findall(cell) for cell in cells.split("&"))  # with two J, two figures a cell
        found += [
            (model.split()[-1], f"{weights}/{activations}", *map(float, pair))
            for pair in zip(top1, top5, strict=True)
        ]
    expected = [(re.split(",| on", r.model)[0].split()[-1], r.bits, r.top1, r.top5) for r in published.IMAGENET]
    assert found == expected
    rows = " ".join(table("memory"))
    (pcnn, saving, count), (in_float,) = (
        re.search(r"PCNN & ([\d.]+) Mbit & ([\d.]+) .*?& ([\d.]+)", rows).groups(),
        re.search(r"Resnet18 & ([\d.]+)", rows).groups(),
    )
    numbers = {"pcnn_mbit": pcnn, "saving": saving, "speedup": count, "float_mbit": in_float}
    assert {key: float(number) for key, number in numbers.items()} == published.MEMORY


# What is kept of a run.


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small run of two stages, in the folder of a reproduction, with its plan."""
    out = tmp_path_factory.mktemp("finished")
    config = small_config(activation_bits=1, two_stage=True, epochs=2, stage2_epochs=1, test_every=1)
    run = Experiment(run_name(config), config)
    small_run(out / "runs" / run.name, activation_bits=1, two_stage=True, epochs=2, stage2_epochs=1, test_every=1)
    return out, run


def test_a_record_holds_result_origin_and_curves(finished):
    out, run = finished
    folder = out / "runs" / run.name
    record = record_of(folder, "some digits")
    summary = json.loads((folder / "summary.json").read_text())
    assert (record.top1, record.top5, record.seed) == (summary["test_top1"], summary["test_top5"], 0)
    assert (record.data, record.epochs, record.name) == ("some digits", 3, run.name)
    assert (record.weight_bits, record.activation_bits) == (1, 1)
    assert record.minutes == round(summary["training_seconds"] / 60, 2)
    for key in ("test_loss", "test_images", "held_out_top1", "net"):
        assert getattr(record, key) == summary[key]
    environment = json.loads((folder / "environment.json").read_text())
    assert (record.commit, record.cpu) == (environment["commit"], environment["cpu"])
    assert (record.threads, record.torch) == (1, environment["packages"]["torch"])
    assert record.curves["stage"] == [1, 1, 2]
    assert record.curves["epoch"] == [1, 2, 1]
    assert len(record.curves["test_loss"]) == 3
    assert all(loss > 0 for loss in record.curves["test_loss"])
    assert [(h.stage, h.epoch, sum(h.counts)) for h in record.kernels] == [
        (stage, epoch, 36) for stage, epoch in ((1, 0), (1, 1), (1, 2), (2, 1))
    ]
    # The command does the same run again, and says nothing of this machine.
    flags = config_flags(make_parser("train").parse_args(record.command.split()[1:]))
    assert same_run(resolve(None, "paper", flags), run.config)
    assert str(out) not in as_json(record)


def test_a_record_is_read_back_as_it_was_written(finished, tmp_path):
    out, run = finished
    record = record_of(out / "runs" / run.name, "digits")
    write_record(tmp_path, record)
    assert known_record(tmp_path, run) == record
    file = tmp_path / "records" / f"{run.name}.json"
    assert json.loads(file.read_text()) == record.model_dump(mode="json")
    other = run._replace(config=run.config.model_copy(update={"weight_decay": 0.5}))
    with pytest.raises(UserError, match="of another run than"):
        known_record(tmp_path, other)
    assert known_record(tmp_path, run._replace(config=run.config.model_copy(update={"amp": "bfloat16"}))) == record
    whole, keys = file.read_bytes(), record.model_dump(mode="json")
    empty = [{**keys["kernels"][0], "counts": [0] * BINS}]
    short = [{**keys["kernels"][0], "counts": [1]}]
    wrong = [
        {"top1": 101.0}, {"top1": float("nan")}, {"kernels": []}, {"kernels": empty}, {"kernels": short},
        {"curves": {}}, {"curves": keys["curves"] | {"lr": []}}, {"config": keys["config"] | {"lr": "abc"}},
        {"config": {"no": 1}},
    ]  # fmt: skip
    for broken in (
        b"", b"{}", whole[:-20], whole.replace(b'"top1"', b'"top"'), b"\xff\xfe",
        *(json.dumps(keys | change).encode() for change in wrong),
    ):  # fmt: skip
        file.write_bytes(broken)
        with pytest.raises(UserError, match="not a record that this version writes; remove it"):
            read_record(file)
    file.write_bytes(json.dumps(keys | {"name": "other"}).encode())
    with pytest.raises(UserError, match="is the record of other; give it that name, or remove it"):
        read_record(file)
    file.unlink()
    file.mkdir()
    with pytest.raises(UserError, match="not a record"):
        known_record(tmp_path, run)


def test_an_unfinished_run_has_no_record(tmp_path):
    assert record_of(tmp_path / "nothing", "digits") is None


# What is made of records.


def fake_record(out, run, top1, held_out=None, curves=None):
    """A record as if the run had come to this."""
    config = settled(run.config).model_dump(mode="json", exclude_none=True)
    counts = [int(1000 * math.exp(-(((n - 31.5) / 16) ** 2))) for n in range(BINS)]
    kernels = [Histogram(stage=1, epoch=n + 1, layer="l", a=0.1 / (n + 1), counts=counts) for n in range(5)]
    numbers = [1.0, 0.9, 0.8, 0.7, 0.6]
    curves = dict.fromkeys(CURVES, numbers) | (curves or {})
    record = Record(
        name=run.name, net="a net", data="CIFAR-10 (fake)", command="onebit train", commit="abc", cpu="a CPU",
        threads=1, torch="2", seed=run.config.seed, epochs=5, minutes=1.0, top1=top1, top5=99.0, test_loss=1.0,
        test_images=10, held_out_top1=held_out, weight_bits=1, activation_bits=32, parameters=10, bytes=20,
        config=config, curves=curves, kernels=kernels, revision=revision_of(run.config.method),
    )  # fmt: skip
    write_record(out, record)
    return record


def test_the_rate_is_chosen_on_held_out_images(tmp_path):
    here = setting(tmp_path)
    target = PLANNERS["table-methods"](here)
    entry = next(e for e in target.entries if e.where == ("bnn", "1/1"))
    for run, held_out, top1 in zip(entry.runs, (50, 60, 55, *[40] * 9), (90, 61, 56, *[95] * 9), strict=True):
        fake_record(tmp_path, run, top1, held_out)
    outcome = next(o for o in outcomes(target, tmp_path) if o.entry == entry)
    assert (outcome.top1, outcome.state, outcome.chosen[0].config["lr"]) == (61, "finished", 0.3)
    (row,) = [row for row in sheet_of(target, outcomes(target, tmp_path)).rows if row[0] == "bnn"]
    assert row[4:6] == ("0.3", "1")
    # With a seed missing a rate does not win over one that has all.
    records = [record.model_copy(update={"seed": seed}) for seed in (0, 1) for record in outcome.chosen]
    better = outcome.chosen[0].model_copy(update={"held_out_top1": 99.0, "config": {"lr": 1.0}})
    assert _best([*records, better]) == tuple(records)
    assert _best([]) == ()
    # Nor are runs with decay and without it averaged as if they were seeds.
    with_decay = [r.model_copy(update={"config": r.config | {"decay_kernels": True}}) for r in records[:1]]
    assert _best([*records, *with_decay]) == tuple(records)
    # Kernels ten times as fast are another choice at the same rate.
    fast = next(run for run in entry.runs if (run.config.lr, run.config.kernel_rate) == (0.3, 10))
    fake_record(tmp_path, fast, 66, 65)
    outcome = next(o for o in outcomes(target, tmp_path) if o.entry == entry)
    assert (outcome.top1, [record.name for record in outcome.chosen]) == (66, [fast.name])
    assert outcome.as_json(target.heads)["kernel_rate"] == 10
    sheet = sheet_of(target, outcomes(target, tmp_path))
    (row,) = [row for row in sheet.rows if row[0] == "bnn"]
    assert dict(zip(sheet.heads, row, strict=True))["kernels"] == "10"
    assert any(line.startswith("kernels: by what") for line in remarks(target, outcomes(target, tmp_path)))
    assert "kernels" not in sheet_of(PLANNERS["table-lambda"](here), []).heads


def test_the_command_of_a_kept_record_does_its_run_again():
    files = sorted((Path(__file__).parents[1] / "results/cpu/records").glob("*.json"))
    assert files
    for record in map(read_record, files):
        flags = config_flags(make_parser("train").parse_args(shlex.split(record.command)[1:]))
        assert same_run(resolve(None, "paper", flags), checked(record.config)), record.name


def test_a_record_of_an_earlier_form_of_a_method_counts_for_nothing(tmp_path):
    """Its figure stays in the file and out of the tables; the run is planned again and takes its place."""
    here = setting(tmp_path)
    target = PLANNERS["table-methods"](here)
    entry = next(e for e in target.entries if e.where[0] == "mcn")
    for run in entry.runs:
        fake_record(tmp_path, run, 61.42, 61.0)
    assert next(o for o in outcomes(target, tmp_path) if o.entry == entry).top1 == 61.42
    for run in entry.runs:
        file = tmp_path / "records" / f"{run.name}.json"
        told = json.loads(file.read_text())
        assert told.pop("revision") == 2
        file.write_text(json.dumps(told))  # as it was written before there were revisions
        assert read_record(file).revision == 1
        assert known_record(tmp_path, run) is None
    outcome = next(o for o in outcomes(target, tmp_path) if o.entry == entry)
    assert (outcome.state, outcome.top1, len(outcome.missing)) == ("unfinished", None, 6)
    assert set(entry.runs) <= set(missing_runs(here, [target]))
    fake_record(tmp_path, entry.runs[0], 53.0, 52.0)
    assert next(o for o in outcomes(target, tmp_path) if o.entry == entry).top1 == 53.0


def test_what_is_unfinished_is_shown_as_that(tmp_path):
    here = setting(tmp_path)
    target = PLANNERS["table-lambda"](here)
    by_where = {e.where: e for e in target.entries}
    first, second = by_where["PCNN-22", "0.001"].runs
    fake_record(tmp_path, first, 80.0)
    both = by_where["PCNN-22", "0.0001"].runs
    for run, top1 in zip(both, (78.0, 79.0), strict=True):
        fake_record(tmp_path, run, top1)
    begun = tmp_path / "runs" / second.name
    begun.mkdir(parents=True)
    (begun / "metrics.jsonl").write_text('{"kind": "epoch", "stage": 1, "epoch": 3, "step": 5}\n{"kind": "ep')
    failed = by_where["PCNN-22", "0"].runs[0]
    (tmp_path / "runs" / failed.name).mkdir()
    (tmp_path / "runs" / failed.name / "error.txt").write_text("stopped at step 3\n")
    found = outcomes(target, tmp_path)
    sheet = sheet_of(target, found)
    cells = {row[:2]: row for row in sheet.rows}
    assert cells["PCNN-22", "0.001"][2:4] == ("91.92", "80.00 (1 run unfinished)")
    assert cells["PCNN-22", "0.0001"][2:4] == ("92.79", "78.50 ± 0.50")
    assert cells["PCNN-22", "0"][3] == "unfinished"  # the other seed's
    said = remarks(target, found)
    assert f"unfinished: {second.name}: in epoch 3/5" in said
    assert f"failed, and would again: {failed.name}: stopped at step 3" in said
    assert failed.name not in {run.name for run in missing_runs(here, [target])}
    assert f"unfinished: {by_where['PCNN-40', '0'].runs[0].name}: not begun" in said


def test_a_rate_that_fails_leaves_the_others(tmp_path):
    target = PLANNERS["table-methods"](setting(tmp_path))
    bnn, bwn = (next(e for e in target.entries if e.where[0] == name) for name in ("bnn", "bwn"))
    fake_record(tmp_path, bnn.runs[0], 60.0, 61.0)
    fake_record(tmp_path, bnn.runs[1], 62.0, 60.0)
    for run in (*bnn.runs[2:], *bwn.runs):
        (tmp_path / "runs" / run.name).mkdir(parents=True)
        (tmp_path / "runs" / run.name / "error.txt").write_text("stopped at step 3: the loss is infinite\n")
    found = {o.entry.where[0]: o for o in outcomes(target, tmp_path)}
    assert (found["bnn"].state, found["bnn"].top1, len(found["bnn"].failed)) == ("finished", 60.0, 10)
    assert (found["bwn"].state, found["bwn"].top1, len(found["bwn"].failed)) == ("failed", None, 9)
    assert [row[2] for row in sheet_of(target, list(found.values())).rows if row[0] == "bwn"] == ["failed"]


def test_what_is_not_in_a_budget_is_said(tmp_path):
    target = PLANNERS["table-cifar"](setting(tmp_path))
    sheet = sheet_of(target, outcomes(target, tmp_path))
    cells = {(row[0], row[3]): row for row in sheet.rows}
    assert cells["PCNN (i = 64, J = 4)", "cifar10"][4:6] == ("95.39", "not in this budget")
    assert cells["PCNN (i = 16, J = 1)", "cifar100"][5] == "not in this budget"
    assert cells["BNN", "cifar10"][5] == "unfinished"


def test_parameters_of_table_3_are_counted(tmp_path):
    """Ours beside the paper's: 267,264 and 4,276,224 weights of 1-bit kernels, J times."""
    rows = {entry.where[0]: entry.where[1:3] for entry in PLANNERS["table-cifar"](setting(tmp_path)).entries}
    assert {model: ours for model, (_, ours) in rows.items() if ours} == {
        "WRN (i = 16)": "0.27M", "WRN (i = 64)": "4.28M", "McDonnell": "4.28M",
        "PCNN (i = 16, J = 1)": "0.27M", "PCNN (i = 16, J = 2)": "0.53M", "PCNN (i = 16, J = 4)": "1.07M",
        "PCNN (i = 64, J = 1)": "4.28M", "PCNN (i = 64, J = 4)": "17.10M",
    }  # fmt: skip
    assert rows["PCNN (i = 64, J = 4)"] == ("17.16M", "17.10M")


def histogram(values, a):
    counts, _ = np.histogram(np.clip(np.array(values) / a, -REACH, REACH - 1e-9), BINS, (-REACH, REACH))
    return Histogram(stage=1, epoch=1, layer="l", a=a, counts=counts.tolist())


def test_how_far_kernels_are_from_two_values():
    generator = np.random.default_rng(0)
    normal = generator.standard_normal(200_000)
    numbers = figures.spread_of(histogram(normal, np.abs(normal).mean()))
    assert numbers["deviation"] == pytest.approx(math.sqrt(math.pi / 2 - 1), abs=0.01)
    assert numbers["near_zero"] == pytest.approx(math.erf(0.25 * math.sqrt(2 / math.pi) / math.sqrt(2)), abs=0.01)
    two = figures.spread_of(histogram([-0.2, 0.2, 0.2], 0.2))
    assert two["deviation"] < 0.07  # half of a bin
    assert two["near_zero"] == 0
    assert two["peak"] == pytest.approx(1, abs=REACH / BINS)
    assert numbers["std"] == pytest.approx(1, abs=0.01)
    assert two["std"] == pytest.approx(np.std([-0.2, 0.2, 0.2]), abs=0.2 * REACH / BINS)  # half of a bin
    for values in ([-0.1, 0.1, 0.3], [-0.1, -0.1, 0.3]):  # of both signs together
        assert figures.spread_of(histogram(values, 0.2))["peak"] == pytest.approx(0.5, abs=2 * REACH / BINS)


def test_losses_of_images_that_were_not_trained_on(tmp_path):
    """Of test images if they were followed, of held-out ones else, or none; what is unfinished is told."""
    found = outcomes(target := PLANNERS["figure-losscurve"](setting(tmp_path)), tmp_path)
    assert figures.losses(found, "title") == (None, {})
    none = {"test_loss": [None] * 5}
    for curves, kind in (({}, "test"), (none, "held out"), (none | {"held_out_loss": [None] * 5}, None)):
        fake_record(tmp_path, target.experiments[0], 80.0, curves=curves)
        figure, numbers = figures.losses(outcomes(target, tmp_path), "title")
        assert set(numbers["lambda = 0"]) == {"training", "top1", *([kind] if kind else [])}
        words = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
        unseen = [f"lambda = 0, {kind}"] if kind else []
        assert words == ["lambda = 0, training", *unseen, "lambda = 1e-4: unfinished"]


def test_histograms_that_are_unfinished_are_in_the_picture(tmp_path):
    target = PLANNERS["figure-lambda"](setting(tmp_path))
    assert figures.over_lambda(outcomes(target, tmp_path), "title") == (None, {})
    fake_record(tmp_path, target.experiments[2], 80.0)
    figure, numbers = figures.over_lambda(outcomes(target, tmp_path), "title")
    assert list(numbers) == ["lambda = 0.001"]
    assert numbers["lambda = 0.001"]["a"] == pytest.approx(0.1 / 5), "of the last of 5 epochs"
    shown = [[text.get_text() for text in ax.texts] for ax in figure.axes]
    assert shown == [["unfinished"], ["unfinished"], [], ["unfinished"], ["unfinished"], ["unfinished"]]


def test_kernels_over_the_epochs_from_the_second_to_the_last():
    """As in Fig. 3, and beside each picture how large the kernels are. Epoch 0 is the start."""
    kernels = [histogram([-0.2, 0.2, 0.2 + n / 100], 0.2).model_copy(update={"epoch": n}) for n in range(31)]
    for count, epochs in ((31, (2, 11, 21, 30)), (2, (1,))):
        found = [SimpleNamespace(chosen=[SimpleNamespace(kernels=kernels[:count])])]
        figure, numbers = figures.over_epochs(found, "title")
        assert list(numbers) == [ax.get_title() for ax in figure.axes] == [f"epoch {n}" for n in epochs]
        for ax, of_epoch in zip(figure.axes, numbers.values(), strict=True):
            assert f", std = {of_epoch['std']:.3g}\n" in ax.get_xlabel()


def test_projections_that_are_alike_and_that_are_not():
    from onebit.layers import ProjectionConv2d

    layer = ProjectionConv2d(3, 8, 3, padding=1, num_projections=4)
    with torch.no_grad():
        layer.W.copy_(torch.ones(4, 3, 3))
        layer.W[1] = -1
        layer.W[2, 0, 0] = -1
    net = torch.nn.Sequential(layer)
    (maps,) = feature_maps(net, [layer], torch.randn(1, 3, 9, 9))
    assert maps.shape == (8, 9, 9)
    numbers = _numbers(layer, maps)
    pairs = {(0, 1): 1, (0, 2): 1 / 9, (0, 3): 0, (1, 2): 8 / 9, (1, 3): 1, (2, 3): 1 / 9}
    assert numbers["different_taps"] == pytest.approx(np.mean(list(pairs.values())))
    expected = [
        abs(np.corrcoef(maps[4 * o + i].detach().flatten(), maps[4 * o + j].detach().flatten())[0, 1])
        for (i, j) in pairs
        for o in (0, 1)
    ]
    assert numbers["correlation"] == pytest.approx(np.mean(expected), rel=1e-4)


def test_files_and_pytorch_are_compared_image_by_image():
    class Batches:
        def __call__(self, batch):
            return batch

    images = torch.zeros(2, 1)
    logits = {0: [[1.0, 2.0], [3.0, 0.0]], 1: [[1.0, 2.0], [0.0, 4.0]]}
    found = eight_bits.compare_outputs(
        lambda _: np.array(logits[0]),
        lambda _: np.array(logits[1]),
        [(images, torch.tensor([1, 1]))] * 2,
        Batches(),
    )
    assert found == (4, 50.0, 50.0, 100.0, pytest.approx(4 / 3))


# The budget of a minute, for real.


def reproduce(capsys, *words, code=0):
    found, out, err = call(capsys, "reproduce", *words)
    assert found == code, err
    return out, err


@pytest.fixture(scope="module", autouse=True)
def _trained_here():
    """Nothing here but Ctrl-C, which has a process of its own, is about the workers that train."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "_start", trained_here)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Tables and figures in the budget of a minute: the folder, and what was printed. Made once for all workers."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    out, words = root / "made", root / "made.json"
    names = ["table-best", "figure-losscurve", "figure-epoch", "table-w1a8", "figure-diversity"]
    with (root / "made.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not words.exists():
            with redirect_stdout(io.StringIO()) as printed, redirect_stderr(io.StringIO()) as err:
                assert main(["reproduce", *names, "--budget", "smoke", "-o", str(out)]) == 0, err.getvalue()
            words.write_text(json.dumps([printed.getvalue(), err.getvalue()]))
    return out, *json.loads(words.read_text())


def test_a_table_is_what_the_runs_came_to(made):
    out, printed, _ = made
    table = json.loads((out / "table-best.json").read_text())
    assert (table["budget"], table["data"], table["paper"]) == ("smoke", ["handwritten digits"], "")
    for entry, bits in zip(table["entries"], ("32/32", "1/32", "1/1"), strict=True):
        assert (entry["state"], entry["W/A"]) == ("finished", bits)
        (run,) = entry["runs"]
        summary = json.loads((out / "runs" / run / "summary.json").read_text())
        assert entry["top1"] == summary["test_top1"]
        kept = read_record(out / "records" / f"{run}.json")
        assert f"{kept.weight_bits}/{kept.activation_bits}" == bits
    assert [e["paper_top1"] for e in table["entries"]] == [92.62, 89.17, None]
    text = (out / "table-best.md").read_text()
    assert text.startswith("# the nets of the zoo (not in the paper)\n\nbudget smoke: ")
    assert f"| PCNN-22, J = 1 | 1/32 | 89.17 | {table['entries'][1]['top1']:.2f} |" in text
    assert "the nets of the zoo (not in the paper)" in printed
    assert "the accuracies mean nothing" in printed


def test_lambda_from_records(tmp_path, capsys):
    """Table 2 and Fig. 2: each lambda's own runs, the paper's figures beside them."""
    target = PLANNERS["table-lambda"](setting(tmp_path))
    for number, run in enumerate(target.experiments):
        fake_record(tmp_path, run, 50.0 + number)
    reproduce(capsys, "table-lambda", "figure-lambda", "--no-train", "-o", str(tmp_path))
    table = json.loads((tmp_path / "table-lambda.json").read_text())
    assert (table["paper"], len(table["entries"])) == ("Table 2", 12)
    assert [e["paper_top1"] for e in table["entries"][:4]] == [91.92, 92.79, 92.24, 91.52]
    records = {run.name: known_record(tmp_path, run) for run in target.experiments}
    for entry in table["entries"]:
        found = [records[name] for name in entry["runs"]]
        assert {float(record.config.get("lam", 1e-4)) for record in found} == {float(entry["lambda"])}
        assert entry["top1"] == np.mean([record.top1 for record in found])
    drawn = json.loads((tmp_path / "figure-lambda.json").read_text())
    ours = [f"lambda = {lam} (not in the paper)" for lam in ("0.1", "0.01")]
    assert list(drawn["numbers"]) == [*ours, *(f"lambda = {lam}" for lam in ("0.001", "0.0001", "1e-05", "0"))]
    assert_picture(tmp_path, "figure-lambda")


def assert_picture(folder, name):
    with Image.open(folder / f"{name}.png") as image:
        assert image.width >= 600
        assert np.asarray(image.convert("L")).std() > 10  # not an empty page
    assert ET.parse(folder / f"{name}.svg").getroot().tag.endswith("svg")


def test_figures_are_pictures(made):
    out, _, _ = made
    for name in ("figure-losscurve", "figure-epoch", "figure-diversity"):
        assert_picture(out, name)
    curve = json.loads((out / "figure-losscurve.json").read_text())["numbers"]["lambda = 0"]
    assert len(curve["training"]) == len(curve["held out"]) == 1
    diverse = json.loads((out / "figure-diversity.json").read_text())["numbers"]
    assert diverse["J"] == 4
    assert len(diverse["layers"]) == 18
    assert 0 < diverse["mean"]["different_taps"] < 1


def test_the_kinds_of_files_are_compared(made):
    out, _, _ = made
    rows = json.loads((out / "table-w1a8.json").read_text())["rows"]
    assert [row["file"] for row in rows] == [*eight_bits.KINDS, "as trained", "other layers in 8 bits"]
    assert all(row["images"] == 100 for row in rows)
    trained = [row for row in rows if row["file"] == "as trained"]
    assert trained[0]["same_class"] == 100.0
    assert trained[0]["difference"] < 1e-4


def test_records_are_enough_to_make_it_again(made, tmp_path, capsys):
    """Where the runs are gone: the same bytes, and nothing is trained."""
    out, _, _ = made
    shutil.copytree(out / "records", tmp_path / "records")
    names = ["table-best", "figure-epoch", "figure-losscurve"]
    _, err = reproduce(capsys, *names, "--budget", "smoke", "-o", str(tmp_path))
    assert "runs, " not in err
    assert not (tmp_path / "runs").exists()
    for name in (
        "table-best.md",
        "table-best.json",
        "figure-epoch.png",
        "figure-epoch.svg",
        "figure-losscurve.svg",
    ):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes(), name


def test_a_figure_that_shows_a_net_needs_its_run(made, tmp_path):
    out, _, _ = made
    shutil.copytree(out / "records", tmp_path / "records")
    here = setting(tmp_path, "smoke")
    target = PLANNERS["figure-diversity"](here)
    assert missing_runs(here, [target]) == target.experiments
    assert missing_runs(setting(out, "smoke"), [target]) == []


def test_what_is_finished_can_be_seen_without_training(made, tmp_path, capsys):
    out, _, _ = made
    names = ["figure-losscurve", "figure-diversity", "table-w1a8"]
    shutil.copytree(out / "records", tmp_path / "records")
    next((tmp_path / "records").glob("*wrn22*lam_0.0-*")).unlink()
    _, err = reproduce(capsys, *names, "--budget", "smoke", "-o", str(tmp_path), "--no-train")
    assert not (tmp_path / "runs").exists()
    (missing,) = re.findall(r"unfinished: (\S+): not begun", err)
    assert "lam_0.0" in missing
    assert len(re.findall(r"unfinished: it shows the net of \S+, whose folder is not there", err)) == 3
    assert (tmp_path / "figure-losscurve.svg").is_file()
    assert not (tmp_path / "figure-diversity.svg").exists()


def test_json_is_one_document(made, capsys):
    out, _, _ = made
    printed, _ = reproduce(capsys, "table-best", "--budget", "smoke", "-o", str(out), "--json")
    (document,) = json.loads(printed)
    assert document["files"] == [str(out / f"table-best.{ending}") for ending in ("json", "md")]
    assert document["entries"] == json.loads((out / "table-best.json").read_text())["entries"]


def test_memory_is_counted_and_speed_is_measured(tmp_path, capsys):
    printed, _ = reproduce(capsys, MEMORY, "--budget", "smoke", "-o", str(tmp_path))
    found = json.loads((tmp_path / "table-memory.json").read_text())
    assert found["float_mbit"] == pytest.approx(374.064384)
    for net in ("PCNN", "XNOR-Net"):
        assert found["nets"][net]["mbit"] == pytest.approx((10_985_472 + 32 * (694_440 + 4 * 3_840)) / 1e6)
        assert f"{found['nets'][net]['saving']:.2f}" == "11.10"
        assert 4.1e6 < found["nets"][net]["bytes_on_disk"] < 4.3e6
    assert len(found["speeds"]) == 1 + len(memory.LAYERS)
    counted = [speed["by_count"] for speed in found["speeds"]]
    # XNOR-Net's S = 64 c N_W / (c N_W + 64); of the net, what is in float takes its own time.
    assert counted[1:] == pytest.approx([64 * 9 * c / (9 * c + 64) for c in (64, 128, 256, 512)])
    assert counted[3] == pytest.approx(62.27, abs=0.01)
    macs, in_float, made = 34_209_792, 2_408_448 + 3 * 131_072 + 512_000, 30_720  # of 32 x 32 pixels
    assert counted[0] == pytest.approx((macs + in_float) / (macs / 64 + made + in_float))
    for speed in found["speeds"]:
        assert speed["onebit_ms"] > 0
        assert speed["times"] > 0
    assert "58 x" in printed
    assert found["prelu_slopes"] == 16 * 240  # one for each channel that a 1-bit layer makes
    assert (
        f"with them {(33_699_072 + 32 * 3_840) / 1e6:.2f} in place of 33.70 Mbit"
        in (tmp_path / "table-memory.md").read_text()
    )
    assert "budget smoke: counted, and timed on " in printed
    assert "the times mean nothing" in printed
    out, err = reproduce(capsys, MEMORY, "--plan", "-o", str(tmp_path))
    assert (out, err) == ("", "nothing to train\n")
    text = (tmp_path / "table-memory.md").read_text()
    assert "| PCNN | 33.7 | 33.7 | 11.10 x | 11.10 x |" in text
    assert f"| Resnet18 | 374.1 | 374.1 |  |  | {4 * 11_689_512:,} |  |" in text  # four bytes a parameter
    for net in found["nets"].values():
        assert net["saving_on_disk"] == pytest.approx(4 * 11_689_512 / net["bytes_on_disk"])


def test_parts_for_a_cluster(tmp_path, capsys):
    """The shares of all parts are all runs, each once; a part makes no table."""
    words = ["figure-losscurve", "--budget", "smoke", "-o", str(tmp_path)]
    lines = reproduce(capsys, *words, "--plan")[0].splitlines()
    parts = [reproduce(capsys, *words, "--plan", "--part", f"{k}/2")[0].splitlines() for k in (1, 2)]
    assert [len(part) for part in parts] == [1, 1]
    assert [line for part in parts for line in part] == lines
    for line in lines:
        arguments = make_parser("train").parse_args(line.split()[1:])
        assert Path(arguments.recipe).is_file()
        assert arguments.resume == ""
    reproduce(capsys, *words, "--part", "2/2", "--quiet")
    assert not list(tmp_path.glob("figure*"))
    (record,) = (tmp_path / "records").iterdir()
    assert record.stem in lines[1]
    assert reproduce(capsys, *words, "--plan")[0].splitlines() == lines[:1]


def test_ctrl_c_saves_and_the_same_command_goes_on(tmp_path):
    words = ["figure-losscurve", "--budget", "smoke", "-o", str(tmp_path), "--jobs", "1"]
    process = start("reproduce", *words)
    try:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("runs/*/config.toml")):  # the first run has begun
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert out == ""
    assert "onebit reproduce: stopped and saved; the same command goes on" in err
    code, out, err = command("reproduce", *words)
    assert code == 0, err
    assert (tmp_path / "figure-losscurve.png").is_file()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([], "say what to make: table-lambda, "),
        (["table-lamda"], "table-lamda: there is no such table or figure; did you mean table-lambda?"),
        (["table-lambda", "--part", "3"], "--part 3: use K/N, such as 2/13"),
        (["table-lambda", "--part", "3/2"], "--part 3/2: use K/N, such as 2/13"),
        (["table-lambda", "--seeds", "a"], "--seeds a: use whole numbers from 0, with commas"),
        (["table-lambda"], "--data cifar10 needs a folder: --data-dir DIR, or $ONEBIT_DATA"),
        (
            ["table-imagenet", "--data-dir", "/nowhere"],
            "--data-dir /nowhere: no such folder; expected are train/CLASS",
        ),
        (
            ["table-cifar", "--budget", "paper", "--data-name", "x"],
            "--data-name x: these runs are of several data sets",
        ),
        (["table-lambda", "--jobs", "0"], "--jobs 0: use at least 1"),
        (["table-memory", "--out", f"{__file__}/x"], "test_reproduction.py is a file; name a folder"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, capsys, monkeypatch, words, what):
    monkeypatch.delenv("ONEBIT_DATA", raising=False)
    if words[-2:] == ["--jobs", "0"]:
        words = [*words, "--budget", "smoke"]
    out, err = reproduce(capsys, "-o", str(tmp_path / "out"), *words, code=2)
    assert out == ""
    assert err.startswith("onebit reproduce: ")
    assert what in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_data_has_one_name(made, tmp_path, capsys):
    out, _, _ = made
    shutil.copytree(out / "records", tmp_path / "records")
    words = ["figure-losscurve", "--budget", "smoke", "-o", str(tmp_path), "--no-train", "--data-name"]
    _, err = reproduce(capsys, *words, "other digits", code=2)
    assert "seed0.json says handwritten digits; use that, or correct the record" in err
    reproduce(capsys, *words, "handwritten digits")


def test_old_pictures_go_with_their_runs(made, tmp_path, capsys):
    (tmp_path / "figure-losscurve.png").write_bytes(b"of yesterday")
    reproduce(capsys, "figure-losscurve", "--budget", "smoke", "-o", str(tmp_path), "--no-train")
    assert [file.name for file in tmp_path.iterdir()] == ["figure-losscurve.json"]


def test_a_failure_is_said_and_the_rest_goes_on(tmp_path, capsys):
    """A run whose folder another process holds, or that fails for whatever reason, is named; code 1."""
    here = setting(tmp_path, "smoke")
    target = PLANNERS["figure-losscurve"](here)
    broken = tmp_path / "runs" / target.experiments[0].name
    broken.mkdir(parents=True)
    (broken / "last.state.safetensors").write_bytes(b"not a checkpoint")
    (broken / "config.toml").write_text("epochs = 'many'\n")
    _, err = reproduce(capsys, "figure-losscurve", "--budget", "smoke", "-o", str(tmp_path), code=1)
    assert f"onebit reproduce: {broken.name} failed: " in err
    assert f"unfinished: {broken.name}: " in err
    entries = json.loads((tmp_path / "figure-losscurve.json").read_text())["entries"]
    assert [entry["state"] for entry in entries] == ["unfinished", "finished"]


def test_the_list_names_all(capsys):
    printed, _ = reproduce(capsys, "--list")
    assert [line.split()[0] for line in printed.splitlines()] == list(TITLES)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PLANNERS if name.startswith("table")])
def test_every_table_in_the_budget_of_a_minute(tmp_path, name, capsys):
    reproduce(capsys, name, "--budget", "smoke", "-o", str(tmp_path))
    assert (tmp_path / f"{name}.md").is_file()
    table = json.loads((tmp_path / f"{name}.json").read_text())
    assert {entry["state"] for entry in table["entries"]} <= {"finished", "not in this budget"}


def test_markdown_has_as_many_cells_in_every_line(made):
    out, _, _ = made
    for file in out.glob("*.md"):
        lines = [line for line in file.read_text().splitlines() if line.startswith("|")]
        assert len(lines) > 2
        for one, other in pairwise(lines):
            assert one.count("|") == other.count("|")
