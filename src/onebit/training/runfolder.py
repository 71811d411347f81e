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
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from onebit.console import is_unicode
from onebit.errors import ModelFileError, UserError, WorkError
from onebit.jsonfields import is_int, parse_json
from onebit.machine import source_commit, this_machine
from onebit.paths import append_regular, open_regular
from onebit.training.checkpoints import recover, switch
from onebit.training.config import Config, settled
from onebit.training.locks import Lock
from onebit.training.nets import Weights, read_tensors, read_weights
from onebit.training.processes import Processes
from onebit.training.recipes import read_recipe, to_toml
from onebit.version import __version__

CONFIG, ENVIRONMENT, METRICS, SUMMARY = "config.toml", "environment.json", "metrics.jsonl", "summary.json"
WEIGHTS, STATE, BEST, LOCK = "last.safetensors", "last.state.safetensors", "best.safetensors", ".lock"
MAX_STEPS = 1 << 62
# What is read of a summary; it may be that of anybody's run.
TEXTS = {"net", "data"}
NUMBERS = {
    "epochs", "test_top1", "test_top5", "test_images", "held_out_top1", "best_held_out_top1", "best_epoch",
    "training_seconds", "skipped_images",
}  # fmt: skip
WITHOUT_HELD_OUT = {"held_out_top1", "best_held_out_top1", "best_epoch"}  # null where no images are held out


def check_out(folder: Path) -> None:
    """Before hours of work: whether what comes of it can be written there. The folder need not be there yet."""
    if not is_unicode(str(folder)):  # what reads and writes tensors opens no such path
        raise UserError(f"--out {folder}: its path is not UTF-8 text; name another folder")
    at = next(place for place in (folder, *folder.parents) if place.exists())
    if not at.is_dir():
        raise UserError(f"--out {folder}: {at} is a file; name a folder")
    if not os.access(at, os.W_OK):
        raise UserError(f"--out {folder}: {at} can't be written to; name another folder")


class RunFolder:
    """Only the writing process uses what writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock(path / LOCK)

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
        files = {
            CONFIG: to_toml(settled(config)).encode(),
            ENVIRONMENT: _json(_environment(processes)),
            METRICS: b"",
        }
        switch(self.path, files)

    def open(self) -> None:
        """Take hold of the folder: no two may write it at once."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            is_ours = self._lock.take()
        except OSError as error:
            raise UserError(f"{error.filename or self.path}: {error.strerror or error}") from None
        if not is_ours:
            raise UserError(f"{self.path}: another process is training there")
        recover(self.path)

    def is_busy(self) -> bool:
        """Whether somebody else is training here."""
        return self._lock.is_busy()

    def close(self) -> None:
        """Let go of the folder."""
        self._lock.release()

    def log(self, record: dict[str, Any]) -> None:
        """Add a record to the metrics."""
        try:
            with append_regular(self.path / METRICS) as file:
                file.write(f"{json.dumps(record)}\n".encode())
        except OSError as error:
            kept = "the last checkpoint is whole" if self.has_checkpoint() else "nothing was saved yet"
            raise WorkError(f"{self.path / METRICS}: {error.strerror}; {kept}") from error

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
            with append_regular(self.path / METRICS) as metrics:
                os.fsync(metrics.fileno())  # what a checkpoint counts on must not be lost before it
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        numbers = numbers | {"weights": hashlib.sha256(files[WEIGHTS]).hexdigest()}
        switch(self.path, files | {STATE: save(state, {"onebit": json.dumps(numbers)})})

    def load(self) -> tuple[Weights, dict[str, Tensor], dict[str, Any]]:
        """The last checkpoint."""
        path = self.path / STATE
        tensors, described = read_tensors(path, "state")
        try:
            numbers = parse_json(described or "", "its description")
        except ModelFileError as error:
            raise UserError(f"{path}: not a whole state ({error})") from None
        if not isinstance(numbers, dict):
            raise UserError(f"{path}: not a whole state (its description is no JSON object)")
        weights = read_weights(self.path / WEIGHTS)
        with (self.path / WEIGHTS).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != numbers.get("weights"):
                raise UserError(f"{self.path}: {WEIGHTS} is not the file that {STATE} was saved with")
        return weights, tensors, numbers

    def place(self) -> tuple[int, int]:
        """Stage and epoch of the last whole record of the metrics; epoch 0: there is none."""
        try:
            with open_regular(self.path / METRICS) as file:
                file.seek(max(0, file.seek(0, 2) - 65536))  # the kernels of a large net are a long record
                lines = file.read().splitlines(keepends=True)
            whole = [line for line in lines if line.startswith(b"{") and line.endswith(b"}\n")]
        except OSError:
            return 1, 0
        last = _record(whole[-1]) if whole else {}
        stage, epoch = last.get("stage", 0), last.get("epoch", 0)
        return (stage, epoch) if is_int(stage) and is_int(epoch) and stage > 0 <= epoch else (1, 0)

    def environment(self) -> dict[str, Any]:
        """What it ran on; nothing, if the file says none. Raises OSError where it can't be read."""
        with open_regular(self.path / ENVIRONMENT) as file:
            return _record(file.read())

    def records(self) -> list[dict[str, Any]]:
        """The metrics, a record a line; what is none is empty. Raises OSError where they can't be read."""
        with open_regular(self.path / METRICS) as file:
            return [_record(line) for line in file.read().splitlines()]

    def summary(self) -> dict[str, Any] | None:
        """The result of a finished run, if it is there and is one."""
        try:
            with open_regular(self.path / SUMMARY) as file:
                found = _record(file.read())
        except OSError:
            return None
        return found if found and all(_is_sound(key, value) for key, value in found.items()) else None


def summary_file(summary: dict[str, Any]) -> dict[str, bytes]:
    """The summary, to be saved with the last checkpoint."""
    return {SUMMARY: _json(summary)}


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def _record(line: str | bytes) -> dict[str, Any]:
    """What a line says; nothing if it was cut off, or is not ours."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _step(line: str, finished: bool) -> float:
    """Of a record; one that was cut off is after everything, and so is the last of a run that did not finish."""
    record = _record(line)
    step = record.get("step", MAX_STEPS)
    is_counted = is_int(step) and step < MAX_STEPS and (finished or record.get("kind") != "final")
    return float(step) if is_counted else float("inf")


def _is_sound(key: str, value: Any) -> bool:
    """Whether a value of a summary is of its type."""
    if key in TEXTS:
        return isinstance(value, str)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_STEPS
    return key not in NUMBERS or is_number or (value is None and key in WITHOUT_HELD_OUT)


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
