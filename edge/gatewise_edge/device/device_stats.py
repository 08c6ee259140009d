"""What a device counts, learns from and tells as its instances end."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final, get_args

from gatewise_edge.device.answer import Answer, Case, Route
from gatewise_edge.device.pacer_state import PacerFile
from gatewise_edge.errors import SensorError
from gatewise_edge.link.coalesce import Share

__all__ = ["Ledger", "Observe"]

_LOG = logging.getLogger(__name__)

_COUNTS: Final = (*get_args(Route), "errors", "paced", "drift_alarms")

Observe = Callable[[Answer | SensorError], None]


class Ledger:
    """Takes in the end of each instance, once. Thread-safe.

    Parameters
    ----------
    observe : callable or None
        Gets each end; what it raises is logged.
    file : PacerFile or None
        Where the pacer's state is kept.
    """

    def __init__(self, observe: Observe | None, file: PacerFile | None) -> None:
        self._observe = observe
        self._file = file
        self._counts: Counter[str] = Counter(dict.fromkeys(_COUNTS, 0))
        self._counting = threading.Lock()

    @property
    def counters(self) -> dict[str, int]:
        """The routes, ``errors``, ``paced`` and ``drift_alarms``."""
        with self._counting:
            return dict(self._counts)

    def close(self) -> None:
        """Keep what is to be kept."""
        if self._file is not None:
            self._file.save()

    def answered(self, case: Case, answer: Answer, share: Share | None, now: float) -> None:
        """Take in an answer; `share` is the request's, if one was made."""
        pace = None if case.installed.gate is None else case.installed.gate.pace
        if pace is not None:
            used = None
            if case.asked or answer.route == "edge":
                size = 0.0 if share is None else share.bytes
                used = pace.used(sent=case.asked, size=size, cost=answer.cost)
            pace.observe(case.score, used, now)
            if self._file is not None:
                self._file.save_now_and_then(now)
        with self._counting:
            self._counts[answer.route] += 1
            self._counts["paced"] += answer.paced
        self._tell(answer)

    def failed(self, error: SensorError) -> None:
        """Take in an instance without an answer."""
        with self._counting:
            self._counts["errors"] += 1
        self._tell(error)

    def drifted(self, side: str, rate: float) -> None:
        """Take in a drift alarm."""
        with self._counting:
            self._counts["drift_alarms"] += 1
        _LOG.warning(
            "the gate sends on %.3g of the instances, %s the band of the operating point: "
            "the data may have drifted",
            rate,
            side,
        )

    def _tell(self, end: Answer | SensorError) -> None:
        if self._observe is not None:
            try:
                self._observe(end)
            except Exception:
                _LOG.exception("an answer's observer failed")
