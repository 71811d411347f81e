"""What `onebit doctor` looks at: what is installed, whether the engine works here, where data is.

Nothing may lack for the look itself: every package is imported where it is looked at.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Literal, NamedTuple

from onebit.advice import install, install_for, program
from onebit.console import counted
from onebit.errors import UserError
from onebit.machine import cores, this_machine
from onebit.native import ISA_VARIABLE, ISAS, chosen_isa, native, why_isa
from onebit.paths import user_path
from onebit.version import __version__

CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
# What is not needed to run a .onebit file, and what needs it.
PURPOSES = {
    "torch": "to train and to export",
    "pydantic": "to train",
    "rich": "for tables and progress bars",
    "pillow": "to read and to draw pictures",
    "matplotlib": "to plot",
    "shtab": "for `onebit completion`",
    "tensorboard": "for `onebit train --tensorboard`",
    "onnx": "to write ONNX files, and to compare with ONNX Runtime",
    "onnxruntime": "to compare with ONNX Runtime",
    "qonnx": "to run the QONNX files that are written",
    "openvino": "to compare with OpenVINO",
}
SMALL_DISK = 1e9  # bytes; a run of a large net keeps a few hundred megabytes


class Finding(NamedTuple):
    """One thing that was looked at: 'missing' is a remark, 'wrong' keeps a .onebit file from running."""

    name: str
    mark: Literal["ok", "missing", "wrong"]
    found: str
    advice: str = ""


def findings(data_dir: str | None = None) -> Iterator[Finding]:
    """Everything, one after another; some of it takes seconds (torch, the engine's check)."""
    yield Finding("onebit", "ok", f"{__version__}, in {Path(__file__).parent}")
    yield Finding("Python", "ok", f"{platform.python_version()}, {sys.executable}")
    for name in ("numpy", "safetensors"):
        yield _package(name, must_be_there=True)
    yield from engine()
    yield _cpu()
    yield _torch()
    yield from (_package(name) for name in ("pydantic", "rich"))
    yield _pillow()
    yield _package("matplotlib")
    yield from map(_optional, ("shtab", "tensorboard", "onnx", "onnxruntime", "qonnx", "openvino"))
    yield from _data(data_dir)
    yield _disk()


def engine() -> Iterator[Finding]:
    """The compiled part, the kernels that this machine can run, and whether they are right."""
    try:
        loaded = native()
    except UserError as error:
        yield Finding("engine", "wrong", "can't be loaded", str(error))
        return
    yield Finding("engine", "ok", str(loaded.__file__))
    there = [isa for isa in ISAS if loaded.has_isa(isa)]
    try:
        chosen = chosen_isa("auto")
        yield Finding("kernels", "ok", f"{chosen} ({why_isa('auto')}); this machine can run {', '.join(there)}")
    except UserError as error:
        yield Finding(
            "kernels", "wrong", str(error), f"unset {ISA_VARIABLE}, or let it be one of {', '.join(there)}"
        )
    try:
        from onebit.selfcheck import is_right

        wrong = [isa for isa in there if not is_right(isa)]
    except ImportError as error:
        yield Finding("exactness", "wrong", f"could not be looked at ({error})", "install what is missing above")
        return
    if wrong:
        advice = "install onebit again; if it stays so, report it with this machine's CPU"
        yield Finding("exactness", "wrong", f"{', '.join(wrong)} and the reference engine disagree", advice)
    else:
        yield Finding("exactness", "ok", f"{', '.join(there)} and the reference engine agree bit for bit")


def _package(name: str, *, must_be_there: bool = False) -> Finding:
    module, problem = _imported(name)
    if module is None and must_be_there:
        return Finding(name, "wrong", problem, install_for(name))
    return Finding(name, "ok", _version(name)) if module else _missing(name, problem)


def _imported(name: str) -> tuple[ModuleType | None, str]:
    """A module, or why it can't be had."""
    try:
        return importlib.import_module(name), ""
    except ModuleNotFoundError:
        return None, "not installed"
    except Exception as error:  # noqa: BLE001 a broken package may raise anything
        return None, f"installed, but can't be imported ({' '.join(str(error).split())[:200]})"


def _optional(name: str) -> Finding:
    """Not imported: they are large, and only their own commands need them."""
    return Finding(name, "ok", _version(name)) if importlib.util.find_spec(name) else _missing(name)


def _missing(name: str, problem: str = "not installed") -> Finding:
    return Finding(name, "missing", f"{problem}; {PURPOSES[name]}", install_for(name))


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "of an unknown version"


def _torch() -> Finding:
    torch, problem = _imported("torch")
    if torch is None:
        lacking = _missing("torch", problem)
        smaller = f"before it, for a much smaller build for CPUs: {install(f'torch --index-url {CPU_WHEELS}')}"
        return lacking._replace(advice=f"{lacking.advice}; {smaller}")
    if not hasattr(torch, "accelerator"):
        return Finding("torch", "missing", f"{torch.__version__}, too old", install("--upgrade 'torch>=2.6'"))
    device = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
    if device == "cuda":
        device = f"cuda ({torch.cuda.device_count()} x {torch.cuda.get_device_name()})"
    threads = torch.get_num_threads()
    return Finding(
        "torch", "ok", f"{torch.__version__}, {threads} {'thread' if threads == 1 else 'threads'}, device {device}"
    )


def _pillow() -> Finding:
    module, problem = _imported("PIL.features")
    if module is None:
        return _missing("pillow", problem)
    lacking = [kind for kind, name in (("JPEG", "jpg"), ("WebP", "webp")) if not module.check(name)]
    if lacking:
        found = f"{_version('pillow')}, without {' and '.join(lacking)}"
        return Finding("pillow", "missing", found, install("--force-reinstall --only-binary :all: pillow"))
    return Finding("pillow", "ok", f"{_version('pillow')}, with JPEG and WebP")


def _cpu() -> Finding:
    threads = os.environ.get("OMP_NUM_THREADS")
    limit = f"OMP_NUM_THREADS={threads}" if threads else "OMP_NUM_THREADS is not set"
    cpu = this_machine().cpu
    there = counted(os.cpu_count() or 1, "core")
    return Finding("CPU", "ok", f"{cpu}, {cores()} of {there} may be used, {limit}")


def _data(data_dir: str | None) -> Iterator[Finding]:
    """A look at which files are there; none is read."""
    folder = data_dir or os.environ.get("ONEBIT_DATA")
    yield Finding("digits", "ok", "with the package")
    if not folder:
        yield Finding("data folder", "missing", "none is named", "--data-dir DIR, or set ONEBIT_DATA")
        return
    root = user_path(folder)
    if not root.is_dir():
        yield Finding(
            "data folder", "missing", f"{root}: no such folder", "training makes it for CIFAR, which it fetches"
        )
        return
    yield Finding("data folder", "ok", f"{root} ({'--data-dir' if data_dir else '$ONEBIT_DATA'})")
    try:
        from onebit.data.cifar import CIFARS, find_cifar
        from onebit.data.folder import LAYOUT, parts_of
    except ImportError:  # NumPy lacks, and that has been said
        return
    for name, cifar in CIFARS.items():
        archive = root / cifar.archive.name
        if found := find_cifar(name, root):
            yield Finding(name, "ok", str(found))
        elif archive.is_file():
            yield Finding(name, "ok", f"{archive}, unpacked at its first use")
        else:
            yield Finding(
                name,
                "missing",
                "not there",
                f"{program()} train --data {name} --data-dir {shlex.quote(str(root))}   fetches it",
            )
    train, test = parts_of(root)
    if train.is_dir() and test is not None:
        yield Finding("imagefolder", "ok", f"{train} and {test}")
    else:
        yield Finding("imagefolder", "missing", "not there", f"in a folder for --data-dir: {LAYOUT}")


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    found = f"{free / 1e9:.1f} GB free in {Path.cwd()}"
    if free < SMALL_DISK:
        return Finding("disk", "missing", found, "make room, or train with --out in another place")
    return Finding("disk", "ok", found)


def summary(found: Sequence[Finding]) -> str:
    """What it comes to, in one line."""
    wrong, missing = (sum(each.mark == mark for each in found) for mark in ("wrong", "missing"))
    if wrong:
        return f"{wrong} {'thing' if wrong == 1 else 'things'} to mend before .onebit files can run"
    return ".onebit files can run here" + (f"; {missing} missing for other work" if missing else "")
