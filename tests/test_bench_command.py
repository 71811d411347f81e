"""`onebit bench`: figures that fit together, tables, mistakes; with and without the programs beside it."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import onebit
from engines import HERE
from onebit import machine
from onebit.benching import contestants, measuring, scaling
from onebit.benching.layers import layers_of, limits_of
from onebit.benching.scaling import doubling
from onebit.engine import Engine
from onebit.machine import Machine, this_machine
from onebit.modelfile import write_model
from onebit.native import ISA_VARIABLE
from onebit.peers import torch_net
from onebit.peers.agreement import draw_images
from onebit.peers.runner import Runner
from onebit.peers.twin import float_twin
from packed_nets import small_model
from training_runs import call, command, start
from wire_models import Chain, wire_models

QUICK = ("--rounds", "2", "--seconds", "0.001", "--quiet")
CPU = Machine("a CPU", 1, "Linux x86_64", "3", ())


@pytest.fixture(autouse=True)
def _threads():
    """The command sets those of torch, which in these tests are those of other tests, too."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def saved(tmp_path, model):
    path = tmp_path / "net.onebit"
    write_model(model, path)
    return str(path)


def bench(capsys, path, *words):
    code, out, err = call(capsys, "bench", path, *QUICK, *words)
    assert (code, err) == (0, "")
    return out


def as_json(capsys, path, *words):
    return json.loads(bench(capsys, path, "--json", *words))


@pytest.mark.parametrize("kind", ["float", "bits", "levels"])
def test_figures_fit_together(tmp_path, capsys, kind, monkeypatch):
    monkeypatch.delenv(ISA_VARIABLE, raising=False)
    path = saved(tmp_path, small_model(kind=kind))
    found = as_json(capsys, path, "--against", "torch", "--batch", "1", "--batch", "3", "--batch", "1")
    assert (found["file"], found["description"], found["input_shape"]) == (path, "small", [2, 6, 5])
    assert (found["isa"], found["why_isa"]) == (HERE[0], "the fastest that this machine can run")
    assert found["machine"]["cpu"]
    assert found["machine"]["cores"] >= 1
    assert found["effort"] == {"rounds": 2, "seconds": 0.001}
    assert found["versions"]["torch"] == torch.__version__
    assert found["not_installed"] == []

    assert [table["batch"] for table in found["batches"]] == [1, 3]
    for table in found["batches"]:
        rows = {(row["name"], row["net"]): row for row in table["rows"]}
        assert list(rows) == [("onebit", "file"), ("torch", "same"), ("torch", "twin")]
        for row in rows.values():
            assert row["images_per_second"] == pytest.approx(1e3 * table["batch"] / row["ms"])
            assert 0 < row["ms_p10"] <= row["ms"]
        assert rows["onebit", "file"]["times_onebit"] == 1
        assert rows["onebit", "file"]["way"] in {"channels first", "channels last"}
        assert rows["torch", "same"]["way"] in {"eager", "frozen"}
        agreement = rows["torch", "same"]["agreement"]
        assert agreement["images"] >= 8
        assert agreement["images"] % table["batch"] == 0
        assert agreement["same_argmax"] == 1
        assert agreement["difference"] < 1e-4
        assert rows["onebit", "file"]["agreement"] is None
        assert rows["torch", "twin"]["agreement"] is None  # another net

    steps = onebit.load(path).info()["steps"]
    assert [{key: layer[key] for key in steps[0]} for layer in found["layers"]] == steps
    assert sum(layer["share"] for layer in found["layers"]) == pytest.approx(1)
    for layer in found["layers"]:
        has_weights = layer["name"] in {"stem", "conv", "fc"}
        assert has_weights == bool(layer["precision"]) == (layer["macs"] > 0)
        assert has_weights == (layer["gmacs_per_second"] is not None)
    for limit in found["not_accelerated"]:
        shares = [layer["share"] for layer in found["layers"] if layer["name"] in limit["layers"]]
        assert limit["share"] is None or limit["share"] == pytest.approx(sum(shares))


