"""What a run's folder says of itself may be damaged, or anybody's; and two never train in one folder."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from onebit.comparison.plan import stored
from onebit.errors import UserError
from onebit.reproduction.records import record_of
from onebit.training.checkpoints import recover
from onebit.training.locks import Lock
from onebit.training.runfolder import ENVIRONMENT, LOCK, METRICS, SUMMARY, RunFolder
from test_regular_files import nobody_waits
from training_runs import call, small_run

DEEP = "[" * 100_000 + "]" * 100_000
STATE = "last.state.safetensors"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    small_run(folder, epochs=1)
    return folder


@pytest.fixture
def run(finished, tmp_path):
    """A copy of it, to spoil."""
    folder = tmp_path / "run"
    folder.mkdir()
    for file in finished.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def described(run):
    with safe_open(run / STATE, "pt") as opened:
        return json.loads(opened.metadata()["onebit"])


def describe(run, text, **tensors):
    save_file(load_file(run / STATE) | tensors, run / STATE, {"onebit": text})


@pytest.mark.parametrize(
    "text", ["[]", "7", "null", '"x"', "", "{", DEEP, '{"a": ' + DEEP + "}", '{"weights": NaN}']
)
def test_a_state_that_is_none(run, text):
    describe(run, text)
    with pytest.raises(UserError, match=rf"{STATE}: not a whole state"):
        small_run(run, epochs=1, resume=True)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"position": []}, "not one that this version writes"),
        ({"position": {"stage": "first"}}, "not one that this version writes"),
        ({"position": {"stage": 7}}, "not one that this version writes"),
        ({"position": {"stage": -1}}, "a run with other data, epochs or batches"),
        ({"position": {"epoch": -1}}, "a run with other data, epochs or batches"),
        ({"position": {"step": 10**9}}, "a run with other data, epochs or batches"),
        ({"skipped": 7}, "not one that this version writes"),
        ({"weights": 7}, "is not the file that"),
    ],
)
def test_a_state_with_wrong_values(run, keys, words):
    numbers = described(run)
    wrong = {key: numbers[key] | value if isinstance(value, dict) else value for key, value in keys.items()}
    describe(run, json.dumps(numbers | wrong))
    with pytest.raises(UserError, match=words):
        small_run(run, epochs=1, resume=True)


@pytest.mark.parametrize("name", ["optimizer/stem.weight", "optimizer/stem.weight/a/b", "optimizer//"])
def test_a_state_with_tensors_of_other_names(run, name):
    describe(run, json.dumps(described(run)), **{name: torch.zeros(())})
    with pytest.raises(UserError, match="does not fit the net: optimizer/"):
        small_run(run, epochs=1, resume=True)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "7",
        DEEP,
        '{"net": 1}',
        '{"test_top1": "x"}',
        '{"test_top1": null}',
        '{"epochs": true}',
        '{"epochs": 1e999}',
    ],
)
def test_a_summary_that_is_none_is_made_anew(run, finished, text, capsys):
    whole = RunFolder(finished).summary()
    (run / SUMMARY).write_text(text)
    assert RunFolder(run).summary() is None
    code, out, _ = call(capsys, "train", "--resume", str(run), "--quiet")
    assert code == 0
    assert f"top-1 {whole['test_top1']:.2f} %" in out
    assert RunFolder(run).summary().keys() == whole.keys()


def test_the_words_of_a_summary_are_printed_on_one_line(run, capsys):
    summary = RunFolder(run).summary()
    (run / SUMMARY).write_text(json.dumps(summary | {"net": "a\x1b[31m\nonebit train: forged"}))
    code, out, _ = call(capsys, "train", "--resume", str(run))
    assert code == 0
    assert out.startswith(r"a\x1b[31m\nonebit train: forged on digits: top-1 ")
    for key in summary.keys() - {"seed", "updates", "test_loss"}:
        (run / SUMMARY).write_text(json.dumps({k: v for k, v in summary.items() if k != key}))
        assert call(capsys, "train", "--resume", str(run), "--quiet")[0] == 0, key
        assert RunFolder(run).summary().keys() == summary.keys(), key


@pytest.mark.parametrize(
    "line",
    ["{%s}", '{"stage": [], "epoch": 1}', '{"stage": 1, "epoch": 1e999}', '{"stage": 0, "epoch": 1}',
     '{"stage": 1, "epoch": -1}', '{"a": ' + DEEP + "}", '{"stage": true, "epoch": 1}', "{}"],
)  # fmt: skip
def test_metrics_of_which_nothing_can_be_read(run, line):
    metrics = run / METRICS
    metrics.write_text(line + "\n")
    assert RunFolder(run).place() == (1, 0)
    metrics.write_text('{"stage": 2, "epoch": 3}\n')
    assert RunFolder(run).place() == (2, 3)


def test_records_that_are_none_are_dropped_at_resume(run):
    metrics = run / METRICS
    whole = metrics.read_text()
    strange = ["[]", DEEP, '{"step": 1%s}' % ("0" * 400), '{"step": "1"}', '{"kind": "step"}', '{"step": 1e999}']
    metrics.write_text("".join(f"{line}\n" for line in strange) + whole + '{"kind": "step", "st')
    small_run(run, epochs=1, resume=True)
    assert metrics.read_text() == whole


def test_other_files_with_deep_json(tmp_path):
    (tmp_path / ".commit").write_text(DEEP)
    with pytest.raises(UserError, match=r"\.commit: not a list of files"):
        recover(tmp_path)
    (tmp_path / "plan.json").write_text(DEEP)
    with pytest.raises(UserError, match="not a plan"):
        stored(tmp_path)


def shown(run, **changes):
    """A change of what the file says, as text."""
    return json.dumps(json.loads((run / ENVIRONMENT).read_text()) | changes)


@pytest.mark.parametrize(
    "text",
    [
        "[]", "7", "null", "", "{", "{}", DEEP, '{"cpu": ' + DEEP + "}", "\udcff", '{"cpu": "x", "threads": 1}',
        {"packages": []}, {"packages": {}}, {"packages": "torch"}, {"packages": None}, {"cpu": 7}, {"threads": "x"},
        {"commit": []},
    ],
    ids=range(17),
)  # fmt: skip
def test_an_environment_that_is_none_makes_no_record(run, text):
    (run / ENVIRONMENT).write_text(text if isinstance(text, str) else shown(run, **text), errors="surrogateescape")
    with pytest.raises(UserError, match=f"^{run}: its {ENVIRONMENT}, {METRICS} or {SUMMARY} is not one"):
        record_of(run, "digits")


@pytest.mark.parametrize(
    "line",
    [
        "[]", "7", "", "{", "{}", DEEP, '{"kind": ' + DEEP + "}", "\udcff", '{"kind": "kernels"}',
        '{"kind": "kernels", "layers": [1]}', '{"kind": "kernels", "layers": {"a": 1}}',
        '{"kind": "kernels", "layers": {"a": {}}}', '{"kind": "epoch", "loss_s": "x"}',
        '{"kind": "epoch", "loss_s": []}', '{"kind": "epoch", "loss_s": 1%s}' % ("0" * 400), '{"kin',
    ],
    ids=range(16),
)  # fmt: skip
def test_metrics_that_are_none_make_no_record(run, line):
    metrics = run / METRICS
    assert record_of(run, "digits").curves["epoch"] == [1]
    for text in (f"{line}\n{metrics.read_text()}", f"{metrics.read_text()}{line}\n"):
        metrics.write_text(text, errors="surrogateescape")
        with pytest.raises(UserError, match=f"^{run}: its {ENVIRONMENT}, {METRICS} or {SUMMARY} is not one"):
            record_of(run, "digits")


def test_a_summary_that_lacks_something_makes_no_record(run):
    summary = RunFolder(run).summary()
    for changed in ({k: v for k, v in summary.items() if k != "seed"}, summary | {"test_top1": 101}):
        (run / SUMMARY).write_text(json.dumps(changed))
        with pytest.raises(UserError, match=f"^{run}: its "):
            record_of(run, "digits")


@pytest.mark.parametrize("name", [ENVIRONMENT, METRICS])
def test_files_that_are_not_there_make_no_record(run, name):
    (run / name).unlink()
    with pytest.raises(UserError, match=f"^{run}: {name}: No such file"):
        record_of(run, "digits")
    os.mkfifo(run / name)
    with nobody_waits(run / name), pytest.raises(UserError, match=f"^{run}: {name}: not a regular file"):
        record_of(run, "digits")


HOLD = """
import sys
from pathlib import Path
from onebit.training.locks import Lock
lock = Lock(Path(sys.argv[1]))
print(lock.take(), flush=True)
sys.stdin.read()
"""
ASK = """
import sys
from pathlib import Path
from onebit.training.locks import Lock
print(Lock(Path(sys.argv[1])).is_busy())
"""


def elsewhere(path):
    """Whether another process finds it busy."""
    return (
        subprocess.run([sys.executable, "-c", ASK, path], capture_output=True, text=True, check=True).stdout
        == "True\n"
    )


def test_one_holder_in_a_process(tmp_path):
    path = tmp_path / "lock"
    one, other = Lock(path), Lock(tmp_path / "." / "lock")
    assert not one.is_busy()
    assert not path.exists()
    assert one.take()
    assert one.take()
    assert not one.is_busy()
    assert other.is_busy()
    assert not other.take()
    other.release()  # of what it does not hold
    (tmp_path / "link").symlink_to(path)
    assert Lock(tmp_path / "link").is_busy()
    assert elsewhere(path), "whoever asked in this process has not let it go"
    one.release()
    one.release()
    assert not other.is_busy()
    assert not elsewhere(path)
    assert other.take()
    assert elsewhere(path)
    other.release()


def test_one_holder_of_all_processes(tmp_path):
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdin=-1, stdout=-1, text=True) as process:
        try:
            assert process.stdout.readline() == "True\n"
            lock = Lock(path)
            assert lock.is_busy()
            assert not lock.take()
            assert lock.is_busy()
        finally:
            process.kill()
    assert not lock.is_busy()
    assert lock.take()
    lock.release()


def test_a_worker_that_was_forked_holds_nothing(tmp_path):
    """It outlives the process that trained, by seconds, where that was killed."""
    path = tmp_path / "lock"
    lock = Lock(path)
    assert lock.take()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.read(reader, 1)
        os._exit(0)
    try:
        assert elsewhere(path)
        lock.release()
        assert not elsewhere(path)
    finally:
        os.write(writer, b"x")
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


def test_two_runs_in_one_process_share_no_folder(tmp_path):
    one, other = RunFolder(tmp_path), RunFolder(tmp_path)
    one.open()
    assert other.is_busy()
    with pytest.raises(UserError, match="another process is training there"):
        other.open()
    other.close()
    assert elsewhere(tmp_path / LOCK)
    with pytest.raises(UserError, match="another process is training there"):
        small_run(tmp_path, epochs=1)
    assert elsewhere(tmp_path / LOCK)
    one.close()
    assert not elsewhere(tmp_path / LOCK)


def test_two_comparisons_share_no_folder(tmp_path):
    from onebit.commands.compare import held

    with held(tmp_path), pytest.raises(UserError, match="at work on this comparison"), held(tmp_path):
        pass
    with held(tmp_path):
        pass


def test_a_lock_that_is_no_file(tmp_path):
    (tmp_path / LOCK).mkdir()
    with pytest.raises(UserError, match=f"{tmp_path / LOCK}: Is a directory"):
        RunFolder(tmp_path).open()
    assert not RunFolder(tmp_path).is_busy()
