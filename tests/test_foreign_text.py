"""Names and texts from files and folders: no terminal obeys them, and no net is trained that they would spoil."""

import ast
import json
import os
import pickle
import re
import sys
import unicodedata
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.torch import save_file

import onebit
from data_files import cifar10_binary, cifar10_python, image_folder
from onebit.console import complain, print_table, printable, say, tell
from onebit.data.catalog import load_data
from onebit.data.splits import DataSet
from onebit.errors import UserError
from onebit.report.page import folded, page, paragraph, part, section, table
from onebit.training.nets import NetSpec, pack_weights, read_weights
from terminals import Terminal
from training_runs import call

SOURCE = Path(onebit.__file__).parent
EVIL = "a\x1b]0;b\x07\x1b[31mc\nonebit train: all is well\rd\x9b31m\u202ee\u2028f\udce9g\x7f"
SEEN = r"a\x1b]0;b\x07\x1b[31mc\nonebit train: all is well\rd\x9b31m\u202ee\u2028f\udce9g\x7f"


@given(st.text(st.characters(codec=None)))
@example(EVIL)
@example("é日本 naïve ½")
def test_printable_text_is_one_line_of_plain_characters(text):
    shown = printable(text)
    shown.encode()
    assert len(shown.splitlines()) <= 1
    assert not [c for c in shown if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"}]
    if text.isprintable():
        assert shown == text


def test_whatever_is_printed_is_printable(capsys):
    tell(EVIL, "next", before="\x1b[32mours\x1b[0m ")
    say(EVIL)
    complain(f"onebit {EVIL}", EVIL)
    print_table(EVIL, ["head"], [["two\nlines"], [EVIL.replace("\n", "")]])
    out, err = capsys.readouterr()
    assert out.startswith(f"\x1b[32mours\x1b[0m {SEEN}\nnext\n")
    rest = out.removeprefix("\x1b[32mours\x1b[0m ")
    assert not [c for c in rest if c != "\n" and not c.isprintable()]
    assert err == f"{SEEN}\nonebit {SEEN}: {SEEN}\n"
    shown = [line.strip("│ ") for line in out.splitlines()]
    assert {"two", "lines", SEEN.replace("\\n", "")} <= set(shown)


BAR = f"""
from onebit.console import Progress, console
from onebit.training.watching import LiveDisplay
with Progress({EVIL!r}, 10) as progress:
    progress.say({EVIL!r})
display = LiveDisplay()
display.stage({EVIL!r}, 0, 1, 1)
display.close()
"""


def test_bars_are_printable_too():
    code, shown = Terminal(command=[sys.executable, "-c", BAR], columns=300).end()
    assert code == 0
    assert shown.count(SEEN) >= 3
    for raw in ("\x1b]0;", "\x1b[31m", "\x9b", "\u202e", "\u2028"):
        assert raw not in shown


def test_nothing_is_printed_past_the_console():
    """Where foreign text is made printable, and nobody has to think of it."""
    calls = {}
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        names = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        direct = sum(isinstance(f, ast.Name) and f.id == "print" for f in names)
        stream = sum(isinstance(f, ast.Attribute) and f.attr in {"write", "writelines"} and ".std" in ast.unparse(f)
                     for f in names)  # fmt: skip
        if direct + stream:
            calls[path.name] = direct + stream
    assert calls.keys() == {"console.py"}


def test_an_error_is_one_line_whatever_is_in_it(tmp_path, capsys):
    name = EVIL.replace("/", "")
    for words in (["inspect", name], ["eval", name], [name], ["run", "zoo:digits-w1a1", name], ["train", name]):
        code, out, err = call(capsys, *words)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1, words
        assert SEEN in err
    file, foreign = tmp_path / "net.safetensors", EVIL.replace("\udce9", "")
    save_file({foreign: torch.zeros(1)}, file, {"onebit": json.dumps({foreign: 1})})
    for command in ("export", "eval", "inspect"):
        code, out, err = call(capsys, command, str(file))
        assert (code, out, err.count("\n"), err.count("\x1b")) == (2, "", 1, 0)


def test_a_page_is_printable_and_no_tags():
    text = f"<script>{EVIL}"
    safe = f"&lt;script&gt;{SEEN}"
    made = [page(text, []), section(text, "x"), part(text, "x"), paragraph(text)]
    made += [table([text], [[text]]), folded(text, "x")]
    for html in made:
        assert safe in html
        assert not re.search(r"[^\n -~]", html.partition("</style>")[2] or html)
    alone = [
        path.name
        for path in (SOURCE / "report").glob("*.py")
        if re.search(r"\bhtml\b.*import|import html", path.read_text())
    ]
    assert alone == ["text.py"]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        (b"caf\xe9", r"'caf\\udce9' is not UTF-8 text"),
        (b"a\x1b[31mred", r"'a\\x1b\[31mred' has characters that can't be printed"),
        (b"two\nlines", r"'two\\nlines' has characters that can't be printed"),
        ("rtl\u202e".encode(), r"'rtl\\u202e' has characters that can't be printed"),
    ],
)
def test_a_class_folder_that_no_checkpoint_can_name(tmp_path, name, wrong, capsys):
    data, run = tmp_path / "data", tmp_path / "run"
    image_folder(data, classes=2)
    for part_ in ("train", "val"):
        (data / part_ / "n00000001").rename(data / part_ / os.fsdecode(name))
    with pytest.raises(UserError, match=rf"train: the class name {wrong}: rename that folder"):
        load_data("imagefolder", str(data))
    code, out, err = call(capsys, "train", "--data", "imagefolder", "--data-dir", str(data), "--out", str(run))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert not run.exists()


