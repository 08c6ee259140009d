"""Handling of termination signals in commands."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from gatewise.errors import find_interruption


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Run the block on the main thread until it ends, or until SIGTERM or Ctrl-C.

    The signal handler raises an exception that ends the block. A handler that set an event could
    wait forever for a lock that the interrupted thread holds. After the block, another signal ends
    the program immediately.
    """
    old_handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, old_handler)


@contextmanager
def exit_on_termination() -> Iterator[None]:
    """Raise SystemExit on SIGTERM and on SIGHUP, which a closed terminal sends.

    Only the main thread may set handlers, and a signal that has another handler keeps it. A nested
    block therefore changes nothing.
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
    except Exception as error:  # not SystemExit, which is only a BaseException
        exit_error = find_interruption(error)
        if exit_error is None:
            raise
        # a library has wrapped the exit in an error of its own
        raise exit_error from None
    finally:
        for signal_number, handler in previous_handlers.items():
            signal.signal(signal_number, handler)
