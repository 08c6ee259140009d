"""Handling of SIGTERM and Ctrl-C in commands that serve."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Run the block on the main thread until it ends, or until SIGTERM or Ctrl-C.

    An exception ends the block, because a handler that sets an event could wait for a lock of the
    interrupted thread. After the block a second signal ends the program at once.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
