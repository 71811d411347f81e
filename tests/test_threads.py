"""Several threads in one call: the same bits as with one, whatever else goes on in the process."""

import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import onebit
from engines import HERE, each_isa
from onebit import compiling
from onebit.engine import Engine
from onebit.errors import UserError
from onebit.modelfile import write_model
from test_engine import batch_for, convolutions, sums_of
from wire_models import Chain, wire_models


@pytest.fixture(autouse=True)
def _many_cores(monkeypatch):
    """Nets get no more threads than the machine has cores; here more are wanted."""
    monkeypatch.setattr("onebit.native.cores", lambda: 64)


def assert_same_bits(model, x, isa, numbers=(2, 3, 8)):
    expected = Engine(model, isa)(x)
    for threads in numbers:
        engine = Engine(model, isa, threads)
        for _ in range(2):  # the second call finds the threads awake
            np.testing.assert_array_equal(engine(x), expected, strict=True)


def layers():
    """Every kind of step, with units for several threads, and odd ones out."""
    conv = {"padding": [1, 1, 1, 1]}

    def float_conv(net, inputs, outputs, **options):
        planes = inputs // options.get("groups", 1)
        return net.add("conv2d", tensors={"weight": net.floats(outputs, planes, 3, 3)}, **conv, **options)

    residual = Chain(130, 9, 7).add("sign").bconv(130, 130, **conv)
    residual.add("affine", tensors={"scale": residual.floats(130), "shift": residual.floats(130)})
    residual.add("add", inputs=[residual.nodes[-1].name, "input"]).add("sign").bconv(130, 3, **conv)
    sums_of(residual)
    return {
        "bits": sums_of(Chain(70, 15, 13).add("sign").bconv(70, 175, **conv)),
        "bits of bits": residual,
        "windows that are gathered": sums_of(
            Chain(5, 20, 20).add("sign").bconv(5, 40, taps=(5, 5), dilation=[2, 2])
        ),
        "groups": sums_of(Chain(12, 9, 9).add("sign").bconv(4, 15, groups=3, **conv)),
        "levels": sums_of(Chain(6, 20, 20).add("quantize", per_unit=9.0, low=-127, high=127).bconv(6, 20, **conv)),
        "levels that are looked up": sums_of(
            Chain(6, 20, 20).add("quantize", per_unit=9.0, low=-127, high=127).bconv(6, 70, **conv)
        ),
        "Winograd": float_conv(Chain(16, 40, 40), 16, 48),
        "floats": float_conv(Chain(9, 11, 11), 9, 50, stride=[2, 2]),
        "floats in groups": float_conv(Chain(12, 11, 11), 12, 36, groups=2),
        "large weights": float_conv(Chain(130, 5, 5), 130, 70),
        "depthwise": float_conv(Chain(40, 13, 11), 40, 40, groups=40),
        "pool": Chain(33, 13, 11).add("max_pool2d", kernel_size=[3, 3], stride=[2, 2], padding=[1, 1]),
        "mean": Chain(33, 13, 11).add("adaptive_avg_pool2d", output_size=[3, 2]),
        "an image as output": Chain(3, 50, 40).add("tanh").add("softmax"),
    }


@each_isa
@pytest.mark.parametrize("name", layers())
def test_every_kind_of_step(isa, name):
    model = layers()[name].model()
    for batch in (1, 2, 3, 7, 16):
        assert_same_bits(model, batch_for(model, batch), isa, (2, 5))


@each_isa
@pytest.mark.parametrize("which", range(len(wire_models())))
def test_every_operation(isa, which):
    model = wire_models()[which]
    assert_same_bits(model, batch_for(model, 5), isa)


@each_isa
@settings(max_examples=25, deadline=None)
@given(net=convolutions(), count=st.integers(1, 4), threads=st.integers(2, 6))
def test_every_convolution(isa, net, count, threads):
    model = sums_of(net).model()
    assert_same_bits(model, batch_for(model, count), isa, (threads,))


@each_isa
def test_one_image_of_a_batch_may_go_another_way(isa):
    """Winograd's way is for tame images: each image decides for itself, whichever thread has it."""
    model = layers()["Winograd"].model()
    x = batch_for(model, 6)
    x[1, 3, 39, 39] = 700
    x[4, 0, 0, 0] = np.nan
    assert_same_bits(model, x, isa)


def test_layouts_and_times(monkeypatch):
    model = layers()["an image as output"].model()
    engine, x = Engine(model, threads=3), batch_for(model, 4)
    by_pixels = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(engine(by_pixels), engine(x))
    seconds = engine.step_seconds(x)
    assert len(seconds) == len(engine.info()["steps"])
    assert all(second > 0 for second in seconds)
    assert engine.info()["threads"] == 3
    monkeypatch.setattr("onebit.engine.cores", lambda: 64)
    assert pickle.loads(pickle.dumps(engine)).threads == 3


