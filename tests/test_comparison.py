"""`onebit compare`: what it plans, runs side by side, goes on with after interruptions, and prints."""

import csv
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from children import child
from onebit.commands import main, make_parser
from onebit.commands.compare import _asked, _words
from onebit.comparison import running
from onebit.comparison.plan import Plan, parse_contestants, runs, stored
from onebit.comparison.plot import plot
from onebit.comparison.running import Process, _outcome, failure_of
from onebit.comparison.table import Row, as_markdown, at_the_edge, grid, rows
from onebit.counting import Storage
from onebit.errors import UserError
from onebit.methods import METHODS
from onebit.training.config import Config
from onebit.training.recipes import resolve
from onebit.training.runfolder import RunFolder
from training_runs import call, command, start, trained_here

TINY = [
    "--width",
    "2",
    "-b",
    "32",
    "--limit-images",
    "200",
    "--epochs",
    "1",
    "--hold-out",
    "40",
    "--bn-batches",
    "1",
    "--kernel-rates",
    "1",
]


@pytest.fixture
def compared(capsys):
    """The command in this process; its workers are processes of their own."""

    def compare(*words, out=None, code=0):
        where = () if out is None else ("--out", str(out))
        found, output, errors = call(capsys, "compare", *words, *where)
        assert found == code, errors
        return output, errors

    return compare


@pytest.fixture
def all_here(monkeypatch):
    """Workers in this process, too, one after another: where it does not matter that they are others."""
    monkeypatch.setattr(running, "_start", trained_here)
    monkeypatch.setattr(running, "POLL_SECONDS", 0)


def test_one_table_for_all_runs(tmp_path, compared, all_here):
    out = tmp_path / "c"
    words = [*TINY, "--methods", "bnn", "float", "--seeds", "0,1", "--lrs", "0.1,0.02"]
    output, errors = compared(*words, out=out)
    assert errors.startswith("8 runs, ")
    assert "[8/8]" in errors
    table = json.loads((out / "table.json").read_text())
    assert {row["method"] for row in table["rows"]} == {"bnn", "float"}
    for row in table["rows"]:
        chosen = [out / f"{row['method']}-lr{row['lr']:g}-seed{seed}" for seed in (0, 1)]
        top1 = [json.loads((run / "summary.json").read_text())["test_top1"] for run in chosen]
        assert row["top1"] == pytest.approx(statistics.mean(top1))
        assert row["spread"] == pytest.approx(statistics.stdev(top1))
        held = {}
        for lr in ("0.1", "0.02"):
            folders = [out / f"{row['method']}-lr{lr}-seed{seed}" for seed in (0, 1)]
            each = [json.loads((run / "summary.json").read_text())["held_out_top1"] for run in folders]
            held[float(lr)] = statistics.mean(each)
        assert held[row["lr"]] == max(held.values())  # chosen on held-out images, not on test images
        told = {point["lr"]: point for point in table["grid"] if point["method"] == row["method"]}
        assert {lr: point["held_out_top1"] for lr, point in told.items()} == pytest.approx(held)
        assert told[row["lr"]]["top1"] == pytest.approx(row["top1"])
    by_method = {row["method"]: row for row in table["rows"]}
    assert (by_method["bnn"]["weight_bits"], by_method["bnn"]["activation_bits"]) == (1, 1)
    assert by_method["float"]["bytes"] > 4 * by_method["bnn"]["bytes"]
    assert [row["top1"] for row in table["rows"]] == sorted((row["top1"] for row in table["rows"]), reverse=True)
    with (out / "table.csv").open() as file:
        assert [row["method"] for row in csv.DictReader(file)] == [row["method"] for row in table["rows"]]
    for text in (output, (out / "table.md").read_text()):
        for row in table["rows"]:
            assert f"{row['top1']:.2f} ± {row['spread']:.2f}" in text
    assert (out / "accuracy-bytes.svg").read_bytes().startswith(b"<?xml")
    assert (out / "accuracy-bytes.png").read_bytes().startswith(b"\x89PNG")

    # Everything is there: neither --resume nor the same command trains again.
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/last.safetensors")}
    assert len(before) == 8
    output, _ = compared("--resume", str(out), "--json")
    assert json.loads(output)["rows"] == table["rows"]
    compared(*words, out=out)
    assert before == {path: path.stat().st_mtime_ns for path in out.glob("*/last.safetensors")}


