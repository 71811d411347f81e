"""Processes that tests start: none of them outlives its test, however that ends (see conftest.py)."""

import subprocess

SECONDS = 10  # for a child to end as it does when it is asked to: torchrun takes its workers along

_CHILDREN = []


def child(words, **options):
    """A process of its own."""
    process = subprocess.Popen(words, **options)
    _CHILDREN.append(process)
    return process


def end_children():
    """End those that still run; close what is left of the pipes to all."""
    while _CHILDREN:
        process = _CHILDREN.pop()
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
