"""One call for a whole run: find out what is asked for, begin or resume it, and bring it to its end."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from onebit.data.catalog import load_data
from onebit.data.splits import DataSet
from onebit.errors import UserError, WorkError
from onebit.training.config import FREE_AT_RESUME, Config, flag, settled
from onebit.training.loop import Loop
from onebit.training.processes import Processes
from onebit.training.recipes import checked
from onebit.training.runfolder import RunFolder
from onebit.training.watching import LiveDisplay, PlainLines, TensorBoard, Watcher, Watchers


def train(
    config: Config, out: Path, *, resume: bool = False, quiet: bool = False, watcher: Watcher | None = None
) -> dict[str, Any]:
    """Train as the config says, in the folder `out`; return the summary.

    With `resume`, go on from the folder's last checkpoint, if it has one. A `watcher` shows the run to people in
    place of the usual display.
    """
    if config.threads:
        torch.set_num_threads(config.threads)
    folder = RunFolder(out)
    try:
        with Processes(config.device) as processes:
            return _run(config, folder, processes, watcher, resume=resume, quiet=quiet)
    except torch.OutOfMemoryError as error:
        raise WorkError(f"out of memory: {str(error).splitlines()[0]}; a smaller --batch-size would do") from error
    except RuntimeError as error:
        if "gloo" in str(error).lower() or isinstance(error, dist.DistError):
            raise WorkError("lost contact with another process") from error
        raise
    finally:
        folder.close()


def _run(
    config: Config, folder: RunFolder, processes: Processes, watcher: Watcher | None, *, resume: bool, quiet: bool
) -> dict[str, Any]:
    if not resume and folder.has_checkpoint() and not (processes.restarts and _is_of(folder, config)):
        raise UserError(f"{folder.path}: holds a run already: --resume to go on with it, or another --out")
    if not resume and folder.has_other_files():
        raise UserError(f"{folder.path}: a folder with other files in it: let --out be a new one")
    if resume and not folder.has_checkpoint() and folder.has_weights():
        raise UserError(f"{folder.path}: has weights but not the state beside them, so it can't be resumed")
    loop = Loop(config, folder, _data(config, processes), processes)
    if processes.writes:
        folder.open()
        if not folder.has_checkpoint():
            folder.begin(config, processes)
    processes.wait()
    found = processes.sums(folder.has_checkpoint())[0]
    if found not in {0, processes.count}:
        raise UserError(
            f"--out {folder.path}: not all processes see the same folder; let it be on a disk they share"
        )
    if found:
        loop.resume()
    watchers = _watchers(config, folder, processes, watcher, loop.position.total, quiet)
    try:
        return loop.run(watchers)
    finally:
        watchers.close()


def _is_of(folder: RunFolder, config: Config) -> bool:
    """Whether the folder's run is this one, begun by the group of processes that torchrun has just replaced."""
    return not changed_keys(checked(folder.stored_config()), config)


def changed_keys(stored: Config, asked: Config) -> list[str]:
    """The keys of which a run that is resumed would not be the same."""
    free = FREE_AT_RESUME
    stored, asked = settled(stored), settled(asked)
    return [k for k in Config.model_fields if k not in free and getattr(stored, k) != getattr(asked, k)]


def resumed_config(out: Path, asked: Config | None, flags: Mapping[str, Any]) -> Config:
    """The config that a run began with; what else is asked for must be the same, but for what changes no result."""
    stored = checked(RunFolder(out).stored_config())
    if asked is None:
        asked = checked({**stored.model_dump(exclude_none=True), **flags}, dict.fromkeys(flags, ""))
    for key in changed_keys(stored, asked):
        was, now = getattr(settled(stored), key), getattr(settled(asked), key)
        raise UserError(f"{flag(key)} {now}: the run in {out} began with {was}, and a resumed run keeps it")
    return asked


def _data(config: Config, processes: Processes) -> DataSet:
    """The writer first, alone: it may have to download."""
    if processes.count == 1:
        return data_of(config)
    data = data_of(config) if processes.writes else None
    processes.wait()
    return data or data_of(config)


def data_of(config: Config, *, may_fetch: bool = True) -> DataSet:
    """The data that a config asks for, downloaded if need be."""
    return load_data(
        config.data,
        config.data_dir,
        image_size=config.image_size,
        workers=config.workers,
        on_bad_image=config.on_bad_image,
        may_fetch=may_fetch,
    )


def _watchers(
    config: Config, folder: RunFolder, processes: Processes, given: Watcher | None, step: int, quiet: bool
) -> Watchers:
    if not processes.writes:
        return Watchers()
    watchers: list[Watcher] = [] if given is None else [given]
    if not (watchers or quiet):
        watchers.append(LiveDisplay() if sys.stderr.isatty() else PlainLines())
    if config.tensorboard:
        watchers.append(TensorBoard(folder.path / "tensorboard", step))
    return Watchers(*watchers)
