"""One style for every command, those that come later included: through the real entry point, as people run them."""

import importlib
import re
import subprocess
import sys

import pytest
from PIL import Image

from onebit.commands import COMMANDS, main
from onebit.comparison import running
from onebit.modelfile import write_model
from packed_nets import small_model
from terminals import ONEBIT, Terminal, environment, piped, shown_here, unread, unread_here
from training_runs import call, small_flags, small_run, trained_here

RED = "\x1b[31m"
# As processes of their own, as people run them; the others in this process, which has imported torch already. What
# is the same for all commands is tried in each, in one way or the other.
ALONE = {"inspect", "run", "completion"}


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    small_run(folder, epochs=1)
    assert main(["export", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    path = tmp_path_factory.mktemp("packed") / "small.onebit"
    write_model(small_model(), path)
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_and_fits(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    code, out, err = call(capsys, command, "--help")
    assert (code, err) == (0, "")
    assert f"onebit {command}" in out.split("examples:\n")[1]
    assert "--quiet" in out
    assert max(map(len, out.splitlines())) <= 120
    assert "\x1b" not in out
    assert call(capsys, "help", command) == (0, out, "")
    if command in ALONE:
        assert piped(command, "--help", COLUMNS="120") == (0, out, "")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_option_is_one_line_with_the_nearest_known_one(command, capsys):
    for option in ("--quite", "--quite=3"):
        code, out, err = call(capsys, command, option)
        line = f"onebit {command}: there is no --quite; did you mean --quiet? see onebit {command} --help\n"
        assert (code, out, err) == (2, "", line)
    if command in ALONE:
        assert piped(command, "--quite") == (2, "", line)


@pytest.mark.parametrize("command", COMMANDS)
def test_colours_are_for_terminals(command):
    code, shown = Terminal(command, "--quite").end() if command in ALONE else shown_here(command, "--quite")
    assert (code, shown.startswith(f"{RED}onebit {command}:\x1b[0m there is no --quite")) == (2, True)


@pytest.mark.parametrize("wish", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_colours_are_for_those_who_want_them(wish):
    code, shown = Terminal("inspect", "--quite", **wish).end()
    assert (code, "\x1b" in shown) == (2, False)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_has_had_enough(command):
    assert (unread if command in ALONE else unread_here)(command, "--help") == (141, "")


# Every command at real work, a little of it.
WORK = {
    "demo": ["--epochs", "1", "-o", "OUT"],
    "train": [*small_flags(epochs=1), "--out", "OUT"],
    "eval": ["RUN"],
    "export": ["RUN"],
    "run": ["RUN/net.onebit", "IMAGE"],
    "inspect": ["FILE"],
    "bench": ["FILE", "--rounds", "1", "--seconds", "0.01"],
    "zoo": [],
    "report": ["RUN", "-o", "OUT.html"],
    "compare": [*small_flags(epochs=1), "--methods", "float", "--seeds", "0", "--lrs", "0.1", "--out", "OUT"],
    "reproduce": ["figure-losscurve", "--budget", "smoke", "-o", "OUT"],
    "doctor": [],
    "completion": ["bash"],
}
BARS = {"demo", "eval", "run", "bench", "report", "reproduce"}  # while these are at work


def _at_work(command, run_folder, packed, out):
    Image.new("L", (9, 9)).save(run_folder / "image.png")
    names = {"RUN": run_folder, "IMAGE": run_folder / "image.png", "FILE": packed, "OUT": out}
    return [command, *(re.sub("RUN|IMAGE|FILE|OUT", lambda found: str(names[found[0]]), w) for w in WORK[command])]


def test_all_commands_are_tried_at_work():
    assert set(WORK) == set(COMMANDS)


@pytest.mark.parametrize("command", sorted(set(WORK) - {"train", "compare"}))  # which have their own below
def test_at_work_in_a_terminal(command, run_folder, packed, tmp_path, capsys, monkeypatch):
    """Bars while it goes, and nothing left of them when it is done; the same result as in a pipe."""
    monkeypatch.setattr(running, "_start", trained_here)  # what `reproduce` trains
    words = _at_work(command, run_folder, packed, tmp_path / "out")
    alone = command in ALONE
    code, shown = Terminal(*words, columns=120).end() if alone else shown_here(*words, columns=120)
    assert code == 0, shown
    assert "Traceback" not in shown
    assert ("\x1b[?25l" in shown) == (command in BARS), "the cursor is hidden while there is a bar"
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h")
    code, out, err = piped(*words) if alone else call(capsys, *words)
    assert code == 0, err
    assert "\x1b" not in out + err
    last = out.splitlines()[-1] if command != "run" else out.split()[0]
    assert last in shown


@pytest.mark.parametrize("words", [["export", "RUN"], ["eval", "RUN"], ["inspect", "FILE"], ["doctor"],
                                   ["completion", "bash"], ["--help"], ["--version"]], ids=" ".join)  # fmt: skip
def test_a_result_that_nobody_reads(words, run_folder, packed):
    alone = words[0] in ALONE | {"--help", "--version"}
    assert (unread if alone else unread_here)(*_named(words, run_folder, packed)) == (141, "")


@pytest.mark.parametrize("command", ["demo", "run", "bench", "report", "train", "compare"])
def test_the_result_of_work_that_nobody_reads(command, run_folder, packed, tmp_path, monkeypatch):
    monkeypatch.setattr(running, "_start", trained_here)
    words = [*_at_work(command, run_folder, packed, tmp_path / "out"), "--quiet"]
    assert (unread if command in ALONE else unread_here)(*words) == (141, "")


def test_the_first_line_only(packed):
    """`onebit ... 2>&1 | head -1`, in a shell."""
    for words in (f"inspect {packed} --graph", "train --list-recipes", "train --help", "train --recipe x"):
        line = f"{ONEBIT[0]} {words} 2>&1 | head -1"
        done = subprocess.run(
            ["bash", "-c", line], env=environment(), capture_output=True, text=True, check=False, timeout=120
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count("\n") == 1


def test_closed_streams(packed):
    """`>&-`, as some services start their processes."""
    for closing in (">&-", "2>&-", ">&- 2>&-"):
        line = f"{ONEBIT[0]} inspect {packed} {closing}"
        done = subprocess.run(
            ["bash", "-c", line], env=environment(), capture_output=True, check=False, timeout=120
        )
        assert (done.returncode, done.stderr) == (0, b"")


WAITS = """
import importlib, sys, time
import onebit.commands
name = sys.argv[1]
module = importlib.import_module(f"onebit.commands.{name}")
module.add_arguments = lambda parser: None
def run(arguments):
    print("at work", flush=True)
    time.sleep(600)
module.run = run
sys.exit(onebit.commands.entry_point())
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_is_one_line(command, capsys, monkeypatch):
    def stopped(arguments):
        raise KeyboardInterrupt

    module = importlib.import_module(f"onebit.commands.{command}")
    monkeypatch.setattr(module, "add_arguments", lambda parser: None)
    monkeypatch.setattr(module, "run", stopped)
    assert call(capsys, command) == (130, "", f"onebit {command}: stopped\n")


@pytest.mark.parametrize("command", sorted(ALONE))
def test_ctrl_c_in_a_terminal(command):
    terminal = Terminal(command, command=[sys.executable, "-c", WAITS], NO_COLOR="1")
    terminal.wait_for("at work\r\n")
    terminal.press(b"\x03")
    assert terminal.end() == (130, f"at work\r\n^Conebit {command}: stopped\r\n")


@pytest.mark.parametrize(
    ("words", "sign"),
    [(["eval", "RUN", "-b", "1"], "evaluating"), (["eval", "RUN/net.onebit", "-b", "1"], "evaluating"),
     (["export", "RUN", "--activation-bits", "8", "--out", "RUN/eight.onebit"], "calibrating")],
    ids=["run", "packed", "export"],
)  # fmt: skip
def test_ctrl_c_in_the_middle_of_real_work(words, sign, wide_run):
    before = sorted(wide_run.iterdir())
    terminal = Terminal(*_named(words, wide_run, None))
    terminal.wait_for(sign)
    terminal.press(b"\x03")
    code, shown = terminal.end()
    assert code == 130, shown
    assert shown.endswith(f"{RED}onebit {words[0]}:\x1b[0m stopped\r\n")
    assert "Traceback" not in shown
    assert "\x1b[?25h" in shown, "the cursor is there again"
    assert sorted(wide_run.iterdir()) == before


@pytest.fixture(scope="module")
def wide_run(tmp_path_factory, run_folder):
    """A net that takes its time, though nobody trained it."""
    import torch

    import onebit
    from onebit.training.nets import NetSpec, pack_weights, read_weights

    spec = read_weights(run_folder).spec
    wide = spec.model_copy(update={"net": spec.net.model_copy(update={"width": 48, "model": "wrn40"})})
    folder = tmp_path_factory.mktemp("runs") / "wide"
    folder.mkdir()
    torch.manual_seed(0)
    net = NetSpec.build(wide).eval()
    (folder / "last.safetensors").write_bytes(pack_weights(net, wide))
    (folder / "config.toml").write_text('data = "digits"\n')
    summary = onebit.export(
        net, folder / "net.onebit", torch.zeros(1, 1, 8, 8), preprocessing=onebit.Preprocessing((0.3,), (0.3,))
    )
    assert summary.rows
    return folder


BAD = {
    "missing.onebit": (None, "no such file"),
    "missing.safetensors": (None, "no such file"),
    "folder.onebit": ("", "expected"),
    "text.onebit": (b"a net, honestly\n", "not a .onebit file, or only its beginning: copy or export it again"),
    "text.safetensors": (b"weights, honestly\n", "not a "),
    "empty.onebit": (b"", "it is empty"),
    "cut.onebit": (-5, "not a .onebit file, or damaged"),
    "cut short.onebit": (-2000, "not a .onebit file, or only its beginning"),
}


@pytest.mark.parametrize("command", ["inspect", "export", "eval"])
@pytest.mark.parametrize("name", BAD)
def test_bad_files(command, name, packed, tmp_path, capsys):
    content, said = BAD[name]
    path = tmp_path / name
    if content == "":
        path.mkdir()
    elif content is not None:
        path.write_bytes(packed.read_bytes()[:content] if isinstance(content, int) else content)
    code, out, err = call(capsys, command, str(path))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"onebit {command}: {path}: ")
    assert said in err


def test_a_packed_file_is_exported_already(packed, tmp_path, capsys):
    renamed = tmp_path / "renamed.safetensors"
    renamed.write_bytes(packed.read_bytes())
    for path in (packed, renamed):
        code, _, err = call(capsys, "export", str(path))
        told = ": is exported already; `onebit inspect` shows what is in it, --to onnx, qonnx or npz writes it for "
        assert (code, err.partition(str(path))[2]) == (2, f"{told}other programs\n")


def test_a_bad_file_in_a_process(tmp_path):
    path = tmp_path / "text.onebit"
    path.write_text("a net, honestly\n")
    code, out, err = piped("inspect", str(path))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert str(path) in err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["inspect"], "onebit inspect: the following arguments are required: FILE; see onebit inspect --help"),
        (["eval", "a", "b"], "onebit eval: b: one word too many; see onebit eval --help"),
        (["eval", "a", "-x"], "onebit eval: -x: there is no such option; see onebit eval --help"),
        (["eval", "a", "--which"], "onebit eval: argument --which: expected one argument; see onebit eval --help"),
        (
            ["export", "a", "--uot=b"],
            "onebit export: there is no --uot; did you mean --out? see onebit export --help",
        ),
        (["--vresion"], "onebit: there is no --vresion; did you mean --version? see onebit --help"),
        (["evla"], "onebit evla: there is no such command; did you mean eval? see onebit --help"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_on_the_command_line(words, line, capsys):
    assert call(capsys, *words) == (2, "", f"{line}\n")


def test_without_a_command_there_is_an_overview():
    code, out, err = piped()
    assert (code, out) == (2, "")
    for command in COMMANDS:
        assert f"\n    {command}" in err
    assert "examples:" in err


def test_quiet_leaves_the_result_alone(run_folder, packed, capsys):
    for words in (["eval", "RUN"], ["inspect", "FILE"], ["export", "RUN", "--activation-bits", "8"]):
        loud, quiet = (call(capsys, *_named(words, run_folder, packed), *more) for more in ([], ["--quiet"]))
        assert loud == quiet
        assert (quiet[0], quiet[2]) == (0, "")
        assert quiet[1]
    shown = shown_here("eval", str(run_folder), "--quiet")[1]
    assert "\x1b" not in shown, "no bar"


def _named(words, run, file):
    return [word.replace("RUN", str(run)).replace("FILE", str(file)) for word in words]


@pytest.mark.parametrize(("command", "columns"), [("train", 40), ("compare", 100)])
def test_training_in_a_terminal(command, columns, tmp_path):
    """Bars while it goes, and nothing left of them when it is done."""
    words = small_flags(epochs=1) + (
        ["--methods", "float", "--seeds", "0", "--lrs", "0.1"] * (command == "compare")
    )
    terminal = Terminal(command, *words, "--out", str(tmp_path / "out"), columns=columns)
    terminal.wait_for("run" if command == "train" else "runs")
    code, shown = terminal.end()
    assert code == 0, shown
    assert "\x1b[32m" in shown, "the counts"
    assert "Traceback" not in shown
    after = shown.rpartition("\x1b[2K")[2]
    assert ("all of it is in" if command == "train" else "accuracy-bytes.svg") in after
    assert "-:--:--" not in after