def wait_for(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


LONGER = [
    *TINY,
    "--epochs",
    "30",
    "--checkpoint-steps",
    "2",
    "--methods",
    "bwn,mcn",
    "--seeds",
    "0",
    "--lrs",
    "0.1",
]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "_start", trained_here)
        assert main(["compare", *LONGER, "--quiet", "--out", str(folder)]) == 0
    return json.loads((folder / "table.json").read_text())["rows"]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL])
def test_interrupted_it_goes_on_to_the_same_table(number, tmp_path, uninterrupted, compared):
    process = start("compare", *LONGER, "--out", str(tmp_path))
    wait_for(lambda: any(path.stat().st_size for path in tmp_path.glob("*/metrics.jsonl")))
    workers = list(map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()))
    assert workers
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "stopped and saved; go on with: onebit compare --resume" in errors
    wait_for(lambda: not any(map(is_alive, workers)))  # they do not outlive it
    assert not list(tmp_path.glob("*/summary.json"))  # nor do they finish first
    assert list(tmp_path.glob("*/last.safetensors"))

    output, errors = compared("--resume", str(tmp_path), "--json", "--quiet")
    assert errors == ""
    rows = json.loads(output)["rows"]
    assert [row | {"minutes": 0} for row in rows] == [row | {"minutes": 0} for row in uninterrupted]


def test_a_method_that_diverges_is_said_and_does_not_stop_the_others(tmp_path, compared, all_here):
    out = tmp_path / "c"
    words = [*TINY, "--methods", "float", "--seeds", "0", "--lrs", "0.05,1e30"]
    _, errors = compared(*words, out=out)
    assert "float-lr1e+30-seed0 failed: stopped at step" in errors
    table = json.loads((out / "table.json").read_text())
    assert [(row["method"], row["lr"], row["failed"]) for row in table["rows"]] == [("float", 0.05, 1)]
    assert table["finished"]  # nothing is left to do
    assert [(point["lr"], point["finished"], point["top1"] is None) for point in table["grid"]] == [
        (0.05, 1, False),
        (1e30, 0, True),
    ]
    assert [failure["run"] for failure in table["failures"]] == ["float-lr1e+30-seed0"]
    _, errors = compared(*words, out=out)  # it would diverge again: not tried again
    assert "2 of them done before" in errors

    none = tmp_path / "none"
    output, errors = compared(*TINY, "--methods", "float", "--seeds", "0", "--lrs", "1e30", out=none, code=1)
    assert errors.count("failed: stopped at step") == 1
    assert "--lr " not in errors  # advice for a single run
    assert "failed" in output
    assert "failed" in (none / "table.md").read_text()
    assert not (none / "accuracy-bytes.svg").exists()


def test_two_at_once_are_refused(tmp_path):
    out = tmp_path / "c"
    words = [*TINY, "--epochs", "500", "--methods", "bwn", "--seeds", "0", "--lrs", "0.1", "--out", str(out)]
    first = start("compare", *words)
    try:
        wait_for(lambda: any(out.glob("*/metrics.jsonl")))
        assert RunFolder(out / "bwn-lr0.1-seed0").is_busy()
        code, _, errors = command("compare", *words)
        assert (code, errors) == (2, f"onebit compare: {out}: another process is at work on this comparison\n")
    finally:
        first.terminate()
        first.communicate(timeout=60)
    assert first.returncode == 143
    assert not RunFolder(out / "bwn-lr0.1-seed0").is_busy()


