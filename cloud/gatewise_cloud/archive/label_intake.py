"""Record the labels that machines send for archived instances.

An instance is on disk only after its shard is closed. A label that arrives earlier waits in memory.
If the instance is not on disk in time, the label is refused as unknown.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from gatewise_cloud.archive.label_message import decode_label
from gatewise_cloud.archive.writer import ArchiveWriter
from gatewise_cloud.worker.counters import Counters
from gatewise_edge.errors import WireError
from gatewise_export.archive.folder import shards_in
from gatewise_export.archive.machine_labels import MachineLabel, add_machine_labels

_LOG = logging.getLogger("gatewise_cloud")

#: Maximum number of labels that wait for the disk or for their instances.
MAX_WAITING_LABELS: Final = 10_000
#: Time between two searches of the archive for the instances of labels.
_POLL_SECONDS: Final = 1.0
#: Time allowed for writing a shard to disk after it is closed.
_WRITE_SECONDS: Final = 30.0


class _Arrival(NamedTuple):
    """A label and its time of arrival in Unix seconds."""

    time: float
    label: MachineLabel


class LabelIntake:
    """Receives label messages and records them on a thread; its methods are thread-safe.

    Parameters
    ----------
    writer : ArchiveWriter
        Writer of the archive that has the instances.
    counters : Counters
        Counters of outcomes, under the name ``labels``.
    dead_letter : callable
        Called with the reason and the payload of a message that cannot be decoded.
    shard_seconds : float
        Maximum time for which the writer keeps a shard open.
    """

    def __init__(
        self,
        writer: ArchiveWriter,
        counters: Counters,
        dead_letter: Callable[[str, bytes], None],
        *,
        shard_seconds: float,
    ) -> None:
        self._writer = writer
        self._counters = counters
        self._dead_letter = dead_letter
        self._max_wait_seconds = shard_seconds + _WRITE_SECONDS
        self._new_arrivals: list[_Arrival] = []
        self._n_waiting = 0
        self._is_closing = False
        self._condition = threading.Condition()  # guards the fields above
        self._thread = threading.Thread(target=self._run, name="gatewise-labels", daemon=True)

    def start(self) -> None:
        """Start the thread that records labels."""
        self._thread.start()

    def close(self) -> None:
        """Record the labels of all instances on disk, and refuse the others."""
        with self._condition:
            self._is_closing = True
            self._condition.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def receive(self, topic: str, payload: bytes) -> None:
        """Check a message and queue its label without blocking."""
        now = time.time()
        try:
            label = decode_label(topic, payload, now)
        except WireError as error:
            _LOG.warning("warning: a label on %s is refused: %s", topic[:100], error)
            self._dead_letter(error.reason, payload)
            return
        if self._writer.is_private(label.device):
            self._count_outcome(label, "private")
            return
        with self._condition:
            is_full = self._n_waiting >= MAX_WAITING_LABELS
            if not is_full:
                self._n_waiting += 1
                self._new_arrivals.append(_Arrival(now, label))
        if is_full:
            self._count_outcome(label, "full")

    def _count_outcome(self, label: MachineLabel, outcome: str) -> None:
        if outcome in _REFUSAL_REASONS:
            _LOG.warning(
                "warning: label %r of %s of %s, from %s, is refused: %s",
                label.label,
                label.id,
                label.device,
                label.by,
                _REFUSAL_REASONS[outcome],
            )
        # counted last: who sees the count finds its message in the log
        self._counters.add("labels", label=outcome)

    # -- the thread that records -------------------------------------------------------------

    def _run(self) -> None:
        waiting_arrivals: list[_Arrival] = []
        searched_shards: set[Path] = set()
        is_last_round = False
        while not is_last_round:
            with self._condition:
                self._condition.wait_for(lambda: self._is_closing, _POLL_SECONDS)
                is_last_round = self._is_closing
                new_arrivals = self._new_arrivals
                self._new_arrivals = []
            # search all shards for new labels, but only new shards for labels that wait
            try:
                shards = shards_in(self._writer.folder.path)[::-1]
                new_shards = [shard for shard in shards if shard not in searched_shards]
                unrecorded_arrivals = self._record(waiting_arrivals, new_shards) + self._record(
                    new_arrivals, shards
                )
                searched_shards = set(shards)
            except Exception:  # a full disk must not stop the worker
                _LOG.exception("could not record labels in %s", self._writer.folder.path)
                unrecorded_arrivals = [*waiting_arrivals, *new_arrivals]
                searched_shards = set()
            waiting_arrivals = self._refuse_unknown(unrecorded_arrivals, waits=not is_last_round)
            with self._condition:
                self._n_waiting = len(waiting_arrivals) + len(self._new_arrivals)

    def _refuse_unknown(self, arrivals: list[_Arrival], *, waits: bool) -> list[_Arrival]:
        """Refuse labels that have waited too long for their instance; return the others.

        Without `waits` all labels are refused.
        """
        oldest_waiting_time = time.time() - self._max_wait_seconds if waits else math.inf
        waiting_arrivals = []
        for arrival in arrivals:
            if arrival.time < oldest_waiting_time:
                self._count_outcome(arrival.label, "unknown")
            else:
                waiting_arrivals.append(arrival)
        return waiting_arrivals

    def _record(self, arrivals: list[_Arrival], shards: list[Path]) -> list[_Arrival]:
        """Record labels of instances in `shards`; return the labels without an instance."""
        if not arrivals or not shards:
            return arrivals
        labels = [arrival.label for arrival in arrivals]
        outcomes = add_machine_labels(self._writer.folder, labels, shards)
        unrecorded_arrivals = []
        for arrival, outcome in zip(arrivals, outcomes, strict=True):
            if outcome == "unknown":
                unrecorded_arrivals.append(arrival)
            else:
                self._count_outcome(arrival.label, outcome)
        return unrecorded_arrivals


_REFUSAL_REASONS: Final = {
    "unknown": "the archive has no such instance of this device",
    "class": "the model of the instance has no such class",
    "conflict": "the instance already has another label",
    "private": "the device is private",
    "full": f"{MAX_WAITING_LABELS} labels are already waiting",
}
