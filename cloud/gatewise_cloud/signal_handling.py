"""Handling of SIGTERM and Ctrl-C in commands that serve."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Run the block on the main thread until it ends, or until SIGTERM or Ctrl-C.

    The signal handler raises an exception that ends the block. It does not set an event, because it
    could wait forever for a lock that the interrupted thread holds. After the block, another signal
    ends the program immediately.
    """
    old_handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, old_handler)
