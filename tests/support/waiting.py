"""Waits for conditions, with time limits for a loaded machine."""

from __future__ import annotations

import time
from collections.abc import Callable


def holds_within(
    condition: Callable[[], object], timeout_s: float = 60.0, *, pause_s: float = 0.01
) -> bool:
    """Check a condition repeatedly; return whether it became true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
    return True


def wait_until(
    condition: Callable[[], object], condition_text: str = "the condition", timeout_s: float = 60.0
) -> None:
    """Wait until a condition is true; AssertionError if it is not in time."""
    assert holds_within(condition, timeout_s), f"waited {timeout_s:g} s for {condition_text}"
