"""Figures of events: what was missed, false alarms an hour, and how late events were seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.errors import InputError

GAP = 1.5
"""Hops from one window to the next above which the two do not follow each other."""


@dataclass(frozen=True)
class EventFigures:
    """How well decisions on windows that follow each other find events.

    Attributes
    ----------
    events : int
    missed : int
        Events without one positive window.
    false_alarms : int
        Runs of positive windows that touch no event.
    hours : float
        Of all windows, events among them.
    false_alarms_per_hour : float
    mean_delay_seconds : float or None
        From an event's first window to its first positive one, over the events that were seen.
    """

    events: int
    missed: int
    false_alarms: int
    hours: float
    mean_delay_seconds: float | None

    @property
    def false_alarms_per_hour(self) -> float:
        """False alarms, divided by the hours of all windows."""
        return self.false_alarms / self.hours


def event_figures(
    labels: ArrayLike,
    truth: ArrayLike,
    *,
    positive: object,
    hop_seconds: float,
    times: ArrayLike | None = None,
) -> EventFigures:
    """Count events, runs of windows of the positive class, that were seen, late or not at all.

    Parameters
    ----------
    labels, truth : array-like of shape (n,)
        What was decided for windows that follow each other, and what they are.
    positive : label or list of labels
        Of the classes that are events.
    hop_seconds : float
        From the start of one window to that of the next.
    times : array-like of shape (n,), optional
        Seconds of the windows' starts. Where the next is more than 1.5 hops later, or earlier, no
        event or alarm goes on. Delays are of these times.

    Returns
    -------
    EventFigures

    Raises
    ------
    InputError
        If there is no window, lengths differ or the hop is no time.

    Examples
    --------
    >>> figures = event_figures([0, 1, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1, 0], positive=1,
    ...                         hop_seconds=0.5)
    >>> figures.events, figures.missed, figures.false_alarms, figures.mean_delay_seconds
    (1, 0, 1, 0.5)
    """
    decided, real = np.asarray(labels), np.asarray(truth)
    if decided.ndim != 1 or decided.shape != real.shape or not len(decided):
        raise InputError(f"labels and truth have shapes {decided.shape} and {real.shape}")
    if not 0 < hop_seconds < np.inf:
        raise InputError(f"hop_seconds is {hop_seconds!r}; give seconds above 0")
    n = len(decided)
    seconds = np.arange(n) * hop_seconds if times is None else np.asarray(times, float)
    if seconds.shape != (n,) or not np.isfinite(seconds).all():
        raise InputError(f"times must be {n} finite seconds")
    steps = np.diff(seconds) / hop_seconds
    breaks = np.concatenate([[True], (steps <= 0) | (steps > GAP + 1e-9)])
    alarm, event = np.isin(decided, positive), np.isin(real, positive)  # type: ignore[arg-type]
    delays, missed, events = [], 0, 0
    for begin, end in _runs(event, breaks):
        events += 1
        if alarm[begin:end].any():
            delays.append(float(seconds[begin + alarm[begin:end].argmax()] - seconds[begin]))
        else:
            missed += 1
    false = sum(not event[begin:end].any() for begin, end in _runs(alarm, breaks))
    mean = float(np.mean(delays)) if delays else None
    return EventFigures(events, missed, false, n * hop_seconds / 3600.0, mean)


def _runs(marked: NDArray[np.bool_], breaks: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and end of each run of marked windows; none goes over a break."""
    before = np.concatenate([[False], marked[:-1]])
    starts = np.flatnonzero(marked & (~before | breaks))
    after = np.concatenate([marked[1:], [False]])
    last = np.concatenate([breaks[1:], [True]])
    ends = np.flatnonzero(marked & (~after | last)) + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))