def test_memory_is_that_of_all_threads(monkeypatch):
    """Each has scratch of its own, and the limit is for all."""
    model = layers()["pool"].model()
    one, three = (Engine(model, threads=threads).info()["workspace_bytes"] for threads in (1, 3))
    assert one < three
    monkeypatch.setattr("onebit.compiling.MAX_WORKSPACE", three - 1)
    assert Engine(model, threads=1).info()["workspace_bytes"] == one
    with pytest.raises(UserError, match="GB of memory for one image"):
        Engine(model, threads=3)


def test_workers_follow_the_callers_way_with_small_floats():
    """What sets the smallest floats to 0 in the thread that calls must hold in all of them.

    What they made is looked at when that is over: until then they are 0 to whoever compares them, too. And there is
    work for a while: of less, a thread that has to wake up first gets nothing.
    """
    net = Chain(8, 150, 150).add("affine", tensors={"scale": np.full(1, 1e-20, np.float32)})
    model = net.add("affine", tensors={"scale": np.full(1, 1e-20, np.float32)}).add("abs").model()
    x = batch_for(model, 1)
    one, two = Engine(model), Engine(model, threads=2)
    before = one(x)
    np.testing.assert_array_equal(two(x), before)
    assert before.max() > 0
    assert torch.set_flush_denormal(True)
    try:
        made = [net(x) for net in (one, *[two] * 20)]
    finally:
        torch.set_flush_denormal(False)
    assert not any(each.any() for each in made)
    np.testing.assert_array_equal(two(x), before)


def test_a_copy_where_there_are_fewer_cores(monkeypatch):
    sent = pickle.dumps(Engine(wire_models()[0], threads=6))
    monkeypatch.setattr("onebit.engine.cores", lambda: 2)
    assert pickle.loads(sent).threads == 2


@pytest.mark.parametrize("threads", [-2, 1.5, 2.0, True, False, "2", "all", "", [2], np.float32(2)], ids=repr)
def test_numbers_that_are_no_threads(tmp_path, threads):
    write_model(wire_models()[0], tmp_path / "net.onebit")
    told = f"threads={threads!r}: use a whole number, or 'auto' (or 0) for all cores"
    for wrong in (
        lambda: onebit.load(tmp_path / "net.onebit", threads=threads),
        lambda: Engine(None, "auto", threads),
    ):
        with pytest.raises(UserError, match=f"^{re.escape(told)}$"):
            wrong()


@pytest.mark.parametrize("threads", ["auto", 0, None, np.int64(0)], ids=repr)
def test_all_cores_by_many_names(tmp_path, threads, recwarn):
    write_model(wire_models()[0], tmp_path / "net.onebit")
    assert onebit.load(tmp_path / "net.onebit", threads=threads).threads == 64
    assert onebit.load(tmp_path / "net.onebit", threads=threads, engine="reference").threads == 1
    assert not recwarn.list


def test_fewer_cores_than_asked_for(tmp_path):
    """One warning, which names the line that asked."""
    write_model(wire_models()[0], tmp_path / "net.onebit")
    said = "^threads=65: this process may use 64 cores, so 64 are used$"
    for make in (
        lambda: onebit.load(tmp_path / "net.onebit", threads=65),
        lambda: Engine(wire_models()[0], "auto", 65),
    ):
        with pytest.warns(UserWarning, match=said) as warned:
            net = make()
        assert net.threads == net.info()["threads"] == 64
        assert [(each.filename, each.category) for each in warned] == [(__file__, UserWarning)]


