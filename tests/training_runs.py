"""Small runs on the digits, in this process and as processes of their own."""

import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace

from safetensors.torch import load_file

from children import child
from onebit.commands import main
from onebit.comparison import running
from onebit.training.recipes import checked
from onebit.training.session import train

# A net of a few thousand weights and some images: a few seconds, most of them Python's start.
SMALL = {
    "width": 2, "batch_size": 32, "limit_images": 200, "epochs": 2, "threads": 1, "bn_batches": 2,
    "sched": "cosine", "hold_out": 40,
}  # fmt: skip


def small_config(**keys):
    return checked(SMALL | keys)


def small_run(out, *, resume=False, **keys):
    return train(small_config(**keys), Path(out), resume=resume, quiet=True)


def small_flags(**keys):
    words = []
    for key, value in (SMALL | keys).items():
        flag = "--" + key.replace("_", "-")
        words += [flag] if value is True else [flag, str(value)]
    return words


def start(*words, module=("-m", "onebit"), **options):
    """A process of its own, whose output is kept."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return child([sys.executable, *module, *words], env=environment, **(pipes | options))


def command(*words, timeout=240, **options):
    process = start(*words, **options)
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def call(capsys, *words):
    """The command in this process, which saves the start of one: exit code, output, errors."""
    capsys.readouterr()
    try:
        code = main(words)
    except SystemExit as stop:  # argparse's way
        code = stop.code
    return (code, *capsys.readouterr())


def trained_here(folder, run):
    """In place of `onebit.comparison.running._start`: the worker's training, done in this process."""
    words, where = [*running.prepare(folder, run), "--quiet"], folder / run.name
    with (where / "output.txt").open("w") as output, redirect_stdout(output), redirect_stderr(output):
        code = main(words)
    return running.Process(run, SimpleNamespace(poll=lambda: code, returncode=code, stdin=None))


def torchrun(processes, *words, max_restarts=0):
    options = ["--nproc-per-node", str(processes), "--max-restarts", str(max_restarts), "--standalone"]
    return start(*options, "-m", "onebit", *words, module=("-m", "torch.distributed.run"))


def records(run, kind=None):
    lines = (Path(run) / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [record for record in found if kind in {None, record["kind"]}]


TIMES = {"images_per_s", "training_seconds"}


def assert_same_run(one, other):
    """The same weights and state to the last bit, and the same metrics but for times."""
    one, other = Path(one), Path(other)
    for name in ("last.safetensors", "best.safetensors", "last.state.safetensors"):
        assert (one / name).exists() == (other / name).exists()
        if (one / name).exists():
            first, second = load_file(one / name), load_file(other / name)
            assert first.keys() == second.keys()
            different = [key for key in first if not first[key].equal(second[key])]
            assert not different, f"{name}: {different[:3]}"
    without_times = [
        [{key: value for key, value in record.items() if key not in TIMES} for record in records(run)]
        for run in (one, other)
    ]
    assert without_times[0] == without_times[1]
    leftovers = [path.name for path in other.iterdir() if path.name.endswith((".next", ".commit"))]
    assert leftovers == []