def test_tables_for_people(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv(ISA_VARIABLE, "scalar")
    out = bench(capsys, saved(tmp_path, small_model()), "--against", "torch")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].endswith("net.onebit: small; input 2 x 6 x 5")
    assert "kernels of onebit: scalar, $ONEBIT_ISA" in lines[1]
    assert [line.strip() for line in lines if line.endswith("a call") or "a call  " in line] == [
        "1 image a call",
        "32 images a call",
    ]
    for words in (
        "│ onebit  │ the file   │",
        "│ PyTorch │ same net   │",
        "│ PyTorch │ float twin │",
        "bconv2d + affine",
        "bits, plain C",
        "float twin: float kernels",
        "plain C runs ($ONEBIT_ISA)",
    ):
        assert words in out
    assert "OpenVINO" not in out


def test_threads(tmp_path, capsys, monkeypatch):
    """Rows of onebit alone, each beside one thread, for every batch; none where one thread is all there is."""
    monkeypatch.setattr("onebit.native.cores", lambda: 8)
    monkeypatch.setattr("onebit.machine.cores", lambda: 3)  # what is taken without --threads
    path = saved(tmp_path, small_model())
    words = ("--against", "none", "--batch", "1", "--batch", "5")
    for asked, numbers in ((["--threads", "4,2, 4"], [1, 2, 4]), ([], [1, 2, 3])):
        found = as_json(capsys, path, *words, *asked)
        assert found["threads"] == 1  # of what is compared with others
        assert [table["batch"] for table in found["scaling"]] == [1, 5]
        for table in found["scaling"]:
            assert [row["threads"] for row in table["rows"]] == numbers
            assert table["rows"][0]["times_one_thread"] == 1
            for row in table["rows"]:
                assert 0 < row["ms_p10"] <= row["ms"]
                assert row["images_per_second"] == pytest.approx(1e3 * table["batch"] / row["ms"])
    out = bench(capsys, path, *words, "--threads", "2")
    assert "onebit with several threads" in out
    assert "onebit.load(path, threads=N) runs a net so" in out
    assert as_json(capsys, path, *words, "--threads", "1")["scaling"] == []
    for asked, numbers in (("2,auto", [1, 2, 3]), ("0", [1, 3]), ("2,9,10", [1, 2, 8])):
        found = as_json(capsys, path, *words, "--threads", asked)["scaling"]
        assert [row["threads"] for row in found[0]["rows"]] == numbers
    monkeypatch.setattr("onebit.machine.cores", lambda: 1)
    assert as_json(capsys, path, *words)["scaling"] == []
    assert "onebit with several threads" not in bench(capsys, path, *words)


def test_times_of_threads_are_what_was_measured(tmp_path, capsys, monkeypatch):
    """By a clock of ours: a median of ratios within rounds, in which a slow moment of both is none of either."""
    turns = []

    def burst(run, x, seconds, most):
        run(x)
        turns.append(run.threads)
        slow = 10 if len(turns) <= 2 else 1
        return [slow * 0.008 / run.threads]

    monkeypatch.setattr("onebit.native.cores", lambda: 8)
    monkeypatch.setattr(scaling, "burst", burst)
    words = ("--against", "none", "--batch", "16", "--threads", "2,8", "--rounds", "3")
    (table,) = as_json(capsys, saved(tmp_path, small_model()), *words)["scaling"]
    assert turns == [1, 2, 8] * 3
    assert [row["ms"] for row in table["rows"]] == pytest.approx([8, 4, 1])
    assert [row["times_one_thread"] for row in table["rows"]] == pytest.approx([1, 2, 8])
    assert [row["images_per_second"] for row in table["rows"]] == pytest.approx([2000, 4000, 16000])


def test_threads_up_to_the_cores():
    assert [doubling(most) for most in (1, 2, 3, 8, 12)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 8], [1, 2, 4, 8, 12]]


