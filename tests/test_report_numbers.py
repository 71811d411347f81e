"""The table of epochs: which number stands under which heading, and in which unit."""

import re
from types import SimpleNamespace

from onebit.report.sections import _numbers


def cells(html, tag):
    return re.findall(rf"<{tag}(?: [^>]*)?>(.*?)</{tag}>", html)


def test_numbers_and_their_headings():
    record = {
        "at": 3, "loss_s": 1.25, "loss_p": 0.5, "train_top1": 61.0, "held_out_top1": 62.0, "test_top1": 63.0,
        "flipped_kernels": 0.125, "lr": 0.01,
    }  # fmt: skip
    html = _numbers(SimpleNamespace(epochs=[record, {"at": 4, "loss_s": 1.0}]))
    assert cells(html, "th") == [
        "epoch", "loss", "L_P", "training, %", "held out, %", "test, %", "bits turned, %", "learning rate",
    ]  # fmt: skip
    assert cells(html, "td") == ["3", "1.25", "0.5", "61", "62", "63", "12.5", "0.01", "4", "1", *[""] * 6]


def test_columns_that_no_epoch_has_are_left_out():
    html = _numbers(SimpleNamespace(epochs=[{"at": 1, "loss_s": 2.0, "lr": 0.1}]))
    assert cells(html, "th") == ["epoch", "loss", "learning rate"]
    assert _numbers(SimpleNamespace(epochs=[])) == ""