ONE_CORE = """
import os, sys, warnings
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import numpy as np
import onebit
warnings.simplefilter("always")
path = sys.argv[1]
one = onebit.load(path)
x = np.zeros((3, *one.model.graph.input_shape), np.float32)
for threads, wanted in (("auto", 0), (0, 0), (None, 0), (1, 0), (2, 1), (100, 1)):
    with warnings.catch_warnings(record=True) as told:
        net = onebit.load(path, threads=threads)
    assert (net.threads, len(told)) == (1, wanted), (threads, told)
    assert net.info()["threads"] == 1
    np.testing.assert_array_equal(net(x), one(x))
print(*(warning.message for warning in told))
sys.argv = ["onebit", *sys.argv[2:]]
from onebit.commands import entry_point
sys.exit(entry_point())
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system can't hold a process to a core")
@pytest.mark.parametrize(
    "words", [["run", "NET", "IMAGE"], ["bench", "NET", "--against", "none", "--rounds", "1", "--seconds", "0.01"]]
)
@pytest.mark.parametrize(("asked", "remarked"), [("2", True), ("auto", False), ("0", False), ("1", False)])
def test_where_there_is_one_core(tmp_path, words, asked, remarked):
    """As in a container: every way to ask for threads works."""
    Image.new("RGB", (9, 9)).save(tmp_path / "image.png")
    words = [{"NET": "zoo:cifar10-w1a1", "IMAGE": str(tmp_path / "image.png")}.get(word, word) for word in words]
    done = subprocess.run(
        [sys.executable, "-c", ONE_CORE, "zoo:cifar10-w1a1", *words, "--threads", asked],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("threads=100: this process may use 1 core, so 1 is used\n")
    assert done.stderr == ("--threads 2: this process may use 1 core, so 1 is used\n" if remarked else "")


def test_load_with_threads(tmp_path):
    write_model(wire_models()[0], tmp_path / "net.onebit")
    assert onebit.load(tmp_path / "net.onebit", threads=2).info()["threads"] == 2
    assert onebit.load(tmp_path / "net.onebit").info()["threads"] == 1
    with pytest.raises(UserError, match="threads= is for the native engine"):
        onebit.load(tmp_path / "net.onebit", threads=2, engine="reference")


def test_a_large_batch_can_be_interrupted():
    class Interrupted(Exception):  # noqa: N818
        pass

    def interrupt(*_):
        raise Interrupted

    model = sums_of(Chain(64, 40, 40).add("sign").bconv(64, 64, taps=(7, 7), padding=[3, 3, 3, 3])).model()
    net, images = Engine(model, "scalar", 2), np.ones((300, 64, 40, 40), np.float32)  # seconds of work
    outputs = np.full(images.shape, np.nan, np.float32)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Interrupted):
            net._net.run(images, False, outputs, None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert np.isfinite(outputs[0]).all()
    assert np.isnan(outputs[-1]).all()
    np.testing.assert_array_equal(net(images[:1]), outputs[:1])


def much_softmax():
    """Not many numbers, but a power of each, and a softmax reads rows of pixels again."""
    net = Chain(64, 512, 512)
    for _ in range(8):
        net.add("softmax")
    return net.model()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("op", ["bconv2d", "softmax"])
def test_one_image_that_takes_long_can_be_interrupted(op, threads, monkeypatch):
    """Within a step, and the net runs again; a stop that nobody wants changes no bit."""

    class Interrupted(Exception):  # noqa: N818
        pass

    def interrupt(*_):
        raise Interrupted

    layer = Chain(64, 160, 160).add("sign").bconv(64, 64, taps=(7, 7), padding=[3, 3, 3, 3])
    model = sums_of(layer).model() if op == "bconv2d" else much_softmax()
    net, images = Engine(model, "scalar", threads), np.ones((1, *model.graph.input_shape), np.float32)
    outputs = np.full(images.shape, np.nan, np.float32)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Interrupted):
            net._net.run(images, False, outputs, None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert np.isnan(outputs).any(), "the image was finished first"
    whole = net(images)
    monkeypatch.setattr(compiling, "LONG", 1 << 60)
    np.testing.assert_array_equal(Engine(model, "scalar", threads)(images), whole)


def test_nets_in_pieces_make_the_same(monkeypatch):
    """Every kind of step, a unit at a time first."""
    for model in wire_models():
        x = np.random.default_rng(0).normal(size=(3, *model.graph.input_shape)).astype(np.float32)
        monkeypatch.setattr(compiling, "LONG", 1 << 60)
        whole = Engine(model)(x)
        monkeypatch.setattr(compiling, "LONG", 0)
        for threads in (1, 2):
            np.testing.assert_array_equal(Engine(model, threads=threads)(x), whole)


@pytest.mark.skipif(sys.platform != "linux", reason="forks beside threads are no good on other systems")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_fork_has_threads_of_its_own():
    """The child has none of its parent's threads, as every process that multiprocessing forks."""
    model = layers()["bits"].model()
    net, x = Engine(model, threads=2), batch_for(model, 4)
    expected = net(x)
    child = os.fork()
    if not child:
        signal.alarm(20)  # if it waits for threads that are not there
        os._exit(0 if np.array_equal(net(x), expected) and np.array_equal(net(x[:1]), expected[:1]) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(net(x), expected)


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def stress(seconds, nets_of, isa):
    """8 threads call nets as fast as they can: wrong answers, and how far memory grew after they were warm."""
    model = layers()["bits of bits"].model()
    nets = [Engine(model, isa, 2) for _ in range(nets_of)]
    xs = [batch_for(model, 1 + i % 3, seed=i) for i in range(8)]
    expected = [nets[0](x) for x in xs]
    wrong, calls, ends = [], [0] * 8, time.monotonic() + seconds

    def work(i):
        while time.monotonic() < ends:
            if not np.array_equal(nets[i % nets_of](xs[i]), expected[i]):
                wrong.append(i)
            calls[i] += 1

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(seconds / 4)
    warm = resident_bytes()
    for thread in threads:
        thread.join()
    assert all(calls)
    return wrong, resident_bytes() - warm


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@each_isa
@pytest.mark.parametrize("nets", [1, 8])
@pytest.mark.parametrize("seconds", [1, pytest.param(60, marks=pytest.mark.slow)])
def test_eight_callers(isa, nets, seconds):
    """Of one net, or of a net each: the same bits, and memory stays where it is."""
    if seconds > 1 and isa != HERE[0]:
        pytest.skip("a minute of the fastest kernels will do")
    wrong, growth = stress(seconds, nets, isa)
    assert not wrong
    if "ONEBIT_TEST_NATIVE" not in os.environ:  # sanitizers keep what is freed for a while
        assert growth < 4_000_000
