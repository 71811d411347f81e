"""Commands that are printed as advice, so that they work as they stand, also where `onebit` is not on the PATH."""

from __future__ import annotations

import importlib.machinery
import os
import shlex
import shutil
import sys
from pathlib import Path

# The extra of onebit that brings a package with the least else: `train` brings PyTorch, `cli` does not.
EXTRAS = {
    "torch": "train",
    "pydantic": "train",
    "matplotlib": "train",
    "rich": "cli",
    "pillow": "cli",
    "shtab": "cli",
    "tensorboard": "tensorboard",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "qonnx": "qonnx",
    "openvino": "bench",
}


def program() -> str:
    """What to type to start onebit once more: its name, if the shell finds this very program under it."""
    script = Path(sys.argv[0])
    was_typed = script.name == "onebit" and script.is_file()
    own = script if was_typed else Path(sys.executable).with_name("onebit")
    found = shutil.which("onebit")
    if found and own.exists() and Path(found).samefile(own):
        return "onebit"
    return _typed(script) if was_typed else f"{_python()} -m onebit"


def install(words: str) -> str:
    """The command that installs packages, quoted as a shell wants them, for the Python that runs."""
    if _is_found("pip", Path(sys.executable).with_name("pip")):
        return f"pip install {words}"
    if not _has_pip() and shutil.which("uv"):
        return f"uv pip install --python {_python()} {words}"
    return f"{_python()} -m pip install {words}"


def install_extra(extra: str) -> str:
    """The command that installs what an extra of onebit brings."""
    return install(f"'onebit[{extra}]'")


def package_of(module: str) -> str:
    """What a module is installed as."""
    return {"PIL": "pillow"}.get(module, module)


def is_known(module: str) -> bool:
    """Whether a module that lacks is one of the packages that onebit is installed with."""
    return package_of(module) in {*EXTRAS, "numpy", "safetensors"}


def install_for(module: str) -> str:
    """The command that installs a package that lacks."""
    package = package_of(module)
    return install_extra(EXTRAS[package]) if package in EXTRAS else install(package)


def _python() -> str:
    """The Python that runs. Where a link leads does not count: that of an environment leads out of it."""
    own = Path(sys.executable)
    return next((name for name in ("python", "python3") if _is_found(name, own.with_name(name))), _typed(own))


def _has_pip() -> bool:
    """Whether pip can be imported, by a look at paths alone.

    `importlib.util.find_spec` asks a hook of setuptools, too, which takes that for pip at work: from then on
    torch.compile fails in this process.
    """
    return importlib.machinery.PathFinder.find_spec("pip") is not None


def _is_found(name: str, own: Path) -> bool:
    """Whether a shell takes the name for the program that is meant."""
    found = shutil.which(name)
    return found is not None and Path(os.path.abspath(found)) == own  # noqa: PTH100 resolve() would follow links


def _typed(file: Path) -> str:
    """A program's path as short as a shell takes it: from the folder that we are in, if it is below it."""
    whole, here = Path(os.path.abspath(file)), Path.cwd()  # noqa: PTH100
    if not whole.is_relative_to(here):
        return shlex.quote(str(whole))
    below = str(whole.relative_to(here))
    return shlex.quote(below if os.sep in below else f".{os.sep}{below}")
