"""What `onebit bench` makes of times: a report of numbers by hand, as tables and as JSON."""

import pytest

from onebit.benching.contestants import Row
from onebit.benching.layers import Layer, Limit
from onebit.benching.measuring import Effort, Table
from onebit.benching.report import Report
from onebit.benching.scaling import Scaling, Share
from onebit.machine import Machine
from onebit.peers.agreement import Agreement

OWN = [[0.002, 0.004, 0.010], [0.004, 0.004, 0.004]]  # seconds of calls, in two rounds
OTHER = [[0.008, 0.008, 0.030], [0.012, 0.012, 0.012]]


def layer(name, ms, share, **more):
    of_all = {"kernel": "bits", "isa": "avx2", "precision": "W1A1", "input_kind": "bits", "macs": 0}
    return Layer(**{"name": name, "operations": ["bconv2d"], "ms": ms, "share": share, **of_all, **more})


@pytest.fixture
def report():
    agreement = Agreement(0.0002, 8, 4, 0.875, False)
    rows = [
        Row("onebit", "file", bursts=OWN),
        Row("torch", "same", bursts=OTHER, agreement=agreement),
        Row("torch", "twin", failure="it broke"),
    ]
    again = [Row("onebit", "file", bursts=[[9.0]]), Row("torch", "twin", failure="it broke")]
    return Report(
        file="net.onebit",
        description="",
        input_shape=(3, 32, 16),
        machine=Machine("a CPU", 1, "Linux", "3", ()),
        isa="avx2",
        why_isa="as asked",
        versions={},
        effort=Effort(2, 0.5),
        tables=[Table(4, rows, 0.95), Table(32, again, 0.5)],
        scaling=[Scaling(4, [Share(1, OTHER), Share(2, OWN)])],
        layers=[layer("a", 0.5, 0.25, macs=3_000_000), layer("b", 1.5, 0.75, isa="scalar")],
        limits=[
            Limit("slow", tuple("abcd"), 0.5),
            Limit("more", tuple("abcde"), 0.25),
            Limit("tiny", ("a",), 5e-4),
        ],
        missing={},
        memory=(1_500_000, 250_000),
    )


def test_figures_for_a_program(report):
    found = report.as_json()
    assert (found["weight_bytes"], found["workspace_bytes"]) == (1_500_000, 250_000)
    assert [layer["gmacs_per_second"] for layer in found["layers"]] == [pytest.approx(6.0), None]
    own, other, twin = found["batches"][0]["rows"]
    assert (own["ms"], other["ms"]) == (pytest.approx(4), pytest.approx(12))
    assert (own["ms_p10"], other["ms_p10"]) == (pytest.approx(3), pytest.approx(8))
    assert other["times_onebit"] == pytest.approx(2.5)  # of the rounds' medians: 8 / 4 and 12 / 4
    assert other["images_per_second"] == pytest.approx(1000 / 3)
    assert twin == {"name": "torch", "net": "twin", "not_compared": "it broke"}
    one, two = found["scaling"][0]["rows"]
    assert (one["ms_p10"], two["ms_p10"]) == (pytest.approx(8), pytest.approx(3))
    assert (one["ms"], two["ms"], two["times_one_thread"]) == pytest.approx((12, 4, 2.5))


def cells(out):
    """The rows of all tables, without their frames."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]


def test_figures_for_people(report, capsys):
    report.show()
    out = capsys.readouterr().out
    rows = cells(out)
    for row in (
        ["onebit", "the file", "4.000", "1,000", "1.00", "", ""],
        ["PyTorch", "same net", "12.000", "333", "2.50", "87.5 %", "2e-04"],
        ["PyTorch", "float twin", "not compared", "", "", "", ""],
        ["onebit", "the file", "9000.000", "3.56", "1.00", "", ""],  # of slow nets less than an image
        ["4", "2", "4.000", "1,000", "2.50"],
        ["a", "bconv2d", "bits, avx2", "0.5000", "25.0 %", "6.0"],
        ["b", "bconv2d", "bits, plain C", "1.5000", "75.0 %", ""],
        ["all", "", "", "2.0000", "100.0 %", ""],
    ):
        assert row in rows, row
    lines = [line.strip() for line in out.splitlines()]
    assert "net.onebit: a net; input 3 x 32 x 16" in lines
    assert "a CPU, 1 core; kernels of onebit: avx2, as asked" in lines
    assert "one thread each, in turns, 2 rounds of 0.5 s; each program in its fastest way" in lines
    assert "memory of onebit: weights 1.50 MB, and 0.25 MB for the values of an image" in lines
    assert "onebit's layers, of 4 images a call" in lines


def test_notes_for_people(report, capsys):
    """The busiest of the tables counts; a failure is said once; of limits what counts, and not all names."""
    report.show()
    lines = capsys.readouterr().out.splitlines()
    (busy,) = [line for line in lines if line.startswith("others used this machine")]
    assert "the process had a core for 50 % of the time" in busy
    assert lines.count("PyTorch, float twin: not compared: it broke") == 1
    assert lines[lines.index("not accelerated:") + 1 :] == [
        "- slow: 50.0 % of the time, 4 layers (a, b, c, d)",
        "- more: 25.0 % of the time, 5 layers (a, b, c, d, ...)",
    ]