@pytest.mark.parametrize("is_busy", [True, False])
def test_a_busy_machine_is_said(tmp_path, capsys, monkeypatch, is_busy):
    """Long calls suffer more from others' work than short ones: ratios of such a run are not to be trusted."""
    # Many times what two threads can have: a moment in which this test itself has no core must not count.
    monkeypatch.setattr(measuring.time, "process_time", lambda: 0.0 if is_busy else 100 * time.perf_counter())
    path = saved(tmp_path, small_model())
    monkeypatch.setattr("onebit.native.cores", lambda: 2)
    words = ("--against", "none", "--batch", "1", "--threads", "2")
    found = as_json(capsys, path, *words)
    assert found["batches"][0]["had_core"] == (not is_busy)
    assert found["scaling"][0]["had_cores"] == (not is_busy)
    out = bench(capsys, path, *words)
    assert ("the process had a core for 0 % of the time" in out) == is_busy
    assert ("threads had their cores for 0 % of the time" in out) == is_busy


def test_alone_and_as_asked(tmp_path, capsys):
    path = saved(tmp_path, wire_models()[1])
    found = as_json(capsys, path, "--against", "none", "--isa", "scalar", "--batch", "2")
    assert (found["isa"], found["why_isa"]) == ("scalar", "as asked")
    assert [row["name"] for table in found["batches"] for row in table["rows"]] == ["onebit"]
    assert "plain C runs (as asked)" in found["not_accelerated"][-1 - (found["machine"]["cores"] > 1)]["why"] or (
        HERE == ["scalar"]
    )
    out = bench(capsys, path, "--against", "none", "--batch", "2")
    assert "PyTorch" not in out
    assert "same net" not in out


@pytest.mark.parametrize("peer", ["onnxruntime", "openvino"])
def test_other_programs(tmp_path, capsys, peer):
    for package in ("onnx", peer):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'onebit[bench]'")
    found = as_json(capsys, saved(tmp_path, small_model()), "--against", peer)
    assert {"onnx", peer} <= set(found["versions"])
    for table in found["batches"]:
        same, twin = table["rows"][1:]
        assert (same["name"], twin["name"]) == (peer, peer)
        assert same["agreement"]["same_argmax"] == 1
        assert twin["ms"] > 0

    parts = Chain(1, 1, 1 << 17).add("adaptive_avg_pool2d", output_size=[1, 1000])
    out = bench(capsys, saved(tmp_path, parts.model()), "--against", peer, "--batch", "1")
    assert out.count("│ not compared │") == 2
    assert "too many parts for ONNX" in " ".join(out.split())


def test_a_program_that_is_not_installed_is_a_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    path = saved(tmp_path, small_model())
    found = as_json(capsys, path)
    assert [(each["peer"], each["lacks"]) for each in found["not_installed"]] == [
        ("torch", ["torch"]),
        ("onnxruntime", ["onnx", "onnxruntime"]),
        ("openvino", ["onnx", "openvino"]),
    ]
    assert [row["name"] for row in found["batches"][0]["rows"]] == ["onebit"]
    out = bench(capsys, path, "--batch", "1")
    assert "OpenVINO: not compared: onnx and openvino not installed; pip install 'onebit[bench]'" in out
    assert "PyTorch: not compared: torch not installed; pip install 'onebit[train]'" in out


@pytest.mark.parametrize("when", ["at the start", "later"])
def test_a_program_that_fails_is_a_row_with_a_reason(tmp_path, capsys, monkeypatch, when):
    def ways(model, images):
        calls = []

        def run(x):
            calls.append(x)
            if when == "at the start" or len(calls) > 9:
                raise RuntimeError("it broke\nsomewhere")
            return np.zeros((len(x), 3), np.float32)

        return {"the only one": lambda: Runner(run)}

    monkeypatch.setattr(torch_net, "ways", ways)
    path = saved(tmp_path, small_model())
    words = ("--against", "torch", "--batch", "8", "--rounds", "30")
    rows = as_json(capsys, path, *words)["batches"][0]["rows"]
    assert [row.get("not_compared") for row in rows[1:]] == ["RuntimeError: it broke"] * 2
    out = bench(capsys, path, *words)
    assert "PyTorch, same net: not compared: RuntimeError: it broke" in out


