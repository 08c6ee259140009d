"""The instances of a live run: who meets what when, and the columns of what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_sim.fleet.answers import REASON, Answers
from gatewise_sim.fleet.routes import ROUTES
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.live.outcome import Outcome
from gatewise_sim.live.processes import Pass
from gatewise_sim.live.scheduler import Schedule

__all__ = ["Instances"]


@dataclass(frozen=True, eq=False)
class Instances:
    """All instances of a run, shape (n,); `time` is None for rows in turn."""

    time: NDArray[np.float64] | None
    device: NDArray[np.int64]
    row: NDArray[np.int64]

    @classmethod
    def of(cls, settings: FleetSettings, n_rows: int) -> Instances:
        """Draw those that the settings ask for from a table of so many rows."""
        if settings.in_turn is not None:
            row = np.concatenate([np.asarray(rows, np.int64) for rows in settings.in_turn])
            lengths = [len(rows) for rows in settings.in_turn]
            time, device = None, np.repeat(np.arange(settings.devices), lengths)
        else:
            chunks = list(settings.chunks(n_rows))
            time = np.concatenate([np.empty(0), *(chunk[0] for chunk in chunks)])
            device, row = (
                np.concatenate([np.empty(0, np.int64), *(chunk[i] for chunk in chunks)])
                for i in (1, 2)
            )
        wrong = row[(row < 0) | (row >= n_rows)]
        if len(wrong):
            raise InputError(f"an instance is row {wrong[0]} of a table of {n_rows}")
        return cls(time, device.astype(np.int64), row.astype(np.int64))

    def of_process(self, process: int, processes: int, settings: FleetSettings) -> Schedule:
        """Those of every so manyth device."""
        which = np.flatnonzero(self.device % processes == process)
        return Schedule(
            number=which,
            device=self.device[which] // processes,
            row=self.row[which],
            time=None if self.time is None else self.time[which],
            pause=settings.pause_ms / 1000.0,
        )

    def longest(self, settings: FleetSettings) -> float:
        """Seconds until the last one comes, at the latest."""
        if self.time is not None:
            return float(self.time.max(initial=0.0))
        each = (settings.deadline_ms + settings.pause_ms) / 1000.0
        return each * int(np.bincount(self.device).max(initial=0))

    def answers(self, passed: Pass) -> Answers:
        """The columns of those that were answered."""
        outcomes = [passed.outcomes[number] for number in sorted(passed.outcomes)]
        which = np.array(sorted(passed.outcomes), np.int64)
        time = np.array([outcome.time for outcome in outcomes], np.float64)
        # Where times were given, they are told to the last bit.
        told = time if self.time is None else self.time[which]
        answers = Answers.empty(told, self.device[which], self.row[which])
        answers.route[:] = [ROUTES.index(outcome.route) for outcome in outcomes]
        answers.reason[:] = [_reason(outcome) for outcome in outcomes]
        for name in _COLUMNS:
            getattr(answers, name)[:] = [getattr(outcome, name) for outcome in outcomes]
        return answers


_COLUMNS: Final = (
    *("stage", "label", "cost", "feature_cost", "latency_ms", "device_ms", "cloud_ms"),
    *("up", "down", "payload_up", "payload_down", "paced"),
)


def _reason(outcome: Outcome) -> int:
    """The reason's index; those that virtual time does not tell apart go under the nearest."""
    reason = outcome.reason
    if reason in REASON:
        return REASON[reason]
    if reason == "last-stage":
        return REASON["stopped"]
    if reason in ("unsent", "no-link"):
        return REASON["link-down"]
    if reason.startswith("cloud:"):
        return REASON["cloud:busy"]
    return REASON["value"]