def test_a_worker_ends_with_its_parent(tmp_path):
    words = [
        "train",
        "--recipe",
        "digits-pcnn22",
        "--width",
        "2",
        "--epochs",
        "500",
        "--out",
        str(tmp_path),
        "--quiet",
    ]
    worker = child([sys.executable, "-m", "onebit.commands.compare_worker", *words], stdin=subprocess.PIPE)
    wait_for(lambda: (tmp_path / "metrics.jsonl").exists() and (tmp_path / "metrics.jsonl").stat().st_size)
    worker.stdin.close()
    assert worker.wait(timeout=60) == 143
    assert (tmp_path / "last.safetensors").exists()


def test_all_methods_but_those_that_do_not_take_the_activations():
    everyone, out = parse_contestants(["all"], Config())
    assert [contestant.method for contestant in everyone] == list(METHODS)
    assert out == []
    signs, out = parse_contestants(["all"], Config(activation_bits=1))
    assert {contestant.method for contestant in signs} == {"pcnn", "bnn", "xnor", "abc", "bireal", "float"}
    assert "dorefa" in out


def test_equal_terms():
    """Of one lr and seed the runs differ in nothing but the method."""
    base = resolve("cifar10-pcnn22", "cpu", {})
    contestants, _ = parse_contestants(["all"], base)
    plan = Plan(contestants=contestants, lrs=(0.1, 0.3), seeds=(0, 1))
    planned = runs(plan, base)
    assert len(planned) == len(METHODS) * 4 == len({run.name for run in planned})
    for run in planned:
        expected = base.model_dump() | {
            "method": run.contestant.method, "lr": run.lr, "seed": run.seed, "lr_w": pytest.approx(run.lr / 10),
            "kernel_rate": run.kernel_rate,
        }  # fmt: skip
        assert run.config.model_dump() == expected


def test_every_method_gets_the_same_rates_of_kernels_as_far_as_it_has_kernels():
    base = resolve("cifar10-pcnn22", "cpu", {})
    contestants, _ = parse_contestants(["all"], base)
    plan = Plan(contestants=contestants, lrs=(0.1, 0.3), kernel_rates=(1, 10, "authors"), seeds=(0,))
    planned = runs(plan, base)
    assert len({run.name for run in planned}) == len(planned)
    tried = {
        method: [r.config.kernel_rate for r in planned if r.label == method and r.lr == 0.3] for method in METHODS
    }
    assert tried["float"] == tried["lbcnn"] == [1]
    for method in ("binaryconnect", "bnn", "bwn", "xnor"):
        assert tried[method] == [1, 10, "authors"]
    for method in ("pcnn", "mcdonnell", "dorefa", "abc", "bireal", "mcn"):  # whose authors have no such factor
        assert tried[method] == [1, 10]
    names = [run.name for run in planned if run.label == "bnn"]
    assert names[:3] == ["bnn-lr0.1-seed0", "bnn-lr0.1-k10-seed0", "bnn-lr0.1-kauthors-seed0"]
    # With Adam they have none either; and who has no other rate keeps 1.
    few = plan.model_copy(update={"kernel_rates": ("authors",)})
    for opt, rate in (("sgd", "authors"), ("adamw", 1)):
        made = {run.label: run.kernel_rate for run in runs(few, base.model_copy(update={"opt": opt}))}
        assert (made["bnn"], made["pcnn"], made["float"]) == (rate, 1, 1)


def asked(*words):
    """The plan of a command line."""
    return _asked(make_parser("compare").parse_args(["compare", *words]))[0]


def test_the_usual_rates_of_kernels():
    assert asked().kernel_rates == (1, 10, "authors")
    assert asked("--budget", "smoke").kernel_rates == (1,)  # three minutes
    assert asked("--kernel-rates", "4", "authors,0.5").kernel_rates == (4, "authors", 0.5)
    assert asked("--hold-out", "0", "--lrs", "0.1").kernel_rates == (1,)  # there is nothing to choose by


