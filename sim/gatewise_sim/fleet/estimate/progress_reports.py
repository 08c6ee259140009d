"""Progress events of a simulation in virtual time, a few times a second."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gatewise_sim.fleet.answers import ROUTES, Answers
from gatewise_sim.fleet.devices.device import FleetState
from gatewise_sim.fleet.estimate.plan import SamplingPlan
from gatewise_sim.fleet.estimate.sketch import Sketch
from gatewise_sim.fleet.estimate.window_sums import SUMS, WindowCounts
from gatewise_sim.fleet.progress import ProgressListener, Snapshot
from gatewise_sim.fleet.routes import NO_LABEL

_EVERY: Final = 0.25  # seconds between two snapshots
_RECENT: Final = 2000  # answers


class WindowReports:
    """Progress reports of windows, in any order; `labelled`: some rows have labels."""

    def __init__(self, watch: ProgressListener, plan: SamplingPlan, *, labelled: bool) -> None:
        self._watch, self._plan, self._labelled = watch, plan, labelled
        self._scale = plan.of_devices / plan.devices
        self._sums = np.zeros(len(SUMS))
        self._at = self._done = 0.0

    def add(self, number: int, counts: WindowCounts) -> None:
        """Add a window, and report it."""
        window = self._plan.windows[number]
        self._sums += sum(part.weight * part.sums for part in counts.parts) * self._scale
        self._at += window.stands_for
        self._done += (window.end - window.begin + window.warm) / self._plan.stepped
        found = {name: round(total) for name, total in zip(SUMS, self._sums.tolist(), strict=True)}
        routes = {route: found[route] for route in ROUTES}
        recent = Sketch.merge([part.offloaded for part in counts.parts])
        self._watch.advance(
            Snapshot(
                at=self._at,
                answered=sum(routes.values()),
                **routes,
                right=found["right"] if self._labelled else None,
                labelled=found["labelled"],
                p50_ms=recent.quantile(0.5) if recent.total else None,
                p95_ms=recent.quantile(0.95) if recent.total else None,
                done=min(1.0, self._done),
                piece=(window.first, window.last),
            )
        )


class RunReports:
    """Reports a run of so many seconds while it is stepped whole.

    `clock` gives real seconds: how long ago the last report was.
    """

    def __init__(
        self,
        watch: ProgressListener,
        state: FleetState,
        seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watch, self._state, self._seconds, self._clock = watch, state, seconds, clock
        self._truth = state.rules.routes.truth
        local = state.rules.local_answers()
        labelled = self._truth != NO_LABEL
        self._local_counts = np.stack(
            [
                *(local.route == i for i in range(len(ROUTES))),
                labelled & (local.label == self._truth),
                labelled,
            ],
            axis=1,
        ).astype(np.int64)
        self._local = np.zeros(self._local_counts.shape[1], np.int64)
        self._before = np.zeros(self._local_counts.shape[1], np.int64)  # of chunks that are over
        self._chunks = 0
        self._next = clock() + _EVERY

    def add_local(self, rows: NDArray[np.int64]) -> None:
        """Count instances that never leave their devices."""
        self._local += np.bincount(rows, minlength=len(self._local_counts)) @ self._local_counts

    def advance(self, parts: Sequence[Answers]) -> None:
        """Report, if it is time to: `parts` are all chunks so far, the last one open."""
        if self._clock() < self._next:
            return
        while self._chunks < len(parts) - 1:
            self._state.rules.complete(parts[self._chunks])
            self._before += self._counts(parts[self._chunks])
            self._chunks += 1
        open_, now = parts[-1], self._state.clock.now
        self._state.rules.complete(open_)
        *routes, right, labelled = (self._before + self._local + self._counts(open_)).tolist()
        there = int(np.searchsorted(open_.time, now, side="right"))
        lately = open_.latency_ms[max(0, there - _RECENT) : there]
        lately = lately[np.isfinite(lately)]
        p50, p95 = np.percentile(lately, [50, 95]).tolist() if len(lately) else (None, None)
        self._watch.advance(
            Snapshot(
                at=min(now, self._seconds),
                answered=sum(routes),
                **dict(zip(ROUTES, routes, strict=True)),
                right=right if labelled else None,
                labelled=labelled,
                p50_ms=p50,
                p95_ms=p95,
                in_flight=int(np.count_nonzero(open_.route[:there] < 0)),
                workers_up=self._state.availability.workers_up,
                done=min(1.0, now / self._seconds),
            )
        )
        self._next = self._clock() + _EVERY

    def finish(self, answers: Answers) -> None:
        """Report the end: `answers` are all that were stepped."""
        self._before[:], self._chunks = 0, 0
        self._next = -math.inf
        self.advance([answers])

    def _counts(self, answers: Answers) -> NDArray[np.int64]:
        truth = self._truth[answers.row]
        labelled = (answers.route >= 0) & (truth != NO_LABEL)
        found = [np.count_nonzero(answers.route == i) for i in range(len(ROUTES))]
        right = np.count_nonzero(labelled & (answers.label == truth))
        return np.array([*found, right, np.count_nonzero(labelled)], np.int64)