def test_a_class_folder_of_another_script_is_kept(tmp_path):
    image_folder(tmp_path, classes=2)
    for part_ in ("train", "val"):
        (tmp_path / part_ / "n00000001").rename(tmp_path / part_ / "été 日本")
    assert load_data("imagefolder", str(tmp_path)).class_names == ["n00000000", "été 日本"]


def test_class_names_from_other_sources(tmp_path):
    folder, _ = cifar10_python(tmp_path / "python")
    names = [b"a\x1b[31m", *(b"class%d" % n for n in range(9))]
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}, 2))
    folder = cifar10_binary(tmp_path / "binary")
    (folder / "batches.meta.txt").write_text("\n".join(["a\x1b[31m", *(f"class{n}" for n in range(9))]))
    for layout in ("python", "binary"):
        with pytest.raises(UserError, match=r"the class name 'a\\x1b\[31m' has characters that can't be printed"):
            load_data("cifar10", str(tmp_path / layout))
    with pytest.raises(UserError, match="more than 1024 characters"):
        DataSet(None, None, ["x" * 1025], (3, 8, 8), (0.5,) * 3, (0.5,) * 3)
    DataSet(None, None, ["x" * 1024, ""], (3, 8, 8), (0.5,) * 3, (0.5,) * 3)


@pytest.mark.parametrize("flag", ["--data-dir", "--teacher", "--initial-checkpoint"])
def test_a_path_that_the_config_of_a_run_could_not_hold(tmp_path, flag, capsys):
    code, out, err = call(capsys, "train", "--data", "digits", "--out", str(tmp_path / "run"), flag, "/x\udce9")
    line = f"onebit train: {flag}: '/x\\udce9' is not UTF-8 text, which the run's files could not hold\n"
    assert (code, out, err) == (2, "", line)
    assert not (tmp_path / "run").exists()


def test_a_folder_of_a_run_whose_checkpoints_nothing_could_read(tmp_path, capsys):
    """Tensors are opened by a library that knows paths of UTF-8 only: it would train to the end for nothing."""
    for out in ("ou\udce9t", "ou\udce9t/run"):
        code, _, err = call(capsys, "train", "--data", "digits", "--out", str(tmp_path / out))
        assert code == 2
        assert err.endswith("its path is not UTF-8 text; name another folder\n")
    assert not list(tmp_path.iterdir())


def test_a_weights_file_of_images_that_fit_no_memory(tmp_path):
    described = {"net": {"model": "wrn22", "width": 1}, "data": "digits", "num_classes": 1, "class_names": ("a",)}
    described |= {"mean": (0.5,), "deviation": (0.5,)}
    for shape in ((1, 1 << 14, (1 << 14) + 1), (1, 1 << 20, 1 << 20)):
        spec = NetSpec.model_validate(described | {"image_shape": shape})
        (tmp_path / "last.safetensors").write_bytes(pack_weights(spec.build(), spec))
        with pytest.raises(UserError, match="its images have .* numbers, and at most 268435456 are allowed"):
            read_weights(tmp_path)
    spec = NetSpec.model_validate(described | {"image_shape": (1, 1 << 14, 1 << 14)})
    (tmp_path / "last.safetensors").write_bytes(pack_weights(spec.build(), spec))
    assert read_weights(tmp_path).spec == spec


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"deviation": (1e-300,)}, "deviation"),
        ({"deviation": (1e6,)}, "deviation"),
        ({"mean": (1e300,)}, "mean"),
        ({"mean": (float("nan"),)}, "mean"),
    ],
)
def test_numbers_of_a_weights_file_with_which_no_image_is_one(keys, where):
    sound = {"net": {"model": "wrn22"}, "data": "digits", "num_classes": 1, "class_names": ("a",)}
    sound |= {"image_shape": (1, 8, 8), "mean": (0.5,), "deviation": (1e-6,)}
    NetSpec.model_validate(sound)
    with pytest.raises(ValueError, match=where):
        NetSpec.model_validate(sound | keys)
