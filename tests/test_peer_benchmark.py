"""The comparison with other engines: its workers, its twins, its tables. The peers themselves need not be there."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import onebit
from benchmarks.peers import environments, report, with_onebit, with_torch
from benchmarks.peers.driving import Contestant, Setting
from benchmarks.peers.environments import python_of, variables_of
from benchmarks.peers.measuring import Effort, Result, middle, run_once
from benchmarks.peers.nets import TABLES, Case, make_files
from benchmarks.peers.rows import ALONE, BASELINE, JUDGE, OURS, ROWS, ROWS_OF_NETS, Row
from benchmarks.peers.runner import CannotRunError, Job
from onebit.machine import cores
from onebit.modelfile import read_model
from onebit.peers.agreement import compare
from onebit.peers.torch_net import Interpreter
from onebit.reference import Reference


def tiny():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, padding=1),
        nn.BatchNorm2d(8),
        onebit.ProjectionConv2d(8, 8, 3, padding=1, activation_bits=1),
        nn.BatchNorm2d(8),
        onebit.ProjectionConv2d(8, 6, 3, padding=1, activation_bits=1),
        nn.BatchNorm2d(6),
        nn.PReLU(6),
        nn.AvgPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 5),
    )


CASE = Case("tiny", tiny, (3, 8, 8))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_files(CASE, tmp_path_factory.mktemp("case"))


def outputs(run, files):
    return np.concatenate([run(image[None]) for image in np.load(files.images)])


@pytest.mark.parametrize("net", ["same", "twin"])
def test_torch_runs_the_file_as_the_reference_does(files, net):
    model = read_model(getattr(files, net))
    interpreter = Interpreter(model)
    found = outputs(lambda x: interpreter(torch.from_numpy(x)).numpy(), files)
    np.testing.assert_allclose(found, outputs(Reference(model), files), rtol=1e-4, atol=1e-5)


def test_the_twin_is_float_and_folded(files):
    ops = [node.op for node in read_model(files.twin).graph.nodes]
    assert {"sign", "threshold"} & {node.op for node in read_model(files.same).graph.nodes}
    assert ops.count("conv2d") == 3
    assert not {"bconv2d", "sign", "threshold", "affine"} & set(ops)


def test_workers_run_in_turns_and_one_that_fails_is_a_row_with_a_reason(files, tmp_path):
    broken = Row("onebit", "broken", "same", "with_onebit:no_such_function")
    setting = Setting(tmp_path, engine="reference")
    run = run_once(files, 1, [JUDGE, broken, OURS], Effort(rounds=2, seconds=0.0), setting)
    assert "no_such_function" in run[broken].failure
    for row in (JUDGE, OURS):
        assert not run[row].failure
        assert [len(burst) for burst in run[row].bursts] == [1, 1]
    assert run[OURS].way.startswith("reference, NumPy")
    assert run[OURS].agreement.close == run[OURS].agreement.images == 8
    assert run[OURS].agreement.same_argmax == 1
    assert run[JUDGE].versions["torch"] == torch.__version__

    tables = [report.Table(CASE, [run])]
    text, markdown = report.as_text(tables[0]), report.as_markdown(tables, report.machine())
    for row in run:
        assert row.name in text
        assert f"| {row.name} |" in markdown
    assert "no_such_function" in text
    figures = json.loads(json.dumps(report.as_json(tables, {"date": "today"})))["tables"][0]["runs"][0]
    assert figures[0]["median_ms"] > 0
    assert "failure" in figures[1]


def test_instructions_can_be_limited(files, tmp_path, monkeypatch):
    monkeypatch.setitem(environments.LIMITS, "least", {"ONEBIT_ISA": "scalar"})
    run = run_once(files, 1, [OURS], Effort(rounds=1, seconds=0.0), Setting(tmp_path, isa="least"))
    assert run[OURS].way.startswith("native, scalar")


@pytest.mark.skipif(cores() < 2, reason="needs two cores")
def test_several_threads_beside_one(files, tmp_path):
    case = CASE._replace(threads=2)
    assert case.contestants == (*ROWS, ALONE)
    assert CASE.contestants == ROWS
    rows = [row for row in case.contestants if row in {BASELINE, JUDGE, OURS, ALONE}]
    run = run_once(files, 4, rows, Effort(rounds=2, seconds=0.0), Setting(tmp_path, threads=2))
    assert [result.failure for result in run.values()] == [""] * 4
    assert run[OURS].agreement == run[ALONE].agreement
    table = report.Table(case, [run])
    assert report.title(table) == "tiny, batch 1, 2 threads"
    assert report.as_json([table], {})["tables"][0]["threads"] == 2
    lines = {line[0]: line for line in report.cells(table)}
    assert lines["onebit, 1 thread"][6] == f"{run[OURS].times_faster(run[ALONE]):.2f}"


def test_threads_are_those_of_the_table(files, monkeypatch):
    monkeypatch.setattr("onebit.native.cores", lambda: 3)
    job = Job(files.same, 1, np.load(files.images), files.same.parent, threads=3)
    for make in with_onebit.packed(job).values():
        assert make().run.threads == 3
    before = torch.get_num_threads()
    try:
        with_torch.fp32(job)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert variables_of(None, threads=3)["OMP_NUM_THREADS"] == "3"
    assert variables_of(None)["OMP_NUM_THREADS"] == "1"


def test_threads_without_cores_are_a_reason(files, tmp_path):
    count = cores() + 1
    run = run_once(files, 1, [BASELINE, OURS], Effort(rounds=1, seconds=0.0), Setting(tmp_path, threads=count))
    for result in run.values():
        assert result.failure == f"{count} threads need {count} cores; there are {count - 1}"
    for threads in (0, count):
        words = [sys.executable, "-m", "benchmarks.peers", "--threads", str(threads)]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ)
        assert done.returncode == 2
        assert f"--threads {threads}: use 1 to {count - 1}" in done.stderr


def test_a_case_has_its_own_export(tmp_path):
    """W1A8 of a net that was trained with float inputs: scales come from the images of the case."""

    def make():
        conv = onebit.ProjectionConv2d(3, 8, 3, padding=1)
        return nn.Sequential(nn.BatchNorm2d(3), conv, nn.BatchNorm2d(8), nn.ReLU())

    def codes(case, folder):
        (tmp_path / folder).mkdir()
        nodes = read_model(make_files(case, tmp_path / folder).same).graph.nodes
        return [node.attributes["per_unit"] for node in nodes if node.op == "quantize"]

    case = Case("tiny", make, (3, 8, 8), export={"activation_bits": 8})
    (found,) = codes(case, "a")
    net = read_model(tmp_path / "a" / "net.onebit")
    first = Reference(type(net)(type(net.graph)(net.graph.input_shape, net.graph.nodes[:1])))
    most = np.abs(first(np.load(tmp_path / "a" / "images.npy"))).max()
    assert found == pytest.approx(127 / most, rel=1e-6)
    assert codes(case._replace(export={}), "b") == []
    assert not (tmp_path / "b" / "int8.onebit").exists()
    with_others = case._replace(make=lambda: nn.Sequential(make(), nn.Conv2d(8, 2, 1)), rows=ROWS_OF_NETS)
    assert len(codes(with_others, "c")) == 1
    whole = [node for node in read_model(tmp_path / "c" / "int8.onebit").graph.nodes if node.op == "quantize"]
    assert len(whole) > 1


def test_tables_of_eight_bits_and_of_projections():
    (case,) = TABLES["w1a8"]
    assert [row.name for row in case.contestants] == [
        "torch fp32", "torch fp32, +-1 in floats", "ONNX Runtime int8", "OpenVINO int8", "onebit",
        "onebit, other layers in 8 bits",
    ]  # fmt: skip
    assert all(row.net != "int8" for case in TABLES["conv"] for row in case.contestants)
    one, four = (case.make() for case in TABLES["wrn22-64"])
    assert [module.out_features for module in (one.classifier, four.classifier)] == [10, 10]
    assert one.classifier.in_features == four.classifier.in_features == 256
    assert {case.threads for case in TABLES["threads"]} == {2}
    assert [case.batch for case in TABLES["threads"]] == [1, 8]


def test_a_worker_that_dies_says_so(tmp_path):
    with Contestant(OURS, Setting(tmp_path), tmp_path / "log") as contestant:
        contestant.process.kill()
        contestant.process.wait()
        with pytest.raises(CannotRunError, match="ended with code -9"):
            contestant.ask("time", seconds=1, most=1)


def test_an_environment_that_cannot_be_made_is_a_reason_and_leaves_nothing(tmp_path, monkeypatch):
    def fail(home, **_):
        home.mkdir()
        raise OSError("the disk is full")

    monkeypatch.setattr(environments.venv, "create", fail)
    with pytest.raises(CannotRunError, match="the disk is full"):
        python_of("openvino", tmp_path)
    assert not list(tmp_path.iterdir())


def test_every_environment_of_a_row_is_known():
    assert {row.environment for row in ROWS} == {None, *environments.PACKAGES}


def test_the_middle_run_is_that_of_the_middle_ratio():
    def run(ours):
        return {BASELINE: Result(bursts=[[1.0], [1.0]]), OURS: Result(bursts=[[ours], [ours]])}

    runs = [run(0.5), run(0.1), run(0.2)]
    assert middle(runs) is runs[2]
    assert runs[1][OURS].times_faster(runs[1][BASELINE]) == 10
    assert middle([{OURS: Result(failure="no")}])[OURS].failure == "no"


def test_agreement_tells_borders_from_the_rest():
    expected = np.ones((2, 3, 5, 5), np.float32)
    found = expected.copy()
    found[:, :, 0] += 0.5
    assert compare(found, expected).border_only
    found[:, 1, 2, 2] += 0.5
    agreement = compare(found, expected)
    assert not agreement.border_only
    assert (agreement.difference, agreement.images, agreement.close) == (0.5, 2, 0)
    assert agreement.same_argmax == pytest.approx(1 - 1 / 25)


@pytest.mark.parametrize("net", ["same", "twin"])
def test_onnx_model_is_the_same_net(files, net):
    pytest.importorskip("onnx", reason="onnx lives in the peers' environments")
    from onnx.reference import ReferenceEvaluator

    from onebit.exchange.onnx_net import onnx_model

    model = read_model(getattr(files, net))
    session = ReferenceEvaluator(onnx_model(model, 1))
    found = outputs(lambda x: session.run(None, {"input": x})[0], files)
    np.testing.assert_allclose(found, outputs(Reference(model), files), rtol=1e-4, atol=1e-5)
