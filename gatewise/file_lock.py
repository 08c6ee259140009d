"""Locks on open files, which keep a second process out: POSIX's, or those of Windows."""

from __future__ import annotations

import importlib
from typing import Any, Final

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

_RETRIES: Final = 360
"""Times, of 10 s each, that Windows waits for a lock that another process holds."""


def lock_file(descriptor: int, *, waits: bool = True) -> None:
    """Lock an open file until it is closed; OSError if another process holds it.

    Parameters
    ----------
    descriptor : int
        Of a file that is open for writing.
    waits : bool, default True
        Whether to wait until the other process has closed it.
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
