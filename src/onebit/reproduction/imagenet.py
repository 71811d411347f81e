"""Table 4: the nets on ImageNet, or on whatever folder of images there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onebit.console import counted
from onebit.data.digits import load_digit_pixels
from onebit.reproduction import published
from onebit.reproduction.plans import Entry, Experiment, Setting, Target, precision
from onebit.reproduction.targets import PAPER, PAPER_RATES, kernel_keys, rate_words

PAPER_EPOCHS = 60
SAME_STRUCTURE = (
    "rivals: all in the Resnet18 of PCNN, a shortcut round and a PReLU behind every conv, which they do not have "
    "in their own papers (Bi-Real Net: no PReLU); --own-structure trains each in that of its authors"
)
OWN_STRUCTURE = (
    "rivals: in the Resnet18 of their own authors. BWN: the standard net. XNOR-Net, BNN, ABC-Net and DoReFa-Net: "
    "batch norm, what the method makes of its inputs, conv, twice, with a shortcut round both. Bi-Real Net: a "
    "shortcut round every conv, no PReLU"
)
HELD_OUT = 50_000  # as many as there are test images
SMOKE_IMAGES, SMOKE_SCALE = {"train": 48, "val": 32}, 5  # digits as files of 40 x 40 pixels
SMOKE_NAME = "handwritten digits, enlarged"


def table_imagenet(setting: Setting) -> Target:
    """Table 4. In the budget of two cores: Resnet18 in float, W1A32 and W1A1, on small images."""
    entries: list[Entry] = []
    kernels_only: dict[int, Experiment] = {}  # by seed
    for row in published.IMAGENET:
        runs: list[Experiment] = []
        for seed in setting.seeds_or(0) if _has(setting, row) else ():
            choices = kernel_keys(setting, row.method) if _is_rival(row) else [{}]
            runs += [_run(setting, row, seed, kernels_only, keys) for keys in choices]
        if (row.net, row.method, row.activation_bits, row.projections) == ("resnet18", "pcnn", 32, 1):
            kernels_only = {run.config.seed: run for run in runs}
        entries.append(Entry((row.model, row.bits), tuple(runs), row.top1, row.top5))
    heads = ("model", "W/A")
    name = "table-imagenet-own-structure" if setting.own_structure else "table-imagenet"
    return Target(name, "Table 4", "accuracy on ImageNet", heads, tuple(entries), _notes(setting))


def _notes(setting: Setting) -> tuple[str, ...]:
    """What is not equal."""
    notes = ["W1A1 PCNN begins from the W1A32 net, with half of its learning rate"]
    if setting.budget == "cpu":
        return *notes, "small images of few classes show that the path works; the paper's figures are of ImageNet"
    epochs = _budget(setting).get("epochs", PAPER_EPOCHS)
    notes[0] += f": {epochs} + {epochs} epochs. W1A1 rivals have signs from the first update, and "
    notes[0] += f"{counted(epochs, 'epoch')} in all"
    notes.append(OWN_STRUCTURE if setting.own_structure else SAME_STRUCTURE)
    if setting.budget == "paper":
        notes.append(
            f"float and PCNN: the paper's learning rates, and all training images. Rivals: learning rate "
            f"{PAPER_RATES[0]:g}, with that of the kernels {rate_words()}, whichever is best on {HELD_OUT:,} "
            f"training images that are held out for it"
        )
    return tuple(notes)


def _is_rival(row: published.ImagenetRow) -> bool:
    return row.method not in {"float", "pcnn"}


def _has(setting: Setting, row: published.ImagenetRow) -> bool:
    """Whether a row is in the budget."""
    return setting.budget != "cpu" or (
        row.net == "resnet18" and row.projections == 1 and row.method in {"float", "pcnn"}
    )


def _run(
    setting: Setting,
    row: published.ImagenetRow,
    seed: int,
    kernels_only: dict[int, Experiment],
    own: dict[str, Any],
) -> Experiment:
    keys: dict[str, Any] = {"model": row.net, "method": row.method, "projections": row.projections, **own}
    if _is_rival(row) and setting.budget == "paper":
        keys["hold_out"] = HELD_OUT
    if _is_rival(row) and setting.own_structure:
        keys["form"] = "own"
    needs: tuple[Experiment, ...] = ()
    if row.method == "pcnn" and row.activation_bits == 1:
        needs = (kernels_only[seed],)
        keys |= {"activation_bits": 1, "lr": 0.05, "lr_w": 0.005}
        keys["initial_checkpoint"] = setting.run_folder(needs[0].name)
    if setting.budget == "smoke":
        keys["data_dir"] = str(smoke_folder(setting.out))
    return setting.plan("imagenet-pcnn-resnet18", _budget(setting), *needs, seed=seed, **keys)


def _budget(setting: Setting) -> dict[str, Any]:
    if setting.budget == "paper":
        return PAPER
    small = {"data": "imagefolder", "sched": "cosine", "hold_out": 0}
    if setting.budget == "cpu":
        few = {"image_size": 56, "epochs": 15, "batch_size": 64, "warmup_epochs": 1.0, "workers": 1}
        return small | few | {"test_every": 1, "channels_last": True, **precision()}
    few = {"image_size": 32, "epochs": 1, "batch_size": 16, "warmup_epochs": 0.1, "workers": 0}
    return small | few | {"width": 4, "bn_batches": 1}


def smoke_folder(out: Path) -> Path:
    """Where the images of the smoke budget are."""
    return out / "images"


def write_smoke_images(out: Path) -> None:
    """Some digits as files, in the layout of ImageNet, so that the budget of a minute takes the same path."""
    from PIL import Image

    for part, (pixels, labels) in zip(("train", "val"), load_digit_pixels(), strict=True):
        for row in range(SMOKE_IMAGES[part]):
            folder = smoke_folder(out) / part / str(labels[row])
            folder.mkdir(parents=True, exist_ok=True)
            large = pixels[row, 0].repeat(SMOKE_SCALE, axis=0).repeat(SMOKE_SCALE, axis=1)
            Image.fromarray(large).save(folder / f"{row:03d}.png")
