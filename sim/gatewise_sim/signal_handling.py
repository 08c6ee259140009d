"""Turn SIGTERM and a closed terminal into SystemExit, so that child processes are ended."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from gatewise.errors import interruption


@contextmanager
def exit_on_termination() -> Iterator[None]:
    """Let SIGTERM and a closed terminal unwind the stack, so that every process is ended.

    Only in the main thread, where signals arrive, and where nothing else listens to them: an
    inner block of another such block does nothing.
    """

    def leave(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, leave)
    try:
        yield
    except Exception as error:
        ended = interruption(error)
        if ended is None:
            raise
        # An error that the exit causes in a library does not replace the exit.
        raise ended from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
