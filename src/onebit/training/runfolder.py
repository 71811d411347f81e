"""The folder of a run: config, environment, metrics, checkpoints, summary.

config.toml              what was asked for, resolved: a recipe that does the same again
environment.json         versions, machine, command line, threads and processes
metrics.jsonl            one record a line, as the run goes
last.safetensors         the net at the last checkpoint; its metadata says how to build it
last.state.safetensors   optimizer, position and all else that --resume needs
best.safetensors         the net of the epoch that did best on held-out images
summary.json             at the end: the result
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import save
from torch import Tensor

from onebit.errors import UserError, WorkError
from onebit.machine import source_commit, this_machine
from onebit.training.checkpoints import recover, switch
from onebit.training.config import Config
from onebit.training.nets import Weights, read_tensors, read_weights
from onebit.training.processes import Processes
from onebit.training.recipes import read_recipe, to_toml
from onebit.version import __version__

CONFIG, ENVIRONMENT, METRICS, SUMMARY = "config.toml", "environment.json", "metrics.jsonl", "summary.json"
WEIGHTS, STATE, BEST, LOCK = "last.safetensors", "last.state.safetensors", "best.safetensors", ".lock"


def check_out(folder: Path) -> None:
    """Before hours of work: whether what comes of it can be written there. The folder need not be there yet."""
    at = next(place for place in (folder, *folder.parents) if place.exists())
    if not at.is_dir():
        raise UserError(f"--out {folder}: {at} is a file; name a folder")
    if not os.access(at, os.W_OK):
        raise UserError(f"--out {folder}: {at} can't be written to; name another folder")


class RunFolder:
    """Only the writing process uses what writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    def has_run(self) -> bool:
        """Whether a run began here."""
        return (self.path / CONFIG).is_file()

    def has_checkpoint(self) -> bool:
        """Whether there is something to go on from."""
        return (self.path / STATE).is_file()

    def has_other_files(self) -> bool:
        """Whether the folder is there and something is in it that is no run's."""
        if self.has_run() or not self.path.is_dir():
            return False
        return any(not entry.name.startswith(".") for entry in self.path.iterdir())

    def has_weights(self) -> bool:
        """Whether a checkpoint's weights are here."""
        return (self.path / WEIGHTS).is_file()

    def stored_config(self) -> dict[str, Any]:
        """The keys that the run began with."""
        if not self.has_run():
            raise UserError(f"{self.path}: holds no run that could be resumed")
        return read_recipe(str(self.path / CONFIG))

    def begin(self, config: Config, processes: Processes) -> None:
        """Say in the folder what the run is."""
        files = {CONFIG: to_toml(config).encode(), ENVIRONMENT: _json(_environment(processes)), METRICS: b""}
        switch(self.path, files)

    def open(self) -> None:
        """Take hold of the folder: no two processes may write it at once."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / LOCK).open("a+")
        except OSError as error:
            raise UserError(f"{self.path}: {error.strerror}") from None
        if not locked(self._lock):
            self.close()
            raise UserError(f"{self.path}: another process is training there")
        recover(self.path)

    def is_busy(self) -> bool:
        """Whether another process is training here."""
        if self._lock is not None or not (self.path / LOCK).is_file():
            return False
        with (self.path / LOCK).open("a+") as file:
            return not locked(file)

    def close(self) -> None:
        """Let go of the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def log(self, record: dict[str, Any]) -> None:
        """Add a record to the metrics."""
        try:
            with (self.path / METRICS).open("a") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise WorkError(f"{self.path / METRICS}: {error.strerror}; the last checkpoint is whole") from error

    def forget_after(self, step: int, finished: bool) -> None:
        """Drop records of what the checkpoint does not know: it will be done again."""
        path = self.path / METRICS
        if path.is_file():
            lines = [
                line for line in path.read_text(errors="replace").splitlines() if _step(line, finished) <= step
            ]
            switch(self.path, {METRICS: "".join(line + "\n" for line in lines).encode()})

    def save(self, files: dict[str, bytes], tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Switch to a new checkpoint: these files and this state."""
        if (self.path / METRICS).is_file():
            with (self.path / METRICS).open("ab") as metrics:
                os.fsync(metrics.fileno())  # what a checkpoint counts on must not be lost before it
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        numbers = numbers | {"weights": hashlib.sha256(files[WEIGHTS]).hexdigest()}
        switch(self.path, files | {STATE: save(state, {"onebit": json.dumps(numbers)})})

    def load(self) -> tuple[Weights, dict[str, Tensor], dict[str, Any]]:
        """The last checkpoint."""
        path = self.path / STATE
        tensors, described = read_tensors(path, "state")
        try:
            numbers = json.loads(described or "")
        except ValueError as error:
            raise UserError(f"{path}: not a whole state ({error})") from None
        weights = read_weights(self.path / WEIGHTS)
        with (self.path / WEIGHTS).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != numbers.get("weights"):
                raise UserError(f"{self.path}: {WEIGHTS} is not the file that {STATE} was saved with")
        return weights, tensors, numbers

    def place(self) -> tuple[int, int]:
        """Stage and epoch of the last whole record of the metrics; epoch 0: there is none."""
        try:
            with (self.path / METRICS).open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - 65536))  # the kernels of a large net are a long record
                lines = file.read().splitlines(keepends=True)
            whole = [line for line in lines if line.startswith(b"{") and line.endswith(b"}\n")]
            last = json.loads(whole[-1])
            return int(last["stage"]), int(last["epoch"])
        except (OSError, ValueError, KeyError, IndexError):
            return 1, 0

    def summary(self) -> dict[str, Any] | None:
        """The result of a finished run, if it is there."""
        try:
            found: dict[str, Any] = json.loads((self.path / SUMMARY).read_text())
        except (OSError, ValueError):
            return None
        return found


def summary_file(summary: dict[str, Any]) -> dict[str, bytes]:
    """The summary, to be saved with the last checkpoint."""
    return {SUMMARY: _json(summary)}


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def _step(line: str, finished: bool) -> float:
    """Of a record; one that was cut off is after everything, and so is the last of a run that did not finish."""
    try:
        record = json.loads(line)
        return float("inf") if record["kind"] == "final" and not finished else float(record["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _environment(processes: Processes) -> dict[str, Any]:
    packages = {}
    for name in ("torch", "numpy", "safetensors", "pillow", "pydantic"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "onebit": __version__,
        "commit": source_commit(),
        "python": platform.python_version(),
        "packages": packages,
        "system": platform.platform(),
        "processor": platform.machine(),
        "cpu": this_machine().cpu,
        "cores": os.cpu_count(),
        "device": str(processes.device),
        "processes": processes.count,
        "threads": torch.get_num_threads(),
        "command": sys.argv,
    }


def locked(file: IO[str]) -> bool:
    """Whether we hold the lock now; it goes when this process does, however it ends, workers left over or not."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
