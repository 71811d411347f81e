"""tools/mutants: every bug of the campaign still has its place, and a campaign tells which the tests don't see."""

import ast
import re
from pathlib import Path

import pytest

from tools.mutants import __main__ as program
from tools.mutants.bugs import Bug, BugError, read_bugs
from tools.mutants.places import Tree, c_symbols, python_symbols
from tools.mutants.running import Verdict

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