MISTAKES = [
    (["none.onebit"], "none.onebit: no such file"),
    (["."], "a folder, not a file"),
    (["text.onebit"], "text.onebit: not a .onebit file"),
    (["cut.onebit"], "cut.onebit: not a .onebit file, or damaged"),
    (["net.onebit", "--batch", "0"], "--batch 0: use at least 1"),
    (["net.onebit", "--batch", "100000000"], "--batch 100000000: use at most 4473924 images of this size"),
    (["net.onebit", "--batch", "many"], "invalid int value: 'many'"),
    (["net.onebit", "--rounds", "0"], "--rounds 0: use at least 1"),
    (["net.onebit", "--seconds", "nan"], "--seconds nan: use more than 0"),
    (["net.onebit", "--seconds", "0"], "--seconds 0: use more than 0"),
    (["net.onebit", "--against", "torhc"], "there is no 'torhc'; did you mean torch?"),
    (["net.onebit", "--against", "tvm"], "use torch, onnxruntime, openvino or none"),
    (["net.onebit", "--against", ","], "--against needs names"),
    (["net.onebit", "--isa", "avx3"], "--isa avx3: there is no such kernel; did you mean avx2?"),
    (["net.onebit", "--isa", "mmx"], "use auto, avx512, avx2, neon or scalar"),
    (["net.onebit", "--threads", "-2"], "--threads"),
    (["net.onebit", "--threads", "two"], "--threads two: use a whole number, or 'auto' (or 0) for all cores"),
    (["net.onebit", "--threads", "2,"], "--threads 2,: use a whole number"),
    (["net.onebit", "--threads", "9" * 5000], "use a whole number"),
    (["net.onebit", "--jsn"], "did you mean --json?"),
    ([], "FILE"),
]


