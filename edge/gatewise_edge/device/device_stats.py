"""Count answers by route and report them to the observer and the pacer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, get_args

from gatewise_edge.device.answer import Answer, Route
from gatewise_edge.device.pacer import PacerFile
from gatewise_edge.device.pending import Pending

_LOG = logging.getLogger(__name__)

_COUNTS: Final = (*get_args(Route), "errors", "paced", "drift_alarms")

Observe = Callable[[Answer | Exception], None]


class DeviceStats:
    """Counts of a device's answers. Thread-safe.

    `observe` gets each answer, or the error in its place, once; what it raises is logged.
    """

    def __init__(self, observe: Observe | None, file: PacerFile | None) -> None:
        self._observe = observe
        self._file = file
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._counting = threading.Lock()

    @property
    def counters(self) -> dict[str, int]:
        """The routes, ``errors``, ``paced`` and ``drift_alarms``."""
        with self._counting:
            return dict(self._counts)

    def close(self) -> None:
        """Save the pacer's state."""
        if self._file is not None:
            self._file.save()

    def answered(self, pending: Pending, answer: Answer, clock: Callable[[], float]) -> None:
        """Count an instance's answer; `clock` in seconds, steady."""
        pace = None if pending.installed.gate is None else pending.installed.gate.pace
        if pace is not None:
            used = None
            if pending.offloaded or answer.route == "edge":
                size = 0.0 if pending.request is None else pending.request.bytes_per_row
                used = pace.used(sent=pending.offloaded, size=size, cost=answer.cost)
            now = clock()
            pace.observe(pending.score, used, now)
            if self._file is not None:
                self._file.save_when_due(now)
        with self._counting:
            self._counts[answer.route] += 1
            if answer.paced:
                self._counts["paced"] += 1
        self._report(answer)

    def failed(self, error: Exception) -> None:
        """Count an instance without an answer."""
        with self._counting:
            self._counts["errors"] += 1
        self._report(error)

    def drifted(self, side: str, rate: float) -> None:
        """Count and log a drift alarm."""
        with self._counting:
            self._counts["drift_alarms"] += 1
        _LOG.warning(
            "the gate offloads %.3g of the instances, %s the band of the operating point: "
            "the data may have drifted",
            rate,
            side,
        )

    def _report(self, end: Answer | Exception) -> None:
        if self._observe is not None:
            try:
                self._observe(end)
            except Exception:
                _LOG.exception("an answer's observer failed")
