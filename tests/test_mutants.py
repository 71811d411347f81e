"""tools/mutants: every bug of the campaign still has its place, and a campaign tells which the tests don't see."""

import ast
import contextlib
import re
from pathlib import Path

import pytest

from tools.mutants import __main__ as program
from tools.mutants import running
from tools.mutants.bugs import Bug, BugError, read_bugs
from tools.mutants.places import Changed, Tree, c_symbols, python_symbols
from tools.mutants.running import Trial, Verdict

ROOT = Path(__file__).parents[1]
BUGS = read_bugs()


@pytest.fixture(scope="module")
def tree():
    return Tree(ROOT)


def test_every_bug_applies(tree):
    """Its old text stands once in its symbol; in Python what comes of it compiles."""
    wrong = []
    for bug in BUGS:
        try:
            change = tree.change(bug)
        except BugError as error:
            wrong.append(str(error))
        else:
            assert change.content != tree.sources[change.path]
    assert wrong == []


def test_every_bug_names_tests_that_there_are():
    functions = {}
    for bug in BUGS:
        for test in bug.tests:
            file, _, function = test.partition("::")
            if file not in functions:
                tree = ast.parse((ROOT / file).read_text())
                functions[file] = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert not function or function in functions[file], f"{bug.name}: {test}"


def test_files_of_bugs_stay_short():
    files = sorted((ROOT / "tools" / "mutants" / "bugs").glob("*.toml"))
    assert files
    for path in files:
        assert len(path.read_text().splitlines()) <= 150, f"{path} wants splitting"


SOURCE = '''
HERE = 1; "ü"; THERE = 2


class A:
    """ü"""

    size: int = 3

    def f(self):
        return "ü", 4


def f():
    return 5
'''


def test_symbols_of_python():
    found = {name: SOURCE[start:end] for name, start, end in python_symbols(SOURCE)}
    assert found["THERE"] == "THERE = 2"
    assert found["A.size"] == "size: int = 3"
    assert found["A.f"].endswith('return "ü", 4')
    assert found["f"] == "def f():\n    return 5"
    assert set(found) == {"HERE", "THERE", "A", "A.size", "A.f", "f"}


C_SOURCE = """
/* int no(void) { } */
#define NEITHER(x) { x }
enum { ONE = 1, TWO /* a brace: } */ = 1 << 2, THREE };
typedef struct { int a; } thing;
static const char *words[] = {"{", "}"};
static int f(int (*g)(int), int x) {
    if (x) { return g('{'); }
    return 0;
}
const thing table = {.a = TWO};
int g(void) { return 1; }
"""


def test_symbols_of_c():
    found = {name: C_SOURCE[start:end] for name, start, end in c_symbols(C_SOURCE)}
    assert set(found) == {"ONE", "TWO", "THREE", "words", "f", "table", "g"}
    assert "1 << 2" in found["TWO"]
    assert "ONE" not in found["TWO"]
    assert found["f"].strip().startswith("static int f")
    assert found["f"].endswith("return 0;\n}")
    assert found["g"].strip() == "int g(void) { return 1; }"


def a_bug(**changes):
    return Bug("a-bug", "here", "sgn", "add_(0.5)", "sub_(0.5)", ("tests/test_projection.py",))._replace(**changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"symbol": "nowhere"}, "there is no nowhere"),
        ({"old": "not there"}, "sgn has its old text 0 times, not once"),
        ({"old": "s"}, "times, not once"),
        ({"new": "add_("}, "no Python"),
    ],
)
def test_a_bug_that_does_not_apply(tree, changes, said):
    with pytest.raises(BugError, match=re.escape(said)):
        tree.change(a_bug(**changes))


def test_names_that_are_used_twice(tmp_path):
    entry = 'tests = ["a"]\n[one]\nsymbol = "f"\nold = "1"\nnew = "2"\n'
    (tmp_path / "a.toml").write_text(entry)
    assert [bug.name for bug in read_bugs(tmp_path)] == ["one"]
    (tmp_path / "b.toml").write_text(entry)
    with pytest.raises(BugError, match="one"):
        read_bugs(tmp_path)


