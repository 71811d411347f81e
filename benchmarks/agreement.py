"""A file against the net that it was made of, on the test images of its data: how often both see the same class.

python benchmarks/agreement.py RUN --data-dir DATA
python benchmarks/agreement.py RUN --data-dir DATA --activation-bits 8 --images 1000
python benchmarks/agreement.py RUN --data-dir DATA --int8-layers

RUN is a folder of `onebit train`. With `--engine reference` 10,000 images take minutes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from onebit.commands import main as onebit
from onebit.data.catalog import load_data
from onebit.loading import load
from onebit.training.evaluation import Feed
from onebit.training.nets import build_trained, read_weights
from onebit.training.recipes import checked

BATCH = 100


def main() -> None:
    """Export, run both, and print shares of all images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--data-dir")
    parser.add_argument("--activation-bits", choices=("8",))
    parser.add_argument("--int8-layers", action="store_true")
    parser.add_argument("--calibrate")
    parser.add_argument("--float-bits", choices=("32", "16", "8"), default="32")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--engine", choices=("native", "reference"), default="native")
    asked = parser.parse_args()
    weights = read_weights(asked.run)
    spec, net = weights.spec, build_trained(weights).eval()
    name = checked({"data": spec.data}, {"data": ""}).data
    test = load_data(name, asked.data_dir, image_size=spec.image_shape[1], workers=0).test
    feed = Feed(spec.mean, spec.deviation, torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onebit"
        words = ["export", asked.run, "--out", str(path), "--float-bits", asked.float_bits]
        for flag in ("activation_bits", "calibrate", "data_dir"):
            words += [f"--{flag.replace('_', '-')}", getattr(asked, flag)] if getattr(asked, flag) else []
        words += ["--int8-layers"] if asked.int8_layers else []
        if onebit(words):
            raise SystemExit(2)
        packed = load(path, engine=asked.engine)
    count = min(asked.images, len(test.labels))
    rows = [np.arange(start, min(start + BATCH, count)) for start in range(0, count, BATCH)]
    same = right = right_packed = 0
    worst, start = 0.0, time.perf_counter()
    for batch in test.batches(rows):
        images, labels = feed(batch)
        with torch.inference_mode():
            expected = net(images).numpy()
        found = packed(images.numpy())
        worst = max(worst, float(np.abs(found - expected).max() / np.abs(expected).max()))
        same += int((found.argmax(1) == expected.argmax(1)).sum())
        right += int((expected.argmax(1) == labels.numpy()).sum())
        right_packed += int((found.argmax(1) == labels.numpy()).sum())
    shares = f"same class {100 * same / count:.2f} %, largest difference {worst:.1e} of the largest output"
    accuracy = f"top-1 {100 * right / count:.2f} % in PyTorch, {100 * right_packed / count:.2f} % from the file"
    print(f"{spec.summary()}, {count} test images: {shares}; {accuracy}; {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