def test_the_recipe_s_rate_of_kernels_is_among_them(tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text('data = "digits"\nkernel_rate = 3')
    assert asked("--recipe", str(recipe)).kernel_rates == (1, 10, "authors", 3)
    assert asked("--recipe", str(recipe), "--budget", "smoke").kernel_rates == (3,)


def test_a_plan_of_before_has_one_rate_of_kernels(tmp_path):
    (tmp_path / "base.toml").write_text("width = 2\ndecay_kernels = true")
    old = {"format": 1, "contestants": [{"method": "bnn", "keys": {}}], "lrs": [0.1], "seeds": [0]}
    (tmp_path / "plan.json").write_text(json.dumps(old))
    (run,) = runs(*stored(tmp_path))
    assert (run.name, run.config.kernel_rate, run.config.decay_kernels) == ("bnn-lr0.1-seed0", 1, True)


def test_a_float_net_gets_as_many_epochs_as_two_stages():
    base = resolve("imagenet-pcnn-resnet18-w1a1", "paper", {"stage2_epochs": 60, "stage2_lr": 0.02})
    contestants, _ = parse_contestants(["all"], base)
    plan = Plan(contestants=contestants, lrs=(0.1,), seeds=(0,))
    planned = {run.contestant.method: run.config for run in runs(plan, base)}
    assert planned["bnn"].two_stage
    assert (planned["float"].epochs, planned["float"].milestones) == (120, (40, 80))
    assert not planned["float"].two_stage


def test_rates_that_hang_on_the_learning_rate_keep_their_ratio():
    base = resolve(
        None, "paper", {"activation_bits": 1, "two_stage": True, "lr": 0.1, "lr_w": 0.02, "stage2_lr": 0.04}
    )
    contestants, _ = parse_contestants(["pcnn"], base)
    (run,) = runs(Plan(contestants=contestants, lrs=(0.3,), seeds=(0,)), base)
    assert (run.config.lr_w, run.config.stage2_lr) == (pytest.approx(0.06), pytest.approx(0.12))


def fake_runs(folder, scores, monkeypatch):
    """Finished runs by (lr, seed): held-out and test accuracy and seconds; None for one that failed for good."""
    contestants, _ = parse_contestants(["bnn"], Config())
    lrs, seeds = (tuple(sorted(set(numbers))) for numbers in list(zip(*scores, strict=True))[:2])
    rates = dict.fromkeys(place[2] for place in scores if len(place) > 2) or (1.0,)
    plan = Plan(contestants=contestants, lrs=lrs, kernel_rates=tuple(rates), seeds=seeds)
    planned = runs(plan, Config())
    for run in planned:
        (folder / run.name).mkdir()
        score = scores[(run.lr, run.seed) if len(rates) == 1 else (run.lr, run.seed, run.kernel_rate)]
        if score is None:
            (folder / run.name / "error.txt").write_text("stopped at step 3")
        else:
            summary = dict(zip(("held_out_top1", "test_top1", "training_seconds"), score, strict=True))
            (folder / run.name / "summary.json").write_text(json.dumps(summary))
    monkeypatch.setattr("onebit.comparison.table._counted", lambda *_: (Storage(10, 8, 2), (1, 1)))
    return rows(folder, plan, planned, grid(folder, plan, planned))


def test_the_rate_is_chosen_on_held_out_images_among_those_that_do_for_all_seeds(tmp_path, monkeypatch):
    scores = {
        (0.1, 0): (60, 50, 60), (0.1, 1): (70, 54, 120),  # the best of those without a failure
        (0.3, 0): (50, 99, 1), (0.3, 1): (60, 99, 1),  # best on test images only
        (1.0, 0): (99, 90, 1), (1.0, 1): None,
    }  # fmt: skip
    (found,) = fake_runs(tmp_path, scores, monkeypatch)
    assert (found.lr, found.top1, found.seeds, found.failed) == (0.1, 52, 2, 1)
    assert found.spread == pytest.approx(8**0.5)
    assert found.minutes == 1.5
    assert (found.parameters, found.bytes, found.weight_bits) == (10, 9, 1)


def test_the_rate_of_kernels_is_chosen_with_the_learning_rate(tmp_path, monkeypatch):
    scores = {
        (0.1, 0, 1.0): (60, 99, 1), (0.3, 0, 1.0): (62, 90, 1), (0.1, 0, 10.0): (61, 80, 1),
        (0.3, 0, 10.0): (50, 70, 1), (0.1, 0, "authors"): (70, 55, 1), (0.3, 0, "authors"): None,
    }  # fmt: skip
    (found,) = fake_runs(tmp_path, scores, monkeypatch)
    assert (found.lr, found.kernel_rate, found.top1, found.failed) == (0.1, "authors", 55, 1)


@pytest.mark.parametrize(
    ("code", "output", "why", "is_remembered"),
    [
        (
            2,
            "onebit train: stopped at step 7: the loss is nan. Use a smaller --lr",
            "stopped at step 7: the loss",
            True,
        ),
        (2, "onebit train: RUN: another process is training there", "RUN: another process", False),
        (1, "onebit train: no space left on the disk", "no space left", False),
        (-9, "", "ended by signal 9", False),
        (3, "", "ended with code 3", False),
        (0, "", None, False),
    ],
)
def test_only_what_would_fail_again_is_remembered(code, output, why, is_remembered, tmp_path):
    contestants, _ = parse_contestants(["bnn"], Config())
    (run,) = runs(Plan(contestants=contestants, lrs=(0.1,), seeds=(0,)), Config())
    (tmp_path / run.name).mkdir()
    (tmp_path / run.name / "output.txt").write_text(output + "\n")
    failure = _outcome(tmp_path, Process(run, SimpleNamespace(returncode=code, stdin=None)), interrupted=False)
    assert (failure is None) == (why is None)
    assert why is None or why in failure.why
    assert (failure_of(tmp_path, run) is not None) == is_remembered


@pytest.mark.parametrize("code", [130, 143, -15, 1, 2, -9])
def test_who_ends_because_all_were_asked_to_has_not_failed(code, tmp_path):
    """By Ctrl-C or SIGTERM, before or after the handlers were there."""
    run = SimpleNamespace(name="run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "output.txt").write_text("a remark\nonebit train: why it ended\n")
    ended = Process(run, SimpleNamespace(returncode=code, stdin=None))
    assert (_outcome(tmp_path, ended, interrupted=True) is None) == (code in {130, 143, -15})
    why = f"the process was ended by signal {-code}" if code < 0 else "why it ended"
    assert _outcome(tmp_path, ended, interrupted=False).why == why


def test_two_rates_do_not_share_a_folder():
    contestants, _ = parse_contestants(["bnn"], Config())
    plan = Plan(contestants=contestants, lrs=(0.12345671, 0.12345672, 1.0), seeds=(0,))
    names = [run.name for run in runs(plan, Config())]
    assert names == ["bnn-lr0.12345671-seed0", "bnn-lr0.12345672-seed0", "bnn-lr1-seed0"]


def test_variants():
    words = _words(["pcnn:J=4, width=4,bnn", "dorefa:activation_bits=2", " abc:weight_bases=3 "])
    assert words == ["pcnn:J=4,width=4", "bnn", "dorefa:activation_bits=2", "abc:weight_bases=3"]
    contestants, _ = parse_contestants(words, Config())
    planned = runs(Plan(contestants=contestants, lrs=(0.1,), seeds=(3,)), Config(width=16))
    assert [(run.config.width, run.config.projections) for run in planned] == [(4, 4), (16, 1), (16, 1), (16, 1)]
    assert [run.config.activation_bits for run in planned] == [None, None, 2, None]
    assert planned[0].name == "pcnn-projections4-width4-lr0.1-seed3"
    assert planned[0].contestant.label == "pcnn:projections=4,width=4"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "pcnn,xnornet"], "--methods xnornet: did you mean xnor? use some of pcnn"),
        (["--methods", "pcnn,pcnn"], "--methods: pcnn is named twice"),
        (["--methods", "XNOR"], "--methods XNOR: did you mean xnor?"),
        (["--methods", ""], "--methods: name at least one of pcnn"),
        (["--methods", "pcnn", "pcnn:projections=1"], "pcnn and pcnn:projections=1 are the same net"),
        (["--methods", "pcnn:width=2,width=4"], "--methods pcnn:width=2,width=4: width comes twice"),
        (["--resume", "x", "--budget", "smoke"], "--budget: a comparison that is resumed stays as it is"),
        (["--methods", "pcnn:rank=3"], "after the colon use key=value,...; pcnn has width, projections"),
        (["--methods", "abc", "--lam", "3"], "lam=3.0: method 'abc' does not take it"),
        (["--recipe", "cifar10-pcnn22-j4"], "Give it to one alone: --methods 'pcnn:projections=...'"),
        (["--methods", "bwn", "--limit-images", "5"], "--batch-size 128: there are only 5 training images"),
        (["--methods", "bwn", "--two-stage"], "two_stage: the second stage inserts signs: use --activation-bits 1"),
        (["--methods", "bnn:lam=3"], "after the colon use key=value,...; bnn has width, activation_bits"),
        (["--methods", "dorefa:activation_bits=9"], "--activation-bits 9: use 1, 2, 3"),
        (["--methods", "bwn", "--activation-bits", "1"], "activation_bits=1: method 'bwn' takes 32"),
        (["--seeds", "0,0"], "--seeds 0,0: a number comes twice"),
        (["--seeds", "a"], "--seeds a: use whole numbers from 0, with commas"),
        (["--seeds", "-1"], "--seeds -1: use whole numbers"),
        (["--lrs", "0"], "--lrs 0: use numbers above 0, with commas"),
        (["--lrs", "nan"], "--lrs nan: use numbers above 0"),
        (["--lrs", ","], "--lrs ,: use numbers above 0"),
        (["--kernel-rates", "1,0"], "--kernel-rates 1,0: use numbers above 0, with commas"),
        (["--kernel-rates", "1,1.0"], "--kernel-rates 1,1.0: a number comes twice"),
        (["--kernel-rates", "authors,1,authors"], "--kernel-rates authors,1,authors: authors comes twice"),
        (["--kernel-rates", ","], "--kernel-rates : use numbers above 0"),
        (["--kernel-rate", "3"], "there is no --kernel-rate; did you mean --kernel-rates?"),
        (["--hold-out", "0", "--lrs", "1", "--kernel-rates", "1,2"], "give a single --lrs and --kernel-rates"),
        (["--resume", "x", "--kernel-rates", "3"], "--kernel-rates: a comparison that is resumed stays as it is"),
        (["--lr", "0.1"], "there is no --lr; did you mean --lrs?"),
        (["--method", "bnn"], "there is no --method; did you mean --methods?"),
        (["--jobs", "0"], "--jobs 0: use at least 1"),
        (["--hold-out", "0"], "--hold-out 0: without held-out images no learning rate can be chosen"),
        (["--resume", "/nowhere"], "/nowhere: holds no comparison that could be resumed"),
        (["--resume", "x", "--epochs", "3"], "--epochs: a comparison that is resumed stays as it is"),
        (["--resume", "x", "--seeds", "3"], "--seeds: a comparison that is resumed stays as it is"),
        (["--data", "cifar10", "--data-dir", "/etc/hostname"], "/etc/hostname"),
        (["--recipe", "nothing"], "--recipe nothing: no such recipe"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line_and_code_2(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, output, errors = call(capsys, "compare", *words)
    assert (code, output) == (2, "")
    assert message in errors
    assert errors.count("\n") == 1
    assert list(tmp_path.iterdir()) == []  # what is refused leaves nothing behind


def test_another_comparison_in_the_folder_is_refused(tmp_path, capsys, compared, all_here):
    (tmp_path / "plan.json").write_text('{"format": 1, "contestants": [], "lrs": [1], "seeds": [0]}')
    code, _, errors = call(capsys, "compare", "--resume", str(tmp_path))
    assert (code, "not a plan that this version writes" in errors) == (2, True)
    compared(*TINY, "--methods", "bwn", "--seeds", "0", "--lrs", "0.1", out=tmp_path / "c")
    code, _, errors = call(capsys, "compare", "--methods", "bwn", "--out", str(tmp_path / "c"))
    told = f"holds another comparison; go on with it: onebit compare --resume {tmp_path / 'c'}; or use --out"
    assert (code, told in errors) == (2, True)


def row(method, **more):
    return Row(**{
        "method": method, "weight_bits": 1, "activation_bits": 32, "parameters": 1000, "bytes": 200, "top1": 50.0,
        "spread": None, "seeds": 1, "lr": 0.1, "minutes": 1.0, "failed": 0,
    } | more)  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 40])
