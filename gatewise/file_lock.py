"""Locks on open files against other processes, on POSIX and Windows."""

from __future__ import annotations

import importlib
from typing import Any, Final

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

_RETRIES: Final = 360
"""Number of attempts on Windows to lock a file, of 10 s each."""


def lock_file(descriptor: int, *, waits: bool = True) -> None:
    """Lock a file that is open for writing, until it is closed.

    With `waits`, wait until another process releases the lock; otherwise raise OSError.
    """
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    msvcrt: Any = importlib.import_module("msvcrt")
    if not waits:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        return
    for attempt in range(_RETRIES):
        try:
            msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)
            return
        except OSError:
            if attempt == _RETRIES - 1:
                raise
