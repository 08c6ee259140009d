"""Convert the termination signals of POSIX to SystemExit, so that child processes are ended."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from gatewise.errors import find_interruption


@contextmanager
def exit_on_termination() -> Iterator[None]:
    """Raise SystemExit on SIGTERM and on SIGHUP, which a closed terminal sends.

    It works only in the main thread, where Python runs signal handlers, and only to signals
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
    except Exception as error:  # SystemExit itself is no Exception and passes
        exit_error = find_interruption(error)
        if exit_error is None:
            raise
        # a library has wrapped the exit in an error of its own
        raise exit_error from None
    finally:
        for signal_number, handler in previous_handlers.items():
            signal.signal(signal_number, handler)