@pytest.mark.parametrize("entry", ['symbol = "f"\nold = "1"', 'symbol = "f"\nold = "1"\nnew = "1"', "x = 1"])
def test_entries_that_say_too_little(entry, tmp_path):
    (tmp_path / "a.toml").write_text(f'tests = ["a"]\n[one]\n{entry}\n')
    with pytest.raises(BugError, match="one: "):
        read_bugs(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [("x = 1\n", "x: an entry has"), ("[one\n", "a.toml: "), ('tests = ["a"]\n', "there are no bugs")],
)
def test_files_that_hold_no_bugs(content, said, tmp_path):
    (tmp_path / "a.toml").write_text(content)
    with pytest.raises(BugError, match=said):
        read_bugs(tmp_path)


def called(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["python -m tools.mutants", *words])
    return program.main()


def test_bugs_of_another_folder(tmp_path, monkeypatch, capsys):
    entry = 'tests = ["tests/test_projection.py"]\n[mine]\nsymbol = "sgn"\nold = "add_(0.5)"\nnew = "sub_(0.5)"\n'
    (tmp_path / "new.toml").write_text(entry)
    assert called(monkeypatch, "--bugs", str(tmp_path), "--list") == 0
    assert capsys.readouterr().out.split() == ["new", "mine", "sgn"]
    tried = []
    monkeypatch.setattr(program, "campaign", lambda bugs, *_: tried.extend(bugs) or [Verdict(bugs[0], True, 1.0)])
    monkeypatch.setattr(program.signal, "signal", lambda *_: None)
    assert called(monkeypatch, "--bugs", str(tmp_path), "--only", "m*") == 0
    assert tried == [a_bug(name="mine", area="new")]
    assert "1 of 1 killed: 100.0 %" in capsys.readouterr().out
    assert called(monkeypatch, "--bugs", str(tmp_path), "--only", "sgn-of-zero-is-minus") == 2
    assert called(monkeypatch, "--bugs", str(tmp_path / "nowhere")) == 2
    assert "nowhere: there are no bugs in it" in capsys.readouterr().err


class Ended:
    """A copy whose tests have ended in a known way."""

    def __init__(self, code, said=""):
        self.outcome = code, said

    def changed(self, _):
        return contextlib.nullcontext()

    def engine(self):
        return b""

    def pytest(self, *_):
        return self.outcome


FAILED = "FAILED tests/test_a.py::test_b[c d] - assert 1 == 2"


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (Ended(0), (False, "", False)),
        (Ended(1, FAILED), (True, "tests/test_a.py::test_b[c d]", False)),
        (Ended(2, "ERROR tests/test_a.py - SyntaxError"), (True, "", False)),
        (Ended(-11), (True, "", False)),  # a crash
        (Ended(None), (False, "", True)),
    ],
)
def test_what_becomes_of_a_bug(ended, expected):
    verdict = running._try(ended, Trial(a_bug(), Changed(Path("src/onebit/projection.py"), "")))
    assert (verdict.killed, verdict.failed, verdict.timed_out) == expected


def test_what_takes_too_long_is_not_counted_as_seen(capsys):
    """It has a word of its own: whether the tests see it is not known."""
    verdict = Verdict(a_bug(), False, 600.0, timed_out=True)
    program.tell(verdict)
    assert program.report([verdict, *[Verdict(a_bug(), True, 1.0)] * 18]) == 1
    out = capsys.readouterr().out
    assert "TOO LONG  a-bug\n" in out
    assert "18 of 19 killed" in out
    assert "too long: a-bug: its tests had not ended after 600 s; it counts as not seen" in out
    assert "survived" not in out.lower()


def test_a_rate_below_95_percent_is_a_failure(capsys):
    verdicts = [Verdict(a_bug(name=str(number)), number > 0, 1.0) for number in range(20)]
    assert program.report(verdicts) == 0
    assert program.report(verdicts[:19]) == 1
    out = capsys.readouterr().out
    assert "19 of 20 killed: 95.0 %" in out
    assert "survived: 0: in sgn, 'add_(0.5)' became 'sub_(0.5)'" in out


def test_choices():
    assert [bug.name for bug in program.chosen(BUGS, ["sgn-of-*"], None)] == ["sgn-of-zero-is-minus"]
    with pytest.raises(BugError, match="no such bug"):
        program.chosen(BUGS, ["nothing"], None)
    with pytest.raises(BugError, match="projection"):
        program.chosen(BUGS, None, ["nowhere"])
    with pytest.raises(BugError, match="no bug in common"):
        program.chosen(BUGS, ["sgn-of-*"], ["native"])
