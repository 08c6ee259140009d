"""Labels of windows that follow each other: filters that smooth them, and figures of events."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.errors import InputError

NO_PROBABILITIES: Mapping[Hashable, float] = {}


class MajorityFilter:
    """The most frequent label of the last windows.

    Among labels that are as frequent, the smoothed label before stays; where it is not among them,
    it is the latest of them.

    Parameters
    ----------
    windows : int
        The last one among them. A change that lasts is seen ``windows // 2`` windows later.

    Examples
    --------
    >>> majority = MajorityFilter(3)
    >>> [majority.push(label) for label in "aabaabbb"]
    ['a', 'a', 'a', 'a', 'a', 'a', 'b', 'b']
    >>> majority.delay
    1
    """

    def __init__(self, windows: int) -> None:
        self._last: deque[Hashable] = deque(maxlen=_count("majority", windows))
        self._smoothed: Hashable = None

    @property
    def delay(self) -> int:
        """Windows by which a change that lasts is seen later."""
        return (self._last.maxlen or 0) // 2

    def push(
        self, label: Hashable, probabilities: Mapping[Hashable, float] = NO_PROBABILITIES
    ) -> Hashable:
        """Take the next window's `label` (no `probabilities` are read), get the smoothed one."""
        self._last.append(label)
        counts = Counter(self._last)
        highest = max(counts.values())
        if counts[self._smoothed] < highest:
            self._smoothed = next(c for c in reversed(self._last) if counts[c] == highest)
        return self._smoothed

    def reset(self) -> None:
        """Forget the windows so far, as after a gap."""
        self._last.clear()
        self._smoothed = None


class TwoStateFilter:
    """A class that begins where it is likely for some windows, and ends where it is unlikely.

    While it is on, the smoothed label is that class; else it is the most likely other one.

    Parameters
    ----------
    positive : label
        The class.
    enter : float
        Begin once the class's probability was at least this for `windows` successive windows.
    leave : float
        End once it is below this, at most `enter`.
    windows : int, default 1
        Number of successive windows for `enter`.

    Examples
    --------
    >>> state = TwoStateFilter("fall", enter=0.8, leave=0.4, windows=2)
    >>> [state.push("", {"fall": p, "walk": 1 - p}) for p in (0.9, 0.1, 0.8, 0.9, 0.5, 0.3)]
    ['walk', 'walk', 'walk', 'fall', 'fall', 'walk']
    """

    def __init__(self, positive: Hashable, *, enter: float, leave: float, windows: int = 1) -> None:
        if not 0 <= leave <= enter <= 1:
            raise InputError(
                f"two-state: enter is {enter} and leave {leave}; give probabilities, leave at most "
                "enter"
            )
        self.positive = positive
        self.enter = enter
        self.leave = leave
        self.windows = _count("two-state", windows)
        self._on = False
        self._likely = 0

    @property
    def delay(self) -> int:
        """Windows by which the beginning is seen later."""
        return self.windows - 1

    def push(
        self, label: Hashable, probabilities: Mapping[Hashable, float] = NO_PROBABILITIES
    ) -> Hashable:
        """Take the next window's `probabilities` by label, get the smoothed label.

        `label` is not read. InputError if the class has no probability, or is the only one.
        """
        if self.positive not in probabilities or len(probabilities) < 2:
            raise InputError(f"two-state: {self.positive!r} is none of {[*probabilities]}")
        likely = probabilities[self.positive]
        # hysteresis: on from `enter` for some windows, off below `leave`
        self._likely = self._likely + 1 if likely >= self.enter else 0
        self._on = likely >= self.leave if self._on else self._likely >= self.windows
        other_classes = {c: p for c, p in probabilities.items() if c != self.positive}
        return self.positive if self._on else max(other_classes, key=other_classes.__getitem__)

    def reset(self) -> None:
        """Forget the windows so far, as after a gap."""
        self._on = False
        self._likely = 0


def parse_filter(text: str, labels: tuple[Hashable, ...]) -> MajorityFilter | TwoStateFilter:
    """Make a filter of ``majority:K`` or ``two-state:LABEL,ENTER,LEAVE,WINDOWS``.

    Raises InputError if it is neither, or none of the labels is named so.
    """
    kind, _, arguments = text.partition(":")
    try:
        if kind == "majority":
            return MajorityFilter(int(arguments))
        if kind == "two-state":
            name, enter, leave, windows = arguments.rsplit(",", 3)
            matches = [label for label in labels if str(label) == name]
            if not matches:
                names = ", ".join(map(str, labels))
                raise InputError(f"{text}: there is no label {name!r}; the labels are {names}")
            return TwoStateFilter(
                matches[0], enter=float(enter), leave=float(leave), windows=int(windows)
            )
    except InputError:
        raise
    except ValueError:
        pass
    raise InputError(f"{text}: give majority:K or two-state:LABEL,ENTER,LEAVE,WINDOWS")


def _count(what: str, windows: int) -> int:
    if isinstance(windows, bool) or not isinstance(windows, int) or not 1 <= windows <= 10**6:
        raise InputError(f"{what}: {windows!r} windows; give a whole number, at least 1")
    return windows


# -- events -------------------------------------------------------------------------------

GAP = 1.5
"""Largest distance, in hops, of two windows that follow each other."""


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
        Decisions on windows that follow each other, and their true classes.
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
        If windows are missing, lengths differ, or the hop is not a number above 0.

    Examples
    --------
    >>> figures = event_figures([0, 1, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1, 0], positive=1,
    ...                         hop_seconds=0.5)
    >>> figures.events, figures.missed, figures.false_alarms, figures.mean_delay_seconds
    (1, 0, 1, 0.5)
    """
    decided = np.asarray(labels)
    real = np.asarray(truth)
    if decided.ndim != 1 or decided.shape != real.shape or not len(decided):
        raise InputError(f"labels and truth have shapes {decided.shape} and {real.shape}")
    if not 0 < hop_seconds < np.inf:
        raise InputError(f"hop_seconds is {hop_seconds!r}; give seconds above 0")
    n = len(decided)
    seconds = np.arange(n) * hop_seconds if times is None else np.asarray(times, float)
    if seconds.shape != (n,) or not np.isfinite(seconds).all():
        raise InputError(f"times must be {n} finite seconds")
    # Runs of windows end at breaks in time; an event counts as seen from its first alarm on.
    steps = np.diff(seconds) / hop_seconds
    breaks = np.concatenate([[True], (steps <= 0) | (steps > GAP + 1e-9)])
    alarm = np.isin(decided, positive)  # type: ignore[arg-type]
    event = np.isin(real, positive)  # type: ignore[arg-type]
    delays = []
    missed = 0
    events = 0
    for begin, stop in _runs(event, breaks):
        events += 1
        if alarm[begin:stop].any():
            delays.append(float(seconds[begin + alarm[begin:stop].argmax()] - seconds[begin]))
        else:
            missed += 1
    false = sum(not event[begin:stop].any() for begin, stop in _runs(alarm, breaks))
    mean = float(np.mean(delays)) if delays else None
    return EventFigures(events, missed, false, n * hop_seconds / 3600.0, mean)


def _runs(marked: NDArray[np.bool_], breaks: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and end of each run of marked windows; none goes over a break."""
    # a run starts behind an unmarked window or a break, and stops before one
    before = np.concatenate([[False], marked[:-1]])
    starts = np.flatnonzero(marked & (~before | breaks))
    after = np.concatenate([marked[1:], [False]])
    is_last = np.concatenate([breaks[1:], [True]])
    stops = np.flatnonzero(marked & (~after | is_last)) + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))