def test_pictures_of_any_table(count):
    """All points in one place is the usual case: as many bits for most methods."""
    table = [row(f"method{n}", activation_bits=(1, 4, 32)[n % 3], spread=n / 10 or None) for n in range(count)]
    svg = plot(table, "a title", "svg").decode()
    assert svg.count("method") >= count  # a label each
    assert plot([*table, row("float", weight_bits=32, bytes=10**7)], "t", "png")[:4] == b"\x89PNG"


def test_a_single_seed_has_no_spread():
    text = as_markdown([row("bnn"), row("pcnn", spread=1.234)], ["mcn"], "title")
    assert "| bnn | 1/32 | 1,000 | 200 | 50.00 | 0.1 | 1 | 1.0 |" in text
    assert "50.00 ± 1.23" in text
    assert "| 0.1 | authors | 1.0 |" in as_markdown([row("bnn", kernel_rate="authors")], [], "title")
    assert "| 0.1 | 2.5 | 1.0 |" in as_markdown([row("bnn", kernel_rate=2.5)], [], "title")
    assert "| mcn |  |  |  | failed |" in text


def test_what_a_method_does_not_take_is_refused_before_anything_is_trained():
    with pytest.raises(UserError, match="mcn has width, projections, activation_bits, theta"):
        parse_contestants(["mcn:num_intermediate=3"], Config())
    contestants, _ = parse_contestants(["abc:activation_bits=32,activation_bases=2"], Config())
    plan = Plan(contestants=contestants, lrs=(0.1,), seeds=(0,))
    with pytest.raises(UserError, match="activation_bases=2: there are none with activation_bits=32"):
        runs(plan, Config())


