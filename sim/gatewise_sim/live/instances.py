"""The instances of a live run: device, row and time of each, and the columns of the answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_sim.fleet.answers import REASON, ROUTES, Answers
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.live.metered import ByteCounts, LiveAnswer
from gatewise_sim.live.scheduler import Schedule


@dataclass(frozen=True, eq=False)
class Instances:
    """All instances of a run, shape (n,); `time` is None for rows in turn."""

    time: NDArray[np.float64] | None
    device: NDArray[np.int64]
    row: NDArray[np.int64]

    @classmethod
    def from_settings(cls, settings: FleetSettings, n_rows: int) -> Instances:
        """Draw the instances of settings from a table of so many rows."""
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

    def process_schedule(self, process: int, processes: int, settings: FleetSettings) -> Schedule:
        """Schedule of one of the processes, among which the devices are dealt in turn."""
        which = np.flatnonzero(self.device % processes == process)
        return Schedule(
            number=which,
            device=self.device[which] // processes,
            row=self.row[which],
            time=None if self.time is None else self.time[which],
            pause=settings.pause_ms / 1000.0,
        )

    def seconds(self, settings: FleetSettings) -> float:
        """Seconds until the last one comes, at the latest."""
        if self.time is not None:
            return float(self.time.max(initial=0.0))
        each = (settings.deadline_ms + settings.pause_ms) / 1000.0
        return each * int(np.bincount(self.device).max(initial=0))

    def answers(self, found: Mapping[int, LiveAnswer]) -> Answers:
        """Columns of the instances that were answered, by their numbers."""
        numbers = sorted(found)
        ordered, which = [found[number] for number in numbers], np.array(numbers, np.int64)
        # Times that were given are exact to the last bit.
        reported = np.array([one.time for one in ordered], np.float64)
        time = reported if self.time is None else self.time[which]
        answers = Answers.empty(time, self.device[which], self.row[which])
        answers.route[:] = [ROUTES.index(one.route) for one in ordered]
        answers.reason[:] = [_reason_index(one.reason) for one in ordered]
        for name in _COLUMNS:
            getattr(answers, name)[:] = [getattr(one, name) for one in ordered]
        for name in ByteCounts._fields:
            getattr(answers, name)[:] = [getattr(one.bytes, name) for one in ordered]
        return answers


_COLUMNS: Final = ("stage", "label", "cost", "feature_cost", "latency_ms", "device_ms", "cloud_ms",
                   "paced")  # fmt: skip


def _reason_index(reason: str) -> int:
    """Index of the reason, or of the nearest one that virtual time distinguishes."""
    if reason in REASON:
        return REASON[reason]
    if reason == "last-stage":
        return REASON["stopped"]
    if reason in ("unsent", "no-link"):
        return REASON["link-down"]
    if reason.startswith("cloud:"):
        return REASON["cloud:busy"]
    return REASON["value"]
