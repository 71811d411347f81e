"""What people see of long work: on terminals of any width, and where there is none."""

import re
import sys

import pytest

from onebit import checkup, console
from onebit.binarization import BinarizationReport
from onebit.commands.export import _against_torch
from onebit.console import counted
from onebit.summary import summarize
from packed_nets import small_model
from terminals import Terminal, piped
from training_runs import call, small_flags

BAR = """
import sys, time
from onebit.console import Progress
with Progress("a rather long description of work", 12345, quiet="--quiet" in sys.argv) as progress:
    progress.say("begun")
    progress.advance(678)
    time.sleep(0.3)
print("result")
"""
RUN = """
import time
from onebit.training.watching import LiveDisplay
display = LiveDisplay()
display.stage("wrn22 [bold]", 3, 200, 390)
for step in (100, 123):
    display.step(3, step, 2.30259, 1234.5)
    time.sleep(0.2)
record = {"kind": "epoch", "epoch": 4, "loss_s": 1.0, "loss_p": 0.1, "train_top1": 50.0, "lr": 0.1}
display.record(record)
display.close()
"""


def python(code):
    return [sys.executable, "-c", code]


def lines(shown):
    """What stood on the screen at some time, without the codes."""
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    return [line.rstrip() for line in re.split(r"[\r\n]+", plain) if line.strip()]


@pytest.mark.parametrize("columns", [30, 40, 60, 80, 120])
def test_a_bar_of_any_width(columns):
    code, shown = Terminal(command=python(BAR), columns=columns).end()
    assert code == 0
    seen = lines(shown)
    assert {"begun", "result"} <= set(seen)
    drawn = [line for line in seen if line.startswith("a rat")]
    assert max(map(len, drawn)) <= columns
    assert all(re.search(r"\b(0|678)/12345\b", line) for line in drawn), drawn
    assert any("678/12345" in line for line in drawn)
    assert any("━" in line for line in drawn) == (columns >= 60)


@pytest.mark.parametrize("columns", [30, 40, 60, 80, 120])
def test_the_display_of_a_run_of_any_width(columns):
    code, shown = Terminal(command=python(RUN), columns=columns).end()
    assert code == 0
    seen = lines(shown)
    assert max(len(line) for line in seen if line.startswith(("run", "epoch 4 "))) <= columns
    assert any("123/390" in line for line in seen)
    assert any("1293/78000" in line for line in seen)
    assert any("loss 2.303" in line for line in seen) == (columns >= 60)
    assert any("━" in line for line in seen) == (columns >= 80)
    assert "wrn22 [bold]: 200 epochs of 390 updates" in " ".join(seen) or columns < 40, seen


def test_one_of_a_kind_is_not_many():
    assert [counted(count, "test image") for count in (0, 1, 2)] == [
        "0 test images",
        "1 test image",
        "2 test images",
    ]
    assert [counted(count, "class") for count in (1, 2)] == ["1 class", "2 classes"]


def test_reports_of_one_of_a_kind_say_so(monkeypatch):
    report = BinarizationReport("pcnn", {"conv": "a layer"}, {}, {})
    assert str(report).startswith("method pcnn: 1 convolution replaced, 0 skipped")
    model = small_model()
    summary = summarize(model)
    others = sum(not row.precision for row in summary.rows)
    assert f"{others} others" in str(summary)
    assert "3 classes" in str(summary)
    rows = [row for row in summary.rows if row.precision]
    rest = next(row for row in summary.rows if not row.precision)
    said = str(summary._replace(classes=("a",), rows=[*rows, rest]))
    assert re.search(r"^1 other\b", said, re.MULTILINE)
    assert re.search(r", 1 class$", said, re.MULTILINE)
    for there, words in ((1, "1 of 1 core may be used"), (8, "1 of 8 cores may be used")):
        monkeypatch.setattr(checkup, "cores", lambda: 1)
        monkeypatch.setattr(checkup.os, "cpu_count", lambda there=there: there)
        assert words in checkup._cpu().found
    agreement = {"same_class": 1, "of": 1, "images": "random", "difference": 0.1}
    assert "1 of 1 random image in the same class" in _against_torch(agreement)


def test_a_run_of_one_epoch_says_so(tmp_path, capsys):
    out = str(tmp_path / "run")
    code, said, remarks = call(capsys, "train", *small_flags(epochs=1, batch_size=160), "--out", out)
    assert code == 0
    assert re.search(r": 1 epoch of 1 update$", remarks, re.MULTILINE)
    assert "after 1 epoch (" in said
    code, said, remarks = call(capsys, "train", *small_flags(epochs=2, batch_size=80), "--out", f"{out}2")
    assert re.search(r": 2 epochs of 2 updates$", remarks, re.MULTILINE)
    assert "after 2 epochs (" in said


def test_a_quiet_bar():
    _, shown = Terminal("--quiet", command=python(BAR)).end()
    assert lines(shown) == ["result"]
    assert "\x1b" not in shown


def test_no_bar_in_a_pipe():
    assert piped(command=python(BAR)) == (0, "result\n", "begun\n")


def test_a_bar_without_rich():
    code, shown = Terminal(command=python("import sys; sys.modules['rich.progress'] = None\n" + BAR)).end()
    assert (code, lines(shown)) == (0, ["begun", "result"])


@pytest.mark.parametrize(
    ("total", "of_bytes", "line"),
    [(7, False, "work: 3 of 7"), (0, False, "work: 3"), (170_000_000, True, "work: 0 MB of 170 MB")],
)
def test_plain_lines_come_now_and_then(total, of_bytes, line, capsys, monkeypatch):
    monkeypatch.setattr(console, "LINE_SECONDS", -1.0)
    with console.Progress("work", total, of_bytes=of_bytes) as progress:
        progress.advance(3)
    assert capsys.readouterr().err == f"{line}\n"
    monkeypatch.setattr(console, "LINE_SECONDS", 1e9)
    with console.Progress("work", total) as progress:
        progress.advance(3)
    assert capsys.readouterr().err == ""


def test_plain_lines_come_no_more_often_than_that(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    with console.Progress("work", 12) as progress:
        for _ in range(12):
            now[0] += 10
            progress.advance()
    assert capsys.readouterr().err == "work: 4 of 12\nwork: 8 of 12\nwork: 12 of 12\n"


def test_what_stands_before_results_stands_before_the_first(capsys):
    console.tell("a", "b", before="> ")
    assert capsys.readouterr().out == "> a\nb\n"


def test_quiet_is_for_remarks_and_not_for_errors(capsys):
    with console.quietly(True):
        console.say("a remark")
        with console.Progress("work", 3) as progress:
            progress.say("another")
        console.complain("onebit", "an error")
    console.say("a later remark")
    assert capsys.readouterr().err == "onebit: an error\na later remark\n"


def test_a_table_is_what_it_is_given(capsys):
    console.print_table("[red]title", ["name", "number"], [["[bold]a", "1"], ["b", "23"]])
    out = capsys.readouterr().out
    assert "[red]title" in out
    assert re.search(r"│ \[bold\]a │ +1 │", out)
    assert "\x1b" not in out
