"""From news of a run to what can be shown: shares, moving rates, time left. No clock, no screen.

Every method that needs a clock gets its reading, in s: the same news at the same times gives the
same picture. Memory is bounded, however long a run is and however often it tells.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, fields, replace
from typing import Final, Literal

from gatewise_sim.fleet.progress import Snapshot
from gatewise_sim.view.faults import Fault, Faults
from gatewise_sim.view.timeline import ROUTES, Bin, TimeLine

__all__ = ["LegDone", "Picture", "State"]

_RECENT: Final = 10.0  # s of the viewer's clock, for rates
_SAMPLES: Final = 100
_LEGS: Final = 24
_TEXT: Final = 160  # characters
_COARSE: Final = 0.2  # of the run's length
_LONGEST: Final = 1e12  # s; a run's clock does not show more
_SURE: Final = 0.5  # s until a rate is worth telling


@dataclass(frozen=True)
class LegDone:
    """A leg that is over.

    Attributes
    ----------
    key, name : str
    answered : int
    offload_rate : float or None
        Share answered by the cloud, or by the device in its stead.
    accuracy : float or None
    took : float
        Seconds on the viewer's clock.
    """

    key: str
    name: str
    answered: int
    offload_rate: float | None
    accuracy: float | None
    took: float


@dataclass(frozen=True, kw_only=True)
class Picture:
    """All that is shown at one moment.

    Attributes
    ----------
    phase : str
        ``waiting`` for the begin, ``running`` or ``ended``.
    title, leg_key, leg_name, text : str
        `text` is the line that the run ended with.
    seconds : float
        Of a leg on the run's clock; 0 = not known.
    total : int or None
        Instances that a leg expects.
    elapsed : float
        Seconds of the viewer's clock that the leg has taken; in the end the whole run.
    left : float or None
        How many it still takes, about; None = not known yet, or none.
    quiet : float
        Seconds of the viewer's clock since the last news.
    now : Snapshot
        The last one told.
    shares : dict of str to float
        By route, of the leg so far; they sum to 1, or are 0 before the first answer.
    offload_rate, accuracy : float or None
        Of the leg so far; the rate counts fallbacks, too.
    rate : float or None
        Answers a second of the viewer's clock, lately.
    speed : float or None
        Seconds of the run a second of the viewer's clock, lately.
    width : float
        Of a bin of the time line, in s of the run.
    span : float
        Of the time line, in s.
    bins : tuple of Bin
        None of them where the run went too fast for its time line to be told.
    faults : tuple of Fault
    legs : tuple of LegDone
    """

    phase: Literal["waiting", "running", "ended"] = "waiting"
    title: str = ""
    leg_key: str = ""
    leg_name: str = ""
    text: str = ""
    seconds: float = 0.0
    total: int | None = None
    elapsed: float = 0.0
    left: float | None = None
    quiet: float = 0.0
    now: Snapshot = field(default_factory=lambda: Snapshot(at=0.0))
    shares: dict[str, float] = field(default_factory=dict)
    offload_rate: float | None = None
    accuracy: float | None = None
    rate: float | None = None
    speed: float | None = None
    width: float = 1.0
    span: float = 0.0
    bins: tuple[Bin, ...] = ()
    faults: tuple[Fault, ...] = ()
    legs: tuple[LegDone, ...] = ()

    @property
    def fault_time(self) -> float | None:
        """Time (s) at which faults are looked at; None while parts of a run come in any order."""
        return None if self.now.piece is not None and self.phase == "running" else self.now.at


class State:
    """Reduces news to a :class:`Picture`."""

    def __init__(self) -> None:
        self._phase: Literal["waiting", "running", "ended"] = "waiting"
        self._title = self._text = ""
        self._seconds = 0.0
        self._total: int | None = None
        self._legs: deque[LegDone] = deque(maxlen=_LEGS)
        self._faults = Faults()
        self._now: Snapshot | None = None
        self._line = TimeLine(0.0)
        self._recent: deque[tuple[float, Snapshot]] = deque(maxlen=_SAMPLES)
        self._system: tuple[str, str, Snapshot, TimeLine] | None = None
        self._first = 0.0
        self._start("", "", 0.0)

    def begin(self, title: str, seconds: float, total: int | None, clock: float) -> None:
        """As :meth:`.ProgressListener.begin`, at a clock's reading (s)."""
        self._close(clock)
        self._phase, self._title, self._text = "running", _clean(title), ""
        self._seconds = seconds if 0 < seconds <= _LONGEST else 0.0
        self._total = total
        self._faults = Faults()
        self._first, self._system = clock, None
        self._start("", "", clock)

    def leg(self, key: str, name: str, clock: float) -> None:
        """As :meth:`.ProgressListener.policy`, at a clock's reading (s)."""
        self._close(clock)
        self._phase = "running"
        self._faults.again()
        self._start(_clean(key), _clean(name), clock)

    def update(self, snapshot: Snapshot, clock: float) -> None:
        """As :meth:`.ProgressListener.advance`, at a clock's reading (s)."""
        new = _sound(snapshot)
        old = self._now
        if old is not None and new.answered < old.answered:
            old = None  # counts began anew
        counts = {
            route: max(getattr(new, route) - (getattr(old, route) if old else 0), 0)
            for route in ROUTES
        }
        begin, end = new.piece or (old.at if old else 0.0, new.at)
        self._line.add(begin, end, counts, new.p50_ms, new.p95_ms)
        sample = (clock, new)
        if self._now is None:  # what came before the first news was getting ready
            self._recent.clear()
            self._origin = sample
        self._now, self._told = new, clock
        # Close news replace each other, so that what is kept always spans the recent time.
        if len(self._recent) > 1 and clock - self._recent[-2][0] < 2 * _RECENT / _SAMPLES:
            self._recent[-1] = sample
        else:
            self._recent.append(sample)
        while len(self._recent) > 2 and clock - self._recent[1][0] > _RECENT:
            self._recent.popleft()

    def fault(self, what: str, up: bool, at: float) -> None:
        """As :meth:`gatewise_sim.fleet.progress.ProgressListener.fault`."""
        if abs(at) <= _LONGEST:
            self._faults.tell(_clean(what), up, at, self._now.at if self._now else None)

    def end(self, text: str, clock: float) -> None:
        """As :meth:`.ProgressListener.end`, at a clock's reading (s).

        What stays to be seen is the system's leg, not the last of its baselines.
        """
        self._close(clock)
        if self._system is not None:
            self._key, self._name, self._now, self._line = self._system
            self._recent.clear()
        self._phase, self._text, self._ended = "ended", _clean(text), clock

    def picture(self, clock: float) -> Picture:
        """Show how all stands at a clock's reading (s)."""
        now = self._now or Snapshot(at=0.0)
        began = self._began
        if self._phase == "ended":
            clock, began = self._ended, self._first
        elapsed = max(clock - began, 0.0) if self._phase != "waiting" else 0.0
        counts = {route: getattr(now, route) for route in ROUTES}
        whole = sum(counts.values())
        rate, speed = self._rates()
        return Picture(
            phase=self._phase,
            title=self._title,
            leg_key=self._key,
            leg_name=self._name,
            text=self._text,
            seconds=self._seconds,
            total=self._total,
            elapsed=elapsed,
            left=self._left(clock) if self._phase == "running" else None,
            quiet=max(clock - self._told, 0.0) if self._phase == "running" else 0.0,
            now=now,
            shares={route: n / whole if whole else 0.0 for route, n in counts.items()},
            offload_rate=_sent(now),
            accuracy=_accuracy(now),
            rate=rate,
            speed=speed,
            width=self._line.width,
            span=self._line.span,
            bins=self._bins(),
            faults=tuple(self._faults.spans),
            legs=tuple(self._legs),
        )

    # -- inside ------------------------------------------------------------------------------

    def _start(self, key: str, name: str, clock: float) -> None:
        self._key, self._name = key, name
        self._began = self._told = self._ended = clock
        self._now = None
        self._line = TimeLine(self._seconds)
        self._recent.clear()
        self._origin = (clock, Snapshot(at=0.0))
        self._recent.append(self._origin)

    def _close(self, clock: float) -> None:
        """Keep what a leg came to."""
        if self._now is not None and self._now.answered and self._phase == "running":
            self._legs.append(
                LegDone(
                    self._key,
                    self._name or self._title,
                    self._now.answered,
                    _sent(self._now),
                    _accuracy(self._now),
                    clock - self._began,
                )
            )
            if self._key == "system":
                self._system = (self._key, self._name, self._now, self._line)

    def _bins(self) -> tuple[Bin, ...]:
        """Copy the time line, unless it was told in so few pieces that it would say nothing."""
        if self._line.grain > _COARSE * self._line.span:
            return ()
        return tuple(replace(bin_) for bin_ in self._line.bins)

    def _rates(self) -> tuple[float | None, float | None]:
        """Answers, and seconds of the run, a second of the viewer's clock."""
        if not self._recent:
            return None, None
        (since, old), (until, new) = self._recent[0], self._recent[-1]
        if until - since < _SURE or new.answered < old.answered:
            return None, None
        speed = (new.at - old.at) / (until - since) if new.at > old.at else None
        return (new.answered - old.answered) / (until - since), speed

    def _left(self, clock: float) -> float | None:
        """Time left: at the lately pace and at the whole leg's, half and half.

        The former follows a change, the latter does not jump.
        """
        if self._now is None or clock - self._began < _SURE:
            return None
        done = self._now.done
        if done >= 1.0:
            return None
        paces = []
        for since, old in (self._recent[0], self._origin):
            if clock - since < _SURE:  # one piece of news: all is known from the leg's begin
                since, old = self._began, Snapshot(at=0.0)
            paces.append((done - old.done) / (clock - since))
        pace = sum(paces) / 2
        return (1.0 - done) / pace if pace > 1e-9 else None


