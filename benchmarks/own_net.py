"""What the guide docs/own-net.md comes to on real photos: its code as printed, and the README's loop beside it.

    python -m benchmarks.own_net DATA/tiny-imagenet-20      # train/CLASS/*, val/CLASS/*; its first five classes
    python -m benchmarks.own_net PHOTOS --classes 10 --seed 1

One thread. Prints accuracies on the images of val/, and how many answers of a file are those of its net in PyTorch.
"""

from __future__ import annotations

import argparse
import copy
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import onebit

GUIDE = Path(__file__).parent.parent / "docs" / "own-net.md"
README_UPDATES = (100, 390)


def blocks() -> list[str]:
    """The guide's code."""
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


def main() -> None:
    """Run the guide on some classes of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="a folder with train/CLASS and val/CLASS")
    parser.add_argument("--classes", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        chosen = sorted(each.name for each in (arguments.photos / "train").iterdir())[: arguments.classes]
        for part, source in (("train", "train"), ("test", "val")):
            place = Path(folder, "photos", part)
            place.mkdir(parents=True)
            for name in chosen:
                (place / name).symlink_to((arguments.photos / source / name).resolve())
        os.chdir(folder)
        names = run_guide()
        agreement(names)
        readme_loop(names)


def run_guide() -> dict[str, Any]:
    """Every block, as printed; with how long each took."""
    names: dict[str, Any] = {}
    for block in blocks():
        began = time.process_time()
        exec(block, names)  # noqa: S102 the code of our own document
        print(f"    ({time.process_time() - began:.0f} s of one core)", flush=True)
    return names


def agreement(names: dict[str, Any]) -> None:
    """How many answers of files are those of the nets that they were made of."""
    for file, model in (("w1a8.onebit", "w1a32"), ("int8.onebit", "float_net"), ("w1a1.onebit", "w1a1")):
        images = names["test_images"]
        answers = onebit.load(file)(np.ascontiguousarray(images.numpy())).argmax(1)
        with torch.inference_mode():
            before = torch.cat([names[model](part).argmax(1) for part in images.split(100)]).numpy()
        print(f"{file}: {100 * (answers == before).mean():.1f} % of the answers are those of the net in PyTorch")
    untrained = onebit.binarize(copy.deepcopy(names["float_net"]))
    print(f"1-bit kernels without training: {names['accuracy'](untrained):.1f} %")


def readme_loop(names: dict[str, Any]) -> None:
    """W1A1 by the README's loop: one rate from beginning to end."""
    model = onebit.binarize(copy.deepcopy(names["float_net"]), activation_bits=1, relu_before_sign="prelu")
    optimizer = torch.optim.SGD(
        onebit.parameter_groups(model, lr=0.1, weight_decay=5e-4), momentum=0.9, nesterov=True
    )
    onebit.discrete_backprop(model, optimizer)
    done = 0
    while True:
        for images, labels in names["batches"]():
            model.train()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            done += 1
            if done in README_UPDATES:
                print(f"the README's loop, {done} updates: {names['accuracy'](model):.1f} %", flush=True)
            if done == README_UPDATES[-1]:
                return


if __name__ == "__main__":
    main()
