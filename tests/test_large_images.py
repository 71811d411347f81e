"""Nets whose file asks for very large images: how many are in memory at a time."""

import json
import math
import tracemalloc

import numpy as np
import pytest

import onebit
from onebit import classifying
from onebit.benching import measuring
from onebit.benching.contestants import Nets
from onebit.classifying import Found, classify
from onebit.commands import eval as eval_command
from onebit.engine import Engine
from onebit.imagefiles import standardised
from onebit.modelfile import Preprocessing
from onebit.peers import exchanged
from onebit.peers.agreement import draw_images
from training_runs import call
from wire_models import Chain

SHAPE = (3, 8, 10)
SIZE = 240


def means(**about):
    net = Chain(*SHAPE).add("adaptive_avg_pool2d", output_size=[1, 1]).add("reshape", shape=[3])
    return net.model(preprocessing=Preprocessing((0.5,) * 3, (0.5,) * 3), **about)


@pytest.fixture
def batches(monkeypatch):
    """How many images every call of the engine had."""
    seen, known = [], Engine.__call__
    monkeypatch.setattr(Engine, "__call__", lambda self, x: seen.append(len(x)) or known(self, x))
    return seen


@pytest.mark.parametrize(("most", "expected"), [(5 * SIZE, [5, 2]), (SIZE, [1] * 7), (1, [1] * 7), (1 << 26, [7])])
def test_images_of_a_run_that_are_read_at_a_time(monkeypatch, batches, tmp_path, most, expected):
    from PIL import Image

    monkeypatch.setattr(classifying, "MOST_NUMBERS", most)
    names = [str(tmp_path / f"{n}.png") for n in range(7)]
    for number, name in enumerate(names):
        Image.new("RGB", (10, 8), (number, 2 * number, 90)).save(name)
    engine = Engine(means())
    outcomes = list(classify(engine, [Found(name) for name in names], 1))
    assert batches == expected
    assert [outcome.name for outcome in outcomes] == names
    assert all(outcome.guesses[0].number == 2 for outcome in outcomes)


def test_images_that_another_program_is_compared_with(monkeypatch, batches, tmp_path):
    pytest.importorskip("onnxruntime")
    for most, expected in ((1 << 26, 4), (3 * SIZE, 3), (1, 1)):
        monkeypatch.setattr(exchanged, "MOST_NUMBERS", most)
        found = exchanged.write_and_compare(means(), tmp_path / "net.onnx", "onnx")
        assert found.agreement.images == batches[-1] == expected


def test_images_that_a_benchmark_compares(monkeypatch):
    drawn, known = [], measuring.draw_images
    monkeypatch.setattr(measuring, "draw_images", lambda *given: drawn.append(given) or known(*given))
    effort = measuring.Effort(1, 1e-3)
    model = means()
    for batch, most, expected in ((1, 1 << 28, 8), (3, 1 << 28, 9), (1, 5 * SIZE, 5), (3, 7 * SIZE, 6), (3, 1, 3)):
        monkeypatch.setattr(measuring, "MOST_NUMBERS", most)
        measuring.measure(Nets(Engine(model), model), [], batch, effort, lambda: None)
        assert drawn[-1] == (expected, SHAPE)


def test_images_of_an_evaluation(monkeypatch, batches, capsys):
    size = math.prod(onebit.load("zoo:digits-w1a1").input_shape)
    code, whole, _ = call(capsys, "eval", "zoo:digits-w1a1", "--json")
    assert code == 0
    assert max(batches) == 128
    batches.clear()
    monkeypatch.setattr(eval_command, "MOST_NUMBERS", 50 * size + 1)
    _, cut, _ = call(capsys, "eval", "zoo:digits-w1a1", "--json", "--batch-size", "300")
    assert max(batches) == 50
    assert json.loads(cut) == pytest.approx(json.loads(whole))


def test_pixels_become_numbers_without_copies_of_all():
    pixels = np.random.default_rng(0).integers(0, 256, (3, 400, 500), dtype=np.uint8)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    expected = (
        pixels.astype(np.float32) / np.float32(255) - np.array(mean, np.float32).reshape(-1, 1, 1)
    ) / np.array(std, np.float32).reshape(-1, 1, 1)
    tracemalloc.start()
    try:
        made = standardised(pixels, mean, std)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(made, expected)
    assert most < 1.2 * made.nbytes


def test_images_are_drawn_without_copies_of_all():
    tracemalloc.start()
    try:
        images = draw_images(8, (3, 100, 90))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 1.2 * images.nbytes
    generator = np.random.default_rng(0)
    patches = generator.standard_normal((8, 3, 4, 4), np.float32)
    noise = generator.standard_normal((8, 3, 100, 90), np.float32)
    for at in ((0, 0, 0, 0), (7, 2, 99, 89), (3, 1, 24, 23), (3, 1, 25, 22)):
        patch = patches[at[0], at[1], at[2] * 4 // 100, at[3] * 4 // 90]
        assert images[at] == patch + np.float32(0.3) * noise[at]