def _sent(now: Snapshot) -> float | None:
    whole = sum(getattr(now, route) for route in ROUTES)
    return (now.cloud + now.fallback) / whole if whole else None


def _accuracy(now: Snapshot) -> float | None:
    judged = now.answered if now.judged is None else now.judged
    return now.right / judged if now.right is not None and judged > 0 else None


def _sound(snapshot: Snapshot) -> Snapshot:
    """Make every number finite: nothing that an engine says may stop the show."""
    changes: dict[str, float | None] = {
        f.name: None if f.name.endswith("_ms") else 0
        for f in fields(snapshot)
        if isinstance(value := getattr(snapshot, f.name), float) and not math.isfinite(value)
    }
    if snapshot.piece is not None and not all(abs(end) <= _LONGEST for end in snapshot.piece):
        snapshot = replace(snapshot, piece=None)
    done = changes.get("done", snapshot.done) or 0.0
    at = changes.get("at", snapshot.at) or 0.0
    changes["done"], changes["at"] = min(max(done, 0.0), 1.0), min(max(at, 0.0), _LONGEST)
    return replace(snapshot, **changes)  # type: ignore[arg-type]


def _clean(text: str) -> str:
    """Names come from files: no control characters, and not without end."""
    text = " ".join(str(text).split())
    text = "".join(c for c in text if c.isprintable())
    return text if len(text) <= _TEXT else text[: _TEXT - 1] + "\N{HORIZONTAL ELLIPSIS}"
