"""Wait on conditions, with deadlines that a loaded machine keeps."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["holds_within", "wait_until"]


def holds_within(condition: Callable[[], object], seconds: float = 60.0) -> bool:
    """Wait until a condition holds; whether it did within some seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def wait_until(
    condition: Callable[[], object], what: str = "the condition", seconds: float = 60.0
) -> None:
    """Wait until a condition holds; fail if it does not within some seconds."""
    assert holds_within(condition, seconds), f"waited {seconds:g} s in vain for {what}"
