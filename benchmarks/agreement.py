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

import torch

from onebit.commands import main as onebit
from onebit.data.catalog import load_data
from onebit.loading import load
from onebit.reproduction.eight_bits import batches_of, compare_outputs
from onebit.runnable import Floats
from onebit.training.evaluation import Feed
from onebit.training.nets import build_trained, read_weights
from onebit.training.recipes import checked


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

    def in_torch(images: torch.Tensor) -> Floats:
        with torch.inference_mode():
            made: Floats = net(images).numpy()
        return made

    start = time.perf_counter()
    found = compare_outputs(in_torch, packed, batches_of(test, asked.images), feed)
    shares = f"same class {found.same_class:.2f} %, largest difference {found.difference:.1e} of the largest output"
    accuracy = f"top-1 {found.torch_top1:.2f} % in PyTorch, {found.file_top1:.2f} % from the file"
    took = f"{time.perf_counter() - start:.0f} s"
    print(f"{spec.summary()}, {found.images} test images: {shares}; {accuracy}; {took}")


if __name__ == "__main__":
    main()
