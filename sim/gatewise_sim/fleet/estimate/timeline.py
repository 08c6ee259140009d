"""Into which bins of time a run is cut: finer while something is down, and shortly after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from gatewise_sim.fleet.estimate.sampling import AFTER, Plan, Window
from gatewise_sim.fleet.network.outages import Outages

__all__ = ["Bin", "bins_of", "fault_spans"]

_PIECES: Final = 64  # of a run that is stepped whole
_AROUND: Final = 16  # of a time around an outage, in a run that is not
_IN_OUTAGE: Final = 8
_AFTER_OUTAGE: Final = 6
_MANY: Final = 8  # outages; with more, each is cut into fewer


@dataclass(frozen=True, slots=True)
class Bin:
    """A time whose instances are counted together.

    Attributes
    ----------
    begin, end : float
        The time it stands for, in seconds since the run's begin.
    measured : tuple of float
        The part of it that is measured, from and to.
    segment : tuple of int
        Equal for bins that follow each other without a change of what is up.
    """

    begin: float
    end: float
    measured: tuple[float, float]
    segment: tuple[int, int]


def fault_spans(outages: Outages, seconds: float) -> list[tuple[str, float, float, int]]:
    """All that is down before `seconds`: (what, begin, end, how many), by time.

    Ends lie within the run.
    """
    return sorted(
        (window.what, begin, min(end, seconds), window.count if window.what == "workers" else 1)
        for window in outages.windows
        for begin, end in window.spans(seconds, outages.day_begins)
    )


def bins_of(plan: Plan, window: Window, outages: Outages) -> list[Bin]:
    """Cut a window of a plan.

    A window that stands for more time than its own is one bin; others are cut evenly, the ends of
    outages among the cuts.
    """
    if (window.begin, window.end) != (window.first, window.last):
        measured = (window.begin, window.end)
        return [Bin(window.first, window.last, measured, (window.segment, 0))]
    spans = [
        (max(begin, window.begin), min(end, window.end))
        for _, begin, end, _ in fault_spans(outages, plan.seconds)
        if begin < window.end and end > window.begin
    ]
    changes = sorted({t for span in spans for t in span if window.begin < t < window.end})
    edges = _edges(window, changes, spans, _PIECES if plan.whole else _AROUND)
    found = []
    for begin, end in pairwise(edges):
        phase = int(np.searchsorted(changes, (begin + end) / 2))
        found.append(Bin(begin, end, (begin, end), (window.segment, phase)))
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
            after = min(first + AFTER, last)
            edges += _cut(first, after, usual, max(1, _AFTER_OUTAGE // few))
        if last > after:
            edges += _cut(after, last, usual, max(1, _IN_OUTAGE // few) if within else 1)
    return edges


def _cut(first: float, last: float, usual: float, least: int) -> list[float]:
    """Cuts after `first` up to `last`, at most about `usual` apart."""
    n = max(least, round((last - first) / usual), 1)
    return [first + (last - first) * i / n for i in range(1, n)] + [last]