def test_two_stages_by_the_method_s_own_activations(tmp_path, compared, all_here):
    """bnn has sign activations of itself: --two-stage needs no more."""
    out, _ = compared(
        *TINY, "--methods", "bnn", "--two-stage", "--seeds", "0", "--lrs", "0.1", "--json", out=tmp_path
    )
    assert json.loads(out)["rows"][0]["activation_bits"] == 1
    assert (tmp_path / "bnn-lr0.1-seed0" / "stage1.safetensors").exists()


def test_rates_at_an_end_of_the_grid_are_named():
    plan = Plan(contestants=({"method": "bnn"},), lrs=(0.1, 0.3, 1.0), seeds=(0,))
    table = [row("a", lr=0.1), row("b", lr=0.3), row("c", lr=1.0)]
    assert at_the_edge(table, plan) == ["a", "c"]
    assert at_the_edge(table, plan.model_copy(update={"lrs": (0.1,)})) == []
    fast = plan.model_copy(update={"lrs": (0.1,), "kernel_rates": (1.0, 4.0, "authors", 16.0)})
    found = [row(str(rate), kernel_rate=rate) for rate in fast.kernel_rates]
    assert at_the_edge(found, fast) == ["16.0"]
    assert at_the_edge(found, fast.model_copy(update={"kernel_rates": (1.0, 4.0, "authors")})) == ["4.0"]
    assert at_the_edge(found, fast.model_copy(update={"kernel_rates": (16.0,)})) == []


@pytest.mark.slow
def test_smoke_compares_every_method(tmp_path, compared):
    """All of them come to their ends, and all but the slowest of learners have learned something."""
    out, _ = compared("--budget", "smoke", "--json", "--quiet", out=tmp_path)
    found = json.loads(out)
    assert {row["method"] for row in found["rows"]} == set(METHODS)
    assert found["finished"]
    assert found["failures"] == []
    assert all(row["top1"] > 25 for row in found["rows"])
    assert all(row["top1"] > 70 for row in found["rows"] if row["activation_bits"] > 1)
