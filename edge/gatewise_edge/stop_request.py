"""Requests to stop by SIGTERM or Ctrl-C, after which begun instances still get their answers."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self


class StopInterrupt(BaseException):
    """A stop was requested; raised only within :meth:`StopRequest.interrupts`."""


class StopRequest:
    """A context manager for the main thread that records a request to stop.

    An exception from a signal handler may come between any two steps of a program, and could lose a
    value that was just read. Therefore the handler raises only within :meth:`interrupts`, which
    encloses waits that can lose nothing. Other code checks :attr:`signal_name`. A second signal
    ends the program at once.

    Attributes
    ----------
    signal_name : str
        Name of the received signal; empty while there is none.
    """

    def __init__(self) -> None:
        self.signal_name = ""
        self._may_interrupt = False
        self._former_handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            former_handler = signal.signal(signal_number, self._on_signal)
            self._former_handlers[signal_number] = former_handler
        return self

    def __exit__(self, *_: object) -> None:
        self._restore_handlers()

    @contextmanager
    def interrupts(self) -> Iterator[None]:
        """Let a signal raise StopInterrupt within the block."""
        self._may_interrupt = True
        try:
            if self.signal_name:
                raise StopInterrupt
            yield
        finally:
            self._may_interrupt = False

    def pause(self, seconds: float) -> None:
        """Sleep; a request to stop ends the sleep with StopInterrupt."""
        with self.interrupts():
            time.sleep(max(0.0, seconds))

    def _on_signal(self, signal_number: int, frame: FrameType | None) -> None:
        self.signal_name = signal.Signals(signal_number).name
        self._restore_handlers()  # so that a second signal ends the program
        if self._may_interrupt:
            raise StopInterrupt

    def _restore_handlers(self) -> None:
        while self._former_handlers:
            signal.signal(*self._former_handlers.popitem())
