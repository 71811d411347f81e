"""The machine that all this runs on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

CPU_INFO = Path("/proc/cpuinfo")
CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")  # of a container: microseconds of computing, in how many
# What of a CPU's instructions counts for convolutions.
FLAGS = ("sse4", "ssse3", "avx", "fma", "f16c", "vnni", "amx", "popcnt", "bmi", "asimd", "neon", "sve", "dotprod")


class Machine(NamedTuple):
    """cores: that this process may use; instructions: such as 'avx2', none if the system does not tell."""

    cpu: str
    cores: int
    system: str
    python: str
    instructions: tuple[str, ...]


def this_machine() -> Machine:
    """What the system says of itself."""
    fields: dict[str, str] = {}
    if CPU_INFO.exists():
        lines = [
            line.partition(":") for line in CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
        ]
        fields = {name.strip().lower(): value.strip() for name, _, value in lines}
    flags = [flag for flag in fields.get("flags", fields.get("features", "")).split() if flag.startswith(FLAGS)]
    return Machine(
        fields.get("model name") or platform.processor() or platform.machine(),
        cores(),
        f"{platform.system()} {platform.machine()}",
        platform.python_version(),
        tuple(sorted(flags)),
    )


def cores() -> int:
    """Those that this process may use. A container that is limited to some still sees all of its machine."""
    seen = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        computing, of_time = map(int, CPU_LIMIT.read_text(encoding="ascii").split())
    except (OSError, ValueError):  # there is no such file, or no limit: 'max 100000'
        return seen
    return max(1, min(seen, computing // of_time))


def source_commit() -> str | None:
    """The commit of the checkout that this package runs from, '-dirty' if it was changed since; None elsewhere."""
    package = Path(__file__).resolve().parent
    root, git = package.parent.parent, shutil.which("git")
    if git is None or not (root / ".git").exists() or package != root / "src" / "onebit":
        return None
    words = [git, "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    found = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 no shell, fixed words
    return found.stdout.strip() or None
