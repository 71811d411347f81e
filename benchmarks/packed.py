"""What a file of bits costs: to make it, to load it, and to import the package.

python benchmarks/packed.py --rounds 5
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

IMPORTS = """
import time
start = time.perf_counter()
import numpy
between = time.perf_counter()
import onebit
print(between - start, time.perf_counter() - between)
import sys
assert "torch" not in sys.modules
"""
EXPORT = """
import sys, time, torch, onebit
net = onebit.models.resnet18(activation_bits=int(sys.argv[2])).eval()
start = time.perf_counter()
onebit.export(net, sys.argv[1], torch.zeros(1, 3, 224, 224))
print(time.perf_counter() - start)
"""
LOAD = """
import sys, time
import numpy, onebit
start = time.perf_counter()
onebit.load(sys.argv[1], engine="reference")
print(time.perf_counter() - start)
assert "torch" not in sys.modules
"""


def seconds(program: str, *words: str) -> list[float]:
    """What a program prints, run in a process of its own."""
    found = subprocess.run([sys.executable, "-c", program, *words], check=True, capture_output=True, text=True)  # noqa: S603 our own
    return [float(word) for word in found.stdout.split()]


def main() -> None:
    """Print medians over processes; a first round warms the disk's cache and does not count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    imports = [seconds(IMPORTS) for _ in range(rounds + 1)][1:]
    numpy, onebit = (median(column) for column in zip(*imports, strict=True))
    print(f"import onebit: {onebit:.4f} s beyond the {numpy:.3f} s of NumPy (median of {rounds}; goal: 0.03)")
    with tempfile.TemporaryDirectory() as folder:
        for bits in (1, 32):
            path = str(Path(folder) / f"resnet18-{bits}.onebit")
            first, *others = [seconds(EXPORT, path, str(bits))[0] for _ in range(max(2, rounds // 2))]
            made = f"{median(others):.1f} s (first in a cold cache {first:.1f} s; goal: 20)"
            print(f"export of Resnet18, J = 1, W1A{bits}: {made}")
            loads = [seconds(LOAD, path)[0] for _ in range(rounds + 1)][1:]
            size = Path(path).stat().st_size
            print(f"loading its {size:,} bytes in the reference: {median(loads):.3f} s (goal: 0.5)")


if __name__ == "__main__":
    start = time.perf_counter()
    main()
    print(f"all of it in {time.perf_counter() - start:.0f} s")
