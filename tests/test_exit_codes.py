"""What a command that fails says, and its exit code: 1 where a machine could not do its work, 2 for a mistake."""

import errno
import os

import pytest

from onebit import commands
from onebit.errors import UserError
from training_runs import call

MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def failing(monkeypatch, error, cause=None):
    def run(arguments):
        raise error from cause

    monkeypatch.setattr("onebit.commands.zoo.run", run)


@pytest.mark.parametrize("number", [*MACHINE, errno.EACCES, errno.EISDIR], ids=errno.errorcode.get)
def test_a_full_disk_or_quota_is_no_mistake(number, monkeypatch, capsys):
    told, expected = os.strerror(number), 1 if number in MACHINE else 2
    error = OSError(number, told, "a file")
    failing(monkeypatch, error)
    assert call(capsys, "zoo") == (expected, "", f"onebit zoo: a file: {told}\n")
    failing(monkeypatch, UserError("in our words"), error)
    assert call(capsys, "zoo") == (expected, "", "onebit zoo: in our words\n")


def test_of_several_processes_it_is_said_which(monkeypatch, capsys):
    failing(monkeypatch, UserError("no"))
    for rank, who in (("0", "onebit zoo"), ("3", "onebit zoo (process 3)")):
        monkeypatch.setenv("RANK", rank)
        assert call(capsys, "zoo") == (2, "", f"{who}: no\n")


def test_what_follows_two_dashes_is_no_option(capsys):
    code, _, err = call(capsys, "run", "zoo:digits-w1a1", "--", "--strange.png")
    assert (code, err) == (2, "onebit run: --strange.png: no such file\n")
    code, _, err = call(capsys, "run", "zoo:digits-w1a1", "--strange.png")
    assert (code, err.partition(";")[0]) == (2, "onebit run: there is no --strange.png")


def test_help_of_a_command_whatever_follows(capsys):
    for words in (["help", "zoo"], ["help", "zoo", "digits-w1a1"]):
        code, out, err = call(capsys, *words)
        assert (code, err) == (0, "")
        assert out.startswith(f"usage: onebit {words[1]}")
    code, out, _ = call(capsys, "help")
    assert (code, all(name in out for name in commands.COMMANDS)) == (0, True)