@pytest.mark.parametrize(("words", "line"), MISTAKES, ids=[" ".join(words) for words, _ in MISTAKES])
def test_mistakes(words, line, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_model(small_model(), tmp_path / "net.onebit")
    (tmp_path / "cut.onebit").write_bytes((tmp_path / "net.onebit").read_bytes()[:-5])
    (tmp_path / "text.onebit").write_text("not a net\n")
    code, out, err = call(capsys, "bench", *words)
    assert (code, out) == (2, "")
    assert line in err
    assert err.count("\n") == 1


def test_kernels_that_the_machine_cannot_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv(ISA_VARIABLE, "mmx")
    code, _, err = call(capsys, "bench", saved(tmp_path, small_model()))
    assert (code, err.count("\n")) == (2, 1)
    assert "$ONEBIT_ISA=mmx: there are auto, avx512, avx2, neon, scalar" in err


def test_as_a_process(tmp_path):
    path = saved(tmp_path, small_model())
    code, out, err = command("bench", path, *QUICK, "--against", "torch", "--batch", "2")
    assert (code, err) == (0, "")
    assert "2 images a call" in out
    code, out, err = command("bench", path, *QUICK, "--against", "none", "--threads", "100000")
    assert (code, err) == (0, ""), "with --quiet; the remark is in tests/test_threads.py"
    code, out, _ = command("bench", "--help")
    assert code == 0
    assert "onebit bench net.onebit" in out.split("examples:")[1]


def test_without_torch(tmp_path):
    """A packed net needs none; what is missing is said, and the rest runs."""
    code = """
import sys
sys.modules["torch"] = None  # as if it were not installed
from onebit.commands import main
sys.exit(main(sys.argv[1:]))
"""
    words = ["bench", saved(tmp_path, small_model()), *QUICK, "--against", "torch", "--batch", "1"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "PyTorch: not compared: torch not installed" in done.stdout
    assert "onebit's layers" in done.stdout


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_reader_that_has_had_enough_gets_no_message(tmp_path, words):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "onebit", "bench", saved(tmp_path, small_model()), *QUICK, "--against", "none"]
    done = subprocess.run([*command, *words], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


STOPPED = """
import sys
from onebit.benching import measuring
from onebit.commands import main
time_steps = measuring.time_steps
def spoken(*arguments):
    print("it runs", flush=True)
    return time_steps(*arguments)
measuring.time_steps = spoken
sys.exit(main(sys.argv[1:]))
"""


def test_it_can_be_stopped(tmp_path):
    words = ("bench", saved(tmp_path, small_model()), "--against", "none", "--rounds", "1000000", "--json")
    process = start(*words, module=("-c", STOPPED))
    assert process.stdout.readline() == "it runs\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert set(out.splitlines()) <= {"it runs"}
    assert (process.returncode, err) == (130, "onebit bench: stopped\n")


def limits(net, isa=None, machine=CPU):
    engine = Engine(net, isa or HERE[0])
    layers = layers_of(engine, [1.0] * len(engine.info()["steps"]))
    return [limit.why for limit in limits_of(engine, layers, "as asked", machine)]


needs_avx2 = pytest.mark.skipif("avx2" not in HERE, reason="this machine has no avx2")


def binary(groups=1, before="sign", **options):
    net = Chain(64 * groups, 4, 4).add(before, **options) if before else Chain(64 * groups, 4, 4)
    return net.bconv(64, 64, groups=groups).add("affine", tensors={"scale": np.ones(1, np.float32)}).model()


@needs_avx2
def test_only_what_is_true_is_said_of_a_net():
    assert limits(binary(), "avx2") == []
    (said,) = limits(binary(before=""), "avx2")
    assert said.startswith("1-bit kernels with float inputs (W1A32) run as float kernels do; with 1-bit inputs")
    assert limits(binary(before="quantize", per_unit=9.0, low=-127, high=127), "avx2") == []
    assert limits(binary(groups=2), "avx2") == [
        "1-bit convolutions in groups: the channels of a group are taken bit by bit"
    ]
    assert limits(small_model(), "avx2") == [
        "weights kept in float",
        "pool of few channels (adaptive_avg_pool2d): no avx2 kernel, plain C runs",
        "numbers that only move (reshape): no avx2 kernel, plain C runs",
    ]
    pooled = Chain(64, 6, 6).add("sign").bconv(64, 64).add("max_pool2d", kernel_size=[2, 2], stride=[2, 2])
    pooled.add("affine", tensors={"scale": np.ones(1, np.float32)})
    assert limits(pooled.model(), "avx2") == ["pool of sums (max_pool2d): no avx2 kernel, plain C runs"]
    taps = 65536
    wide = Chain(taps, 1, 1).add("sign").bconv(taps, 8, taps=(1, 1), masks=False)
    wide.add("affine", tensors={"scale": np.ones(1, np.float32)})
    assert limits(wide.model(), "avx2")[-1].startswith("sums that are too large for kernels")
    net = Chain(64, 4, 4).add("quantize", per_unit=9.0, low=-127, high=127)
    net.add("conv2d", tensors={"weight": np.ones((64, 64, 1, 1), np.int8)})
    assert limits(net.add("affine", tensors={"scale": np.ones(1, np.float32)}).model(), "avx2") == []


@needs_avx2
def test_what_is_said_of_a_machine(monkeypatch):
    large = CPU._replace(cores=8, instructions=("avx2", "avx512f"))
    assert [line[:7] for line in limits(binary(), "avx2", large)] == ["AVX-512", "8 cores"]
    if "avx512" in HERE:
        assert limits(binary(), "avx2", large)[0].endswith("can run: AVX2 kernels run (as asked)")
        assert [line[:7] for line in limits(binary(), "avx512", large)] == ["8 cores"]
    faster = ", ".join(isa for isa in HERE if isa != "scalar")
    assert limits(binary(), "scalar") == [f"plain C runs (as asked); this machine can run {faster}"]
    engine = Engine(binary(), "scalar")
    layers = layers_of(engine, [1.0] * len(engine.info()["steps"]))
    without = type("Native", (), {"has_isa": staticmethod(lambda isa: isa == "scalar")})
    monkeypatch.setattr("onebit.benching.layers.native", lambda: without)
    assert "without VPOPCNTDQ" in limits(binary(), "avx2", large)[0]
    (limit,) = limits_of(engine, layers, "as asked", CPU)
    assert limit.why.startswith(
        "plain C runs: there are kernels for avx512, avx2, neon, which this machine (Linux x86_64)"
    )
    assert limit.share == 1


def test_the_machine(tmp_path, monkeypatch):
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: A CPU @ 1 GHz\nflags\t\t: fpu avx2 sse4_1 vme\n")
    monkeypatch.setattr(machine, "CPU_INFO", file)
    assert this_machine().cpu == "A CPU @ 1 GHz"
    assert this_machine().instructions == ("avx2", "sse4_1")
    file.write_text("processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd sve evtstrm\n")  # as ARM has it
    assert this_machine().cpu
    assert this_machine().instructions == ("asimd", "sve")
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "none")
    assert this_machine().cpu
    assert this_machine().instructions == ()


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("200000 100000", 2),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("900000 100000", 4),
        ("max 100000", 4),
        ("", 4),
    ],
)
def test_a_container_may_have_fewer_cores_than_it_sees(tmp_path, monkeypatch, limit, expected):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(machine, "CPU_LIMIT", tmp_path / "cpu.max")
    assert machine.cores() == 4
    (tmp_path / "cpu.max").write_text(limit + "\n")
    assert machine.cores() == expected


