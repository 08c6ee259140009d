"""The worker's counts, in one place: every name with its meaning, safe across threads."""

from __future__ import annotations

import threading
from typing import Any, Final

__all__ = ["COUNTS", "LABELLED_COUNTS", "Counters"]

COUNTS: Final[dict[str, str]] = {
    "received": "messages that came on a request topic",
    "answered": "requests answered with labels",
    "instances": "instances answered",
    "batches": "runs of a model",
    "duplicates": "requests dropped since the same one was queued or being answered",
    "repeated": "requests answered again from memory",
    "expired": "requests dropped since their time to live was over",
    "unsent": "messages dropped since the broker was not connected or did not keep up",
    "abandoned": "requests still queued when the time to drain was over",
    "queue_us": "microseconds that answered requests waited for their run, summed",
    "model_us": "microseconds that models ran, summed",
}
LABELLED_COUNTS: Final[dict[str, str]] = {
    "errors": "requests answered with an error, by its code",
    "dead": "messages put on the dead-letter topic, by reason",
}


class Counters:
    """Counts that only grow.

    Examples
    --------
    >>> counters = Counters()
    >>> counters.add("received")
    >>> counters.add("errors", label="busy")
    >>> counters.snapshot()["received"], counters.snapshot()["errors"]
    (1, {'busy': 1})
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(COUNTS, 0)
        self._labelled: dict[str, dict[str, int]] = {name: {} for name in LABELLED_COUNTS}

    def add(self, name: str, by: int = 1, *, label: str | None = None) -> None:
        """Count; `label` for the names of :data:`LABELLED_COUNTS` only."""
        with self._lock:
            if label is None:
                self._counts[name] += by
            else:
                counts = self._labelled[name]
                counts[label] = counts.get(label, 0) + by

    def snapshot(self) -> dict[str, Any]:
        """All counts at one instant, fit for JSON."""
        with self._lock:
            return {**self._counts, **{name: dict(c) for name, c in self._labelled.items()}}
