"""Conversion of termination signals into SystemExit, so that child processes are ended."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from gatewise.errors import interruption


@contextmanager
def exit_on_termination() -> Iterator[None]:
    """Raise SystemExit on SIGTERM and on SIGHUP, which a closed terminal sends.

    It applies only in the main thread, where Python runs signal handlers, and only to signals
    without another handler. Therefore a nested block does nothing.
    """

    def raise_exit(signal_number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + signal_number)  # the status that shells give to a killed process

    previous_handlers = {}
    if threading.current_thread() is threading.main_thread():
        for signal_number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(signal_number) is signal.SIG_DFL:
                previous_handlers[signal_number] = signal.signal(signal_number, raise_exit)
    try:
        yield
    except Exception as error:
        exit_error = interruption(error)
        if exit_error is None:
            raise
        # A library may wrap the exit in an error of its own. Raise the exit.
        raise exit_error from None
    finally:
        for signal_number, handler in previous_handlers.items():
            signal.signal(signal_number, handler)
