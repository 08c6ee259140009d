"""Progress events of a live run, from the reports of its processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise_sim.fleet.answers import ROUTES
from gatewise_sim.fleet.progress import ProgressListener, Snapshot
from gatewise_sim.live.device_processes import DeviceReports
from gatewise_sim.live.metered import LiveAnswer

UPDATE_SECONDS: Final = 0.25
_RECENT: Final = 500


@dataclass(eq=False)
class LiveProgress:
    """Reports a live run of so many instances to a listener."""

    listener: ProgressListener
    total: int
    truth: NDArray[np.int64] | None
    _reports: DeviceReports = field(default_factory=DeviceReports)
    _routes: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(ROUTES, 0))
    _right: int = 0
    _labelled: int = 0
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _next: float = 0.0

    def add(self, reports: DeviceReports, new: Sequence[LiveAnswer]) -> None:
        """Count new answers."""
        self._reports = reports
        for answer in new:
            self._routes[answer.route] += 1
            self._recent.append(answer.latency_ms)
            if self.truth is not None and self.truth[answer.row] >= 0:
                self._labelled += 1
                self._right += answer.label == int(self.truth[answer.row])

    def advance(self, at: float, workers_up: int, *, last: bool = False) -> None:
        """Report, unless that was just done."""
        if at < self._next and not last:
            return
        self._next = at + 0.8 * UPDATE_SECONDS
        answered = len(self._reports.answers)
        p50, p95 = None, None
        if self._recent:
            p50, p95 = np.percentile(self._recent, (50, 95)).tolist()
        has_truth = self.truth is not None
        self.listener.advance(
            Snapshot(
                at=max(at, 0.0),
                answered=answered,
                **self._routes,
                right=self._right if has_truth else None,
                labelled=self._labelled if has_truth else None,
                p50_ms=p50,
                p95_ms=p95,
                in_flight=self._reports.out,
                workers_up=workers_up,
                devices_up=self._reports.links_up,
                done=answered / max(self.total, 1),
            )
        )
