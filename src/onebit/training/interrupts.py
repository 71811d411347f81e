"""Ctrl-C and SIGTERM as a wish that the loop sees at its next step, in place of an end in the middle of one."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Self

WATCHED = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """While this context is open, the first signal is kept in `received`; a second Ctrl-C ends the process.

    With `patient`, it does not: torchrun passes on a Ctrl-C that its workers have had from the terminal already,
    and kills who does not end in time. So do others who send SIGTERM twice.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self.received = 0
        self._patient = patient
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python lets nobody set handlers
            self._before = {number: signal.signal(number, self._receive) for number in WATCHED}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.received = number
        if not self._patient and signal.SIGINT in self._before:
            signal.signal(signal.SIGINT, self._before[signal.SIGINT])  # type: ignore[arg-type]
