"""Wait on conditions, with deadlines that a loaded machine keeps."""

from __future__ import annotations

import time
from collections.abc import Callable


def holds_within(
    condition: Callable[[], object], seconds: float = 60.0, *, pause: float = 0.01
) -> bool:
    """Wait until a condition holds, looked at after each pause; whether it did in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


def wait_until(
    condition: Callable[[], object], what: str = "the condition", seconds: float = 60.0
) -> None:
    """Wait until a condition holds; fail if it does not within some seconds."""
    assert holds_within(condition, seconds), f"waited {seconds:g} s in vain for {what}"