def test_every_program_has_its_module():
    for peer in contestants.PEERS.values():
        assert importlib.util.find_spec(f"onebit.peers.{peer.module}")


def test_figures_are_what_was_measured(tmp_path, capsys, monkeypatch):
    """Times by a clock of ours: ratios, units, and shares of an image in a batch."""
    ran = []

    def burst(run, x, seconds, most):
        run(x)
        ran.append(run)
        return [0.010 if isinstance(x, torch.Tensor) else 0.002]

    monkeypatch.setattr(measuring, "burst", burst)
    monkeypatch.setattr(
        Engine, "step_seconds", lambda self, x: [0.004 * (n + 1) for n in range(len(self.info()["steps"]))]
    )
    path = saved(tmp_path, small_model())
    found = as_json(capsys, path, "--against", "torch", "--batch", "4")
    (table,) = found["batches"]
    rows = {(row["name"], row["net"]): row for row in table["rows"]}
    assert [row["ms"] for row in rows.values()] == pytest.approx([2, 10, 10])
    assert [row["times_onebit"] for row in rows.values()] == pytest.approx([1, 5, 5])
    assert [layer["ms"] for layer in found["layers"]] == pytest.approx(
        [1.0 * (n + 1) for n in range(len(found["layers"]))]
    ), "ms an image: 4 ms of a batch of 4 are 1"


def test_rows_run_what_they_say(tmp_path, monkeypatch):
    """'twin' runs the twin, 'same' the file's net; a program that is wrong shows a difference."""
    model = small_model()
    engine = onebit.load(saved(tmp_path, model))
    nets = contestants.Nets(engine, float_twin(model))
    given = []

    def ways(net, images):
        given.append(net)
        return torch_net_ways(net, images)

    torch_net_ways = torch_net.ways
    monkeypatch.setattr(torch_net, "ways", ways)
    images = draw_images(8, model.graph.input_shape)
    for kind in ("same", "twin"):
        contestants.make_ready(contestants.Row("torch", kind), nets, images, 4)
    assert given == [engine.model, nets.twin]

    wrong = small_model()
    last = wrong.graph.nodes[-1]
    last.tensors["weight"] = -last.tensors["weight"]
    monkeypatch.setattr(torch_net, "ways", lambda net, images: torch_net_ways(wrong, images))
    row = contestants.Row("torch", "same")
    contestants.make_ready(row, nets, images, 4)
    assert row.agreement.difference > 0.1
    assert row.agreement.same_argmax < 1
