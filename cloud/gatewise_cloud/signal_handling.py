"""SIGTERM handled as Ctrl-C: the program finishes its work and ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Run the block until it ends, or until SIGTERM or Ctrl-C. For the main thread.

    An exception ends the block (not an event that a handler sets: setting it may meet the very
    lock that the interrupted thread holds). After the block the former handlers are
    back, so that a second signal ends the program at once.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
