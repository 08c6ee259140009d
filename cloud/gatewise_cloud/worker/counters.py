"""Counts and histograms of a worker, with the meaning of each name."""

from __future__ import annotations

import threading
from bisect import bisect_left
from typing import Any, Final

#: Help text of each count by its name.
COUNTS: Final[dict[str, str]] = {
    "received": "messages received on a request topic",
    "answered": "requests answered with labels",
    "instances": "instances answered",
    "batches": "runs of a model",
    "duplicates": "requests dropped because the same request was queued or running",
    "repeated": "requests answered with a remembered response",
    "expired": "requests dropped because their time to live was over",
    "oversized": "connections that ended because a message was too large",
    "unsent": "messages dropped because the broker was not connected or did not keep up",
    "abandoned": "requests still queued when the worker ended",
    "queue_us": "microseconds that answered requests waited for their run, summed",
    "model_us": "microseconds that models ran, summed",
}
#: Help text of each count that is divided by labels.
LABELLED_COUNTS: Final[dict[str, str]] = {
    "errors": "requests answered with an error, by its code",
    "dead": "messages published on the dead-letter topic, by reason",
    "model_instances": "instances answered, by model and version",
    "labels": "labels that machines sent, by outcome",
    "watched": "bundles of the watched folder, by outcome",
}
#: Help text of each histogram, and the upper bounds of its bins except the last, which has none.
HISTOGRAMS: Final[dict[str, tuple[str, tuple[float, ...]]]] = {
    "latency_seconds": (
        "time from a request's arrival at the worker to its answer",
        (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
    ),
    "batch_instances": (
        "instances in one run of a model",
        (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096),
    ),
}

#: Largest number of labels of one name, because a worker may serve many versions in its life;
#: further labels are counted as :data:`OTHER_LABEL`.
MAX_LABELS: Final = 100
OTHER_LABEL: Final = "other"


class Counters:
    """Counts and histograms of a worker, which never decrease; thread-safe.

    >>> counters = Counters()
    >>> counters.add("received")
    >>> counters.add("errors", label="busy")
    >>> counters.snapshot()["received"], counters.snapshot()["errors"]
    (1, {'busy': 1})
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(COUNTS, 0)
        self._labelled_counts: dict[str, dict[str, int]] = {name: {} for name in LABELLED_COUNTS}
        self._bins = {name: [0] * (len(bounds) + 1) for name, (_, bounds) in HISTOGRAMS.items()}
        self._sums = dict.fromkeys(HISTOGRAMS, 0.0)

    def add(self, name: str, amount: int = 1, *, label: str | None = None) -> None:
        """Add to a count; only names in :data:`LABELLED_COUNTS` have a `label`."""
        with self._lock:
            if label is None:
                self._counts[name] += amount
            else:
                self._add_labelled(name, label, amount)

    def add_answer(
        self, model: str, n_instances: int, *, queue_seconds: float, latency_seconds: float
    ) -> None:
        """Count a request that was answered with `n_instances` labels of `model`.

        One call updates all counts under one lock, because requests are frequent.
        """
        bin_index = bisect_left(HISTOGRAMS["latency_seconds"][1], latency_seconds)
        with self._lock:
            self._counts["answered"] += 1
            self._counts["instances"] += n_instances
            self._counts["queue_us"] += int(1e6 * queue_seconds)
            self._add_labelled("model_instances", model, n_instances)
            self._bins["latency_seconds"][bin_index] += 1
            self._sums["latency_seconds"] += latency_seconds

    def _add_labelled(self, name: str, label: str, amount: int) -> None:
        counts = self._labelled_counts[name]
        if label not in counts and len(counts) >= MAX_LABELS:
            label = OTHER_LABEL
        counts[label] = counts.get(label, 0) + amount

    def add_run(self, n_instances: int, seconds: float) -> None:
        """Count a run of a model that took `seconds`."""
        bin_index = bisect_left(HISTOGRAMS["batch_instances"][1], n_instances)
        with self._lock:
            self._counts["batches"] += 1
            self._counts["model_us"] += int(1e6 * seconds)
            self._bins["batch_instances"][bin_index] += 1
            self._sums["batch_instances"] += n_instances

    def snapshot(self) -> dict[str, Any]:
        """Return all counts at one instant, as values of JSON."""
        with self._lock:
            return {
                **self._counts,
                **{name: dict(counts) for name, counts in self._labelled_counts.items()},
            }

    def histograms(self) -> dict[str, tuple[list[tuple[float, int]], float]]:
        """Return each histogram as its cumulative counts and its sum."""
        histograms: dict[str, tuple[list[tuple[float, int]], float]] = {}
        with self._lock:
            for name, (_, bounds) in HISTOGRAMS.items():
                cumulative_count = 0
                bins = []
                for bound, count in zip((*bounds, float("inf")), self._bins[name], strict=True):
                    cumulative_count += count
                    bins.append((float(bound), cumulative_count))
                histograms[name] = bins, self._sums[name]
        return histograms
