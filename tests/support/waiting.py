"""Waits for conditions, with time limits for a loaded machine."""

from __future__ import annotations

import time
from collections.abc import Callable


def holds_within(
    condition: Callable[[], object], seconds: float = 60.0, *, pause: float = 0.01
) -> bool:
    """Check a condition repeatedly; return whether it became true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


def wait_until(
    condition: Callable[[], object], what: str = "the condition", seconds: float = 60.0
) -> None:
    """Wait until a condition is true; AssertionError if it is not in time."""
    assert holds_within(condition, seconds), f"waited {seconds:g} s for {what}"
