"""Plan of a sampled run: its windows of time, and the bins of time that are summed up.

Bins are finer while something is down, and shortly after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Self

import numpy as np

from gatewise_sim.fleet.network.outages import Outages

AFTER_OUTAGE: Final = 60.0  # seconds after an outage that count as a part of it
_PIECES: Final = 64  # of a run that is stepped whole
_AROUND: Final = 16  # of a time around an outage, in a run that is not
_BINS_IN_OUTAGE: Final = 8
_BINS_AFTER_OUTAGE: Final = 6
_MANY: Final = 8  # outages; with more, each is cut into fewer


@dataclass(frozen=True, slots=True)
class Window:
    """Part of the time that is stepped, in seconds since the beginning.

    Instances from `begin` to `end` are measured, after a warm-up of `warm` seconds; they stand for
    the time from `first` to `last`. Windows of one segment follow each other without a change of
    what is up.
    """

    begin: float
    end: float
    warm: float
    first: float
    last: float
    segment: tuple[int, int]

    @property
    def stands_for(self) -> float:
        """Seconds that it stands for."""
        return self.last - self.first

    @property
    def weight(self) -> float:
        """Times that its instances count."""
        return self.stands_for / (self.end - self.begin)


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """Part of a fleet's run that is stepped: `devices` of `of_devices`, `workers` of `of_workers`.

    The windows are in order of time; a run that is stepped whole has a single one.
    """

    devices: int
    workers: int
    of_devices: int
    of_workers: int
    windows: tuple[Window, ...]
    seconds: float

    @classmethod
    def everything(cls, devices: int, workers: int, seconds: float) -> Self:
        """Leave nothing out of a run of so many seconds."""
        window = Window(0.0, seconds, 0.0, 0.0, seconds, (0, 0))
        return cls(devices, workers, devices, workers, (window,), seconds)

    @property
    def whole(self) -> bool:
        """Whether nothing is left out."""
        return len(self.windows) == 1 and self.devices == self.of_devices

    @property
    def stepped(self) -> float:
        """Seconds that are stepped, warm-ups included."""
        return sum(w.end - w.begin + w.warm for w in self.windows)

    def __str__(self) -> str:
        if self.whole:
            return f"all {self.devices} devices, {self.seconds:g} s stepped whole"
        fleet = f"all {self.devices} devices and {self.workers} workers"
        if self.devices < self.of_devices:
            fleet = (
                f"{self.devices} of {self.of_devices} devices "
                f"and {self.workers} of {self.of_workers} workers"
            )
        measured = sum(w.end - w.begin for w in self.windows)
        if measured == self.seconds:
            return f"{fleet}, all of {self.seconds:g} s"
        return (
            f"{fleet}, {len(self.windows)} windows of time, {measured:.0f} s of {self.seconds:g} s "
            "measured, and what came shortly before stepped"
        )


def cut_window(plan: SamplingPlan, window: Window, outages: Outages) -> list[Window]:
    """Cut a window of a plan into bins, evenly, the ends of outages among the cuts.

    A window that stands for more time than its own is one bin.
    """
    if (window.begin, window.end) != (window.first, window.last):
        return [window]
    spans = [
        (max(begin, window.begin), min(end, window.end))
        for _, begin, end, _ in outages.faults(plan.seconds)
        if begin < window.end and end > window.begin
    ]
    changes = sorted({t for span in spans for t in span if window.begin < t < window.end})
    edges = _edges(window, changes, spans, _PIECES if plan.whole else _AROUND)
    found = []
    for begin, end in pairwise(edges):
        phase = int(np.searchsorted(changes, (begin + end) / 2))
        found.append(Window(begin, end, 0.0, begin, end, (window.segment[0], phase)))
    return found


def _edges(
    window: Window, changes: Sequence[float], spans: Sequence[tuple[float, float]], pieces: int
) -> list[float]:
    begin, end = window.begin, window.end
    usual = (end - begin) / pieces
    few = max(1, len(spans) // _MANY)
    knots = [begin, *changes, end]
    edges = [begin]
    for first, last in pairwise(knots):
        within, after = any(b <= first < e for b, e in spans), first
        if not within and any(e == first for _, e in spans):
            after = min(first + AFTER_OUTAGE, last)
            edges += _cut(first, after, usual, max(1, _BINS_AFTER_OUTAGE // few))
        if last > after:
            edges += _cut(after, last, usual, max(1, _BINS_IN_OUTAGE // few) if within else 1)
    return edges


def _cut(first: float, last: float, usual: float, least: int) -> list[float]:
    """Cuts after `first` up to `last`, at most about `usual` apart."""
    n = max(least, round((last - first) / usual), 1)
    return [first + (last - first) * i / n for i in range(1, n)] + [last]
