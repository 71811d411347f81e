"""The peers' own environments: they bring packages that onebit must not depend on, and that quarrel at times."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from .runner import CannotRunError

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "onnxruntime": ("onnxruntime", "onnx"),
    "openvino": ("openvino", "onnx"),
    "larq-compute-engine": ("larq-compute-engine", "numpy<2"),  # its binary reads arrays of NumPy 1 only
}
ALL_NEED = ("numpy", "safetensors")  # to read a .onebit file
# Whose versions are reported.
DISTRIBUTIONS = (
    "onebit",
    "torch",
    "numpy",
    "onnx",
    "onnxruntime",
    "openvino",
    "larq-compute-engine",
)
DEFAULT_FOLDER = Path("~/.cache/onebit/peers")
_FAILED: dict[Path, str] = {}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# What keeps torch, OpenVINO and onebit to an instruction set. ONNX Runtime and Larq have no such switch.
LIMITS = {
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ONEBIT_ISA": "avx2",
    },
}


def python_of(environment: str | None, folder: Path) -> Path:
    """The interpreter of an environment, which is made if it is not there; None is the one that runs now."""
    if environment is None:
        return Path(sys.executable)
    home = folder.expanduser() / environment
    python = home / "bin" / "python"
    if home in _FAILED:  # by another row: not again, it takes its time
        raise CannotRunError(_FAILED[home])
    if not python.exists():
        print(f"making {home} ...", file=sys.stderr)
        try:
            venv.create(home, with_pip=True)
            install = [str(python), "-m", "pip", "install", "--quiet", *PACKAGES[environment], *ALL_NEED]
            subprocess.run(install, check=True, capture_output=True, text=True)  # noqa: S603 our own words
        except (OSError, subprocess.CalledProcessError) as error:
            shutil.rmtree(home, ignore_errors=True)  # half an environment would be taken for a whole one
            said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
            _FAILED[home] = f"can't be installed: {said[-1] if said else error}"
            raise CannotRunError(_FAILED[home]) from error
    return python


def variables_of(environment: str | None, isa: str | None = None, threads: int = 1) -> dict[str, str]:
    """The environment variables of a worker: its threads, our code on its path, instructions of `isa` at most.

    The packages of onebit that read a file are pure Python; the peers' environments take them from the source.
    """
    path = [str(ROOT)]
    if environment is not None:
        path.append(str(ROOT / "src"))
    elif inherited := os.environ.get("PYTHONPATH"):
        path.append(inherited)
    limits = LIMITS[isa] if isa else {}
    counts = dict.fromkeys(THREADS, str(threads))
    return {**os.environ, **counts, **limits, "PYTHONPATH": os.pathsep.join(path)}
