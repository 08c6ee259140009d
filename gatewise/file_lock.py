"""File locks between processes, on POSIX and Windows."""

from __future__ import annotations

import importlib
from typing import Any, Final

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

#: Number of attempts to lock a file on Windows. Each takes up to 10 s, and all take up to an hour.
_MAX_ATTEMPTS: Final = 360


def lock_file(descriptor: int, *, waits: bool = True) -> None:
    """Lock a file that is open for writing; closing the file releases the lock.

    If another process holds the lock, wait for it with `waits`, and otherwise raise OSError.
    """
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    msvcrt: Any = importlib.import_module("msvcrt")
    if not waits:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        return
    for attempt in range(_MAX_ATTEMPTS):
        try:
            msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)
            return
        except OSError:
            if attempt == _MAX_ATTEMPTS - 1:
                raise
