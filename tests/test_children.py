"""tests/children.py: what a test has started ends with it."""

import signal
import subprocess
import sys

from children import child, end_children

IGNORES = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("here", flush=True)
time.sleep(60)
"""


def test_children_are_ended(monkeypatch):
    monkeypatch.setattr("children.SECONDS", 0.1)
    asleep = child(["sleep", "60"])
    stubborn = child([sys.executable, "-c", IGNORES], stdout=subprocess.PIPE, text=True)
    assert stubborn.stdout.readline() == "here\n"
    done = child([sys.executable, "-c", ""], stdin=subprocess.PIPE)
    assert done.wait(timeout=60) == 0
    end_children()
    assert [process.returncode for process in (asleep, stubborn, done)] == [-signal.SIGTERM, -signal.SIGKILL, 0]
    assert stubborn.stdout.closed
    assert done.stdin.closed
    end_children()  # they are forgotten


def test_every_test_has_that_done_for_it(request):
    assert "_no_child_left" in request.fixturenames
