"""Progress events of a simulation in virtual time, a few times a second."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

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
_COUNTED: Final = (*ROUTES, "right", "labelled")


class WindowReports:
    """Progress reports of windows, in any order."""

    def __init__(self, watch: ProgressListener, plan: SamplingPlan) -> None:
        self._watch, self._plan = watch, plan
        self._sums = np.zeros(len(SUMS))
        self._at = self._done = 0.0

    def add(self, number: int, counts: WindowCounts) -> None:
        """Add a window, and report it."""
        plan, window = self._plan, self._plan.windows[number]
        scale = plan.of_devices / plan.devices
        self._sums += sum(part.bin.weight * part.sums for part in counts.parts) * scale
        self._at += window.stands_for
        self._done += (window.end - window.begin + window.warm) / plan.stepped
        recent = Sketch.merge([part.offloaded for part in counts.parts])
        self._watch.advance(
            Snapshot(
                at=self._at,
                **{name: round(float(self._sums[SUMS.index(name)])) for name in _COUNTED},
                p50_ms=recent.quantile(0.5) if recent.total else None,
                p95_ms=recent.quantile(0.95) if recent.total else None,
                done=min(1.0, self._done),
                piece=(window.first, window.last),
            )
        )


class RunReports:
    """Reports a run of so many seconds while it is stepped whole; `clock` gives real seconds."""

    def __init__(
        self,
        watch: ProgressListener,
        state: FleetState,
        seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watch, self._state, self._seconds, self._clock = watch, state, seconds, clock
        self._local = state.rules.local_answers()
        self._local_times = np.zeros(len(self._local), np.int64)
        self._next = clock() + _EVERY

    def add_local(self, rows: NDArray[np.int64]) -> None:
        """Count instances that never leave their devices."""
        self._local_times += np.bincount(rows, minlength=len(self._local))

    def advance(self, parts: Sequence[Answers]) -> None:
        """Report, if it is time to: `parts` are all chunks so far, the last one open."""
        if self._clock() < self._next:
            return
        counts = self._counts(self._local, self._local_times)
        for part in parts:
            self._state.rules.complete(part)
            counts += self._counts(part, 1)
        open_, now = parts[-1], self._state.clock.now
        there = int(np.searchsorted(open_.time, now, side="right"))
        lately = open_.latency_ms[max(0, there - _RECENT) : there]
        lately = lately[np.isfinite(lately)]
        p50, p95 = np.percentile(lately, [50, 95]).tolist() if len(lately) else (None, None)
        self._watch.advance(
            Snapshot(
                at=min(now, self._seconds),
                **dict(zip(_COUNTED, counts.tolist(), strict=True)),
                p50_ms=p50,
                p95_ms=p95,
                done=min(1.0, now / self._seconds),
            )
        )
        self._next = self._clock() + _EVERY

    def finish(self, answers: Answers) -> None:
        """Report the end: `answers` are all that were stepped."""
        self._next = -math.inf
        self.advance([answers])

    def _counts(self, answers: Answers, times: Any) -> NDArray[np.int64]:
        truth = self._state.rules.routes.truth[answers.row]
        labelled = (answers.route >= 0) & (truth != NO_LABEL)
        which = [*(answers.route == i for i in range(len(ROUTES)))]
        which += [labelled & (answers.label == truth), labelled]
        return np.array([np.sum(times * each) for each in which], np.int64)
