"""The instances of a live run, the columns of their answers, and the run's progress."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_sim.fleet.answers import REASON, ROUTES, Answers
from gatewise_sim.fleet.progress import ProgressListener, Snapshot
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.live.metered import ByteCounts, LiveAnswer
from gatewise_sim.live.scheduler import Schedule

UPDATE_SECONDS: Final = 0.25
_RECENT: Final = 500
_COLUMNS: Final = ("stage", "label", "cost", "feature_cost", "latency_ms", "device_ms", "cloud_ms",
                   "held")  # fmt: skip


def draw_instances(settings: FleetSettings, n_rows: int) -> Schedule:
    """Draw all instances of a run from a table of so many rows, as one schedule of its devices."""
    time = None
    if settings.in_turn is not None:
        lengths = [len(rows) for rows in settings.in_turn]
        device = np.repeat(np.arange(settings.devices), lengths)
        row = np.concatenate([np.asarray(rows, np.int64) for rows in settings.in_turn])
    else:
        none = np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64)
        chunks = zip(none, *settings.chunks(n_rows), strict=True)
        time, device, row = (np.concatenate(column) for column in chunks)
    wrong = row[(row < 0) | (row >= n_rows)]
    if len(wrong):
        raise InputError(f"an instance is row {wrong[0]} of a table of {n_rows}")
    number, pause = np.arange(len(row)), settings.pause_ms / 1000.0
    return Schedule(number, device.astype(np.int64), row.astype(np.int64), time, pause)


def process_schedule(every: Schedule, process: int, processes: int) -> Schedule:
    """Schedule of one of the processes, among which the devices are dealt in turn."""
    which = np.flatnonzero(every.device % processes == process)
    time = None if every.time is None else every.time[which]
    return Schedule(which, every.device[which] // processes, every.row[which], time, every.pause)


def last_arrival(every: Schedule, deadline: float) -> float:
    """Seconds until the last instance comes, at the latest."""
    if every.time is not None:
        return float(every.time.max(initial=0.0))
    return (deadline + every.pause) * int(np.bincount(every.device).max(initial=0))


def answer_columns(every: Schedule, found: Mapping[int, LiveAnswer]) -> Answers:
    """Columns of the instances that were answered, by their numbers."""
    ordered = [found[number] for number in sorted(found)]
    which = np.array([one.number for one in ordered], np.int64)
    # Times that were given are exact to the last bit.
    reported = np.array([one.time for one in ordered], np.float64)
    time = reported if every.time is None else every.time[which]
    answers = Answers.empty(time, every.device[which], every.row[which])
    answers.route[:] = [ROUTES.index(one.route) for one in ordered]
    answers.reason[:] = [_reason_index(one.reason) for one in ordered]
    for name in _COLUMNS:
        getattr(answers, name)[:] = [getattr(one, name) for one in ordered]
    for name in ByteCounts._fields:
        getattr(answers, name)[:] = [getattr(one.bytes, name) for one in ordered]
    return answers


def _reason_index(reason: str) -> int:
    """Index of the reason, or of the nearest one that virtual time distinguishes."""
    if reason in REASON:
        return REASON[reason]
    if reason == "last-stage":
        return REASON["stopped"]
    return REASON["cloud:busy" if reason.startswith("cloud:") else "value"]


class LiveProgress:
    """Reports a live run's instances to a listener; `truth` by row, if it is known."""

    def __init__(
        self, listener: ProgressListener, every: Schedule, truth: NDArray[np.int64] | None
    ) -> None:
        self.listener = listener
        self._every, self._truth = every, truth
        self._routes: dict[str, Any] = dict.fromkeys(ROUTES, 0)
        self._right = self._labelled = 0
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._next = 0.0

    def add(self, new: Sequence[LiveAnswer]) -> None:
        """Count new answers."""
        for answer in new:
            self._routes[answer.route] += 1
            if answer.route in ("cloud", "fallback"):
                self._recent.append(answer.latency_ms)
            if self._truth is not None:
                label = int(self._truth[self._every.row[answer.number]])
                self._labelled += label >= 0
                self._right += answer.label == label >= 0

    def advance(self, at: float, *, last: bool = False) -> None:
        """Report, unless that was just done."""
        if at < self._next and not last:
            return
        self._next = at + 0.8 * UPDATE_SECONDS
        answered, recent = sum(self._routes.values()), self._recent
        p50, p95 = np.percentile(recent, (50, 95)).tolist() if recent else (None, None)
        self.listener.advance(
            Snapshot(
                at=max(at, 0.0),
                **self._routes,
                right=self._right,
                labelled=self._labelled,
                p50_ms=p50,
                p95_ms=p95,
                done=answered / max(len(self._every.row), 1),
            )
        )
