"""What training takes of memory: the peak of a process that trains WRN-22 for some steps, each net in its own.

python benchmarks/training_memory.py              # i = 16, batch 128, CIFAR-sized images
"""

from __future__ import annotations

import argparse
import platform
import resource
import subprocess
import sys

import torch

from rivals import make_step

NETS: dict[str, tuple[str, dict[str, int]]] = {
    "float": ("float", {}),
    "pcnn, W1A32": ("pcnn", {}),
    "pcnn, W1A1": ("pcnn", {"activation_bits": 1}),
}
STEPS = 3


def peak(name: str, batch: int) -> int:
    """Bytes that steps of the net add to what the process had when it was ready to begin."""
    before = _most()
    step = make_step(batch, *NETS[name])
    for _ in range(STEPS):
        step()
    return _most() - before


def _most() -> int:
    unit = 1 if platform.system() == "Darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Each net in a process of its own, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--net", choices=NETS, help="this one alone: prints bytes")
    arguments = parser.parse_args()
    if arguments.net:
        print(peak(arguments.net, arguments.batch))
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, WRN-22, i = 16, batch {arguments.batch}")
    found = {}
    for name in NETS:
        words = [sys.executable, __file__, "--batch", str(arguments.batch), "--net", name]
        found[name] = int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)  # noqa: S603
        print(f"{name:<12} {found[name] / 1e6:7.0f} MB  {found[name] / found['float']:.2f} times float")


if __name__ == "__main__":
    main()
