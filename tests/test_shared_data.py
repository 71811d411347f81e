"""Real photographs, where there are some: CIFAR-10 and folders of Tiny ImageNet, for minutes."""

import pytest

from onebit.data.catalog import load_data
from training_runs import command, records

pytestmark = pytest.mark.slow


def test_cifar10_is_learned(unpacked, tmp_path):
    data = load_data("cifar10", str(unpacked))
    assert data.train.images.shape == (50_000, 3, 32, 32)
    assert data.test.images.shape == (10_000, 3, 32, 32)
    pixels = data.train.images[::10].astype(float) / 255
    assert abs(pixels.mean(axis=(0, 2, 3)) - data.mean).max() < 0.01
    assert abs(pixels.std(axis=(0, 2, 3)) - data.deviation).max() < 0.01

    run = tmp_path / "run"
    words = ["--budget", "cpu", "--epochs", "2", "--limit-images", "12000", "--threads", "2", "--out", str(run)]
    code, out, err = command(
        "train", "--recipe", "cifar10-pcnn22", "--data-dir", str(unpacked), *words, timeout=900
    )
    assert code == 0, err
    assert f"{len(records(run, 'epoch'))} epochs" in out
    assert records(run, "final")[0]["test_top1"] > 30  # of 10 classes


def test_an_image_folder_is_learned(unpacked, tmp_path):
    run = tmp_path / "run"
    words = ["--data", "imagefolder", "--data-dir", str(unpacked / "tiny-imagenet-20"), "--image-size", "64"]
    words += [
        "--model",
        "resnet18",
        "--width",
        "16",
        "--epochs",
        "4",
        "--sched",
        "cosine",
        "-b",
        "64",
        "--lr",
        "0.05",
    ]
    code, out, err = command("train", *words, "--out", str(run), timeout=1200)
    assert code == 0, err
    assert records(run, "final")[0]["test_top1"] > 15  # of 20 classes
    code, out, err = command("eval", str(run), "--which", "best")
    assert code == 0, err
    assert "top-5" in out
