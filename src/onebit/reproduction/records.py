"""What is kept of a run: a small JSON file that holds its result, how it came about and its curves.

A table or a figure is made from records alone, so that it can be made anew where the runs are gone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import nn

from onebit.counting import bits_of, storage
from onebit.errors import UserError
from onebit.methods import revision_of
from onebit.paths import open_regular, write_whole
from onebit.reproduction.plans import Experiment, same_run
from onebit.training.config import FREE_AT_RESUME, Config, settled
from onebit.training.kernels import BINS
from onebit.training.nets import build_trained, read_weights
from onebit.training.recipes import checked, command_of, without_places
from onebit.training.runfolder import ENVIRONMENT, METRICS, SUMMARY, RunFolder

Said = dict[str, Any]  # by a file that may be damaged, or anybody's
RECORDS = "records"
CURVES = (
    "stage", "epoch", "loss_s", "loss_p", "train_top1", "held_out_top1", "held_out_loss", "test_top1", "test_loss",
    "lr", "flipped_kernels", "flipped_projections",
)  # fmt: skip


class Histogram(BaseModel):
    """How the kernels of the first 1-bit layer were spread after an epoch; see `onebit.training.kernels`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stage: int
    epoch: int
    layer: str
    a: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    counts: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=BINS, max_length=BINS)]

    @model_validator(mode="after")
    def _counts_something(self) -> Self:
        if not any(self.counts):
            raise ValueError("all counts are 0")
        return self


Percent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]


class Record(BaseModel):
    """A finished run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    name: str
    net: str
    data: str  # as people call it, such as 'CIFAR-10 (JPEG)'
    command: str
    commit: str | None
    cpu: str
    threads: int
    torch: str
    seed: int
    epochs: int
    minutes: float
    top1: Percent
    top5: Percent
    test_loss: float
    test_images: int
    held_out_top1: Percent | None
    weight_bits: int
    activation_bits: int
    parameters: int
    bytes: int  # counted, see onebit.storage
    revision: Annotated[int, Field(ge=1)] = 1  # of the method, see onebit.methods.revision_of
    config: dict[str, Any]
    curves: dict[str, list[float | None]]
    kernels: list[Histogram]

    @property
    def is_current(self) -> bool:
        """Whether it is of the method as it is now: figures of an earlier form are not this version's."""
        return self.revision == revision_of(self.config["method"])

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if set(self.curves) != set(CURVES) or len({len(curve) for curve in self.curves.values()}) != 1:
            raise ValueError("curves that are not all there")
        if self.weight_bits < 32 and self.config.get("method") == "pcnn" and not self.kernels:
            raise ValueError("no histograms of kernels")
        return self


def record_of(folder: Path, data_name: str) -> Record | None:
    """The record of a run, if it is finished."""
    run = RunFolder(folder)
    summary = run.summary()
    if summary is None:
        return None
    config = checked(run.stored_config())
    net = build_trained(read_weights(folder))
    try:
        return _made(folder.name, data_name, config, net, summary, run.environment(), run.records())
    except OSError as error:
        raise UserError(f"{folder}: {Path(error.filename or '').name}: {error.strerror}") from None
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError):  # a ValidationError is a ValueError
        raise UserError(
            f"{folder}: its {ENVIRONMENT}, {METRICS} or {SUMMARY} is not one that this version writes; remove the "
            f"folder to train the run again"
        ) from None


def _made(
    name: str, data_name: str, config: Config, net: nn.Module, summary: Said, environment: Said, lines: list[Said]
) -> Record:
    kept, (weight_bits, activation_bits) = storage(net), bits_of(net)
    epochs = [line for line in lines if line["kind"] == "epoch"]
    return Record(
        name=name,
        net=summary["net"],
        data=data_name,
        command=command_of(without_places(config)),
        commit=environment.get("commit"),
        cpu=environment["cpu"],
        threads=environment["threads"],
        torch=environment["packages"]["torch"],
        seed=summary["seed"],
        epochs=summary["epochs"],
        minutes=round(summary["training_seconds"] / 60, 2),
        top1=summary["test_top1"],
        top5=summary["test_top5"],
        test_loss=summary["test_loss"],
        test_images=summary["test_images"],
        held_out_top1=summary["held_out_top1"],
        weight_bits=weight_bits,
        activation_bits=activation_bits,
        parameters=kept.parameters,
        bytes=kept.bytes,
        revision=revision_of(config.method),
        config=_told(config),
        curves={key: [_rounded(epoch.get(key)) for epoch in epochs] for key in CURVES},
        kernels=[_first_layer(line) for line in lines if line["kind"] == "kernels" and line["layers"]],
    )


def _told(config: Config) -> dict[str, Any]:
    """The keys that make the run what it is."""
    keys = without_places(settled(config)).model_dump(mode="json", exclude_none=True)
    return {k: v for k, v in keys.items() if k not in FREE_AT_RESUME or k in {"teacher", "initial_checkpoint"}}


def _rounded(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.5g}")


def _first_layer(line: dict[str, Any]) -> Histogram:
    name, layer = next(iter(line["layers"].items()))
    return Histogram(stage=line["stage"], epoch=line["epoch"], layer=name, a=layer["a"], counts=layer["counts"])


def record_path(out: Path, name: str) -> Path:
    """Where the record of a run is."""
    return out / RECORDS / f"{name}.json"


def write_record(out: Path, record: Record) -> None:
    """Keep it."""
    file = record_path(out, record.name)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, as_json(record).encode())


def as_json(record: Record) -> str:
    """A line a key: lists of numbers are not spread over hundreds of lines."""
    keys = record.model_dump(mode="json")
    nested = {"curves", "kernels"}
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in keys.items() if key not in nested]
    curves = [f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in keys["curves"].items()]
    kernels = [f"    {json.dumps(value)}" for value in keys["kernels"]]
    lines.append('  "curves": {\n' + ",\n".join(curves) + "\n  }")
    lines.append('  "kernels": [\n' + ",\n".join(kernels) + "\n  ]" if kernels else '  "kernels": []')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_record(file: Path) -> Record:
    """A record, checked."""
    try:
        with open_regular(file) as opened:
            record = Record.model_validate_json(opened.read())
        checked(record.config)
    except (ValidationError, IsADirectoryError, UserError):
        raise UserError(
            f"{file}: not a record that this version writes; remove it to train the run again"
        ) from None
    if record.name != file.stem:
        raise UserError(f"{file}: is the record of {record.name}; give it that name, or remove it")
    return record


def known_record(out: Path, run: Experiment) -> Record | None:
    """The record of a planned run, if there is one; that of an earlier form of the method is as good as none."""
    file = record_path(out, run.name)
    if not file.exists():
        return None
    record = read_record(file)
    if not same_run(checked(record.config), run.config):
        raise UserError(f"{file}: of another run than {run.name} is now; move it away to train it again")
    return record if record.is_current else None
