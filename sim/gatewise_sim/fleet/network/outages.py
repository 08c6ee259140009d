"""Outages on a schedule: what is down, and until when.

A window is written ``WHAT:FROM-TO`` and several are joined by commas. A time of day is that of
every simulated day; ``+30s`` counts from the start of the run and happens once::

    cloud:12:00-12:10            the cloud, ten minutes at every noon (or link, broker)
    link:+30s-+35s               the link, once, for five seconds
    workers:2:+1min-+90s         two of the workers
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Self

from gatewise.errors import InputError
from gatewise.formats import DAY, read_clock, read_span

PARTS: Final = ("cloud", "link", "broker", "workers")


@dataclass(frozen=True)
class Outage:
    """One window in which something is down: ``[begin, end)``, in s since the start of the run.

    A daily one counts from midnight, and runs over it if its end does not lie behind its begin.
    `count` of the workers are down.
    """

    what: str
    begin: float
    end: float
    daily: bool = False
    count: int = 1

    def __post_init__(self) -> None:
        if self.what not in PARTS:
            raise InputError(f"outage {self.what!r}: choose one of {', '.join(PARTS)}")
        if self.count < 1:
            raise InputError(f"outage of {self.what}: {self.count} must be at least 1")
        if self.begin == self.end or (self.end < self.begin and not self.daily):
            raise InputError(f"outage of {self.what}: its end must lie behind its begin")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read one window, as the module's head shows."""
        text = text.strip()
        what, colon, window = text.partition(":")
        if not colon or what not in PARTS:
            raise InputError(
                f"outage {text!r}: write it as cloud:12:00-12:10 or link:+30s-+35s; "
                f"{', '.join(PARTS)} can be down"
            )
        count = 1
        if what == "workers":
            number, _, window = window.partition(":")
            if not number.isdecimal() or not int(number):
                raise InputError(f"outage {text!r}: say how many workers, as workers:2:+30s-+35s")
            count = int(number)
        begin, dash, end = window.partition("-")
        if not dash or begin.startswith("+") != end.startswith("+"):
            raise InputError(
                f"outage {text!r}: give both ends as times of day (12:00-12:10) or both since the "
                "start (+30s-+35s)"
            )
        where = f"outage {text!r}"
        if begin.startswith("+"):
            return cls(what, read_span(begin[1:], where), read_span(end[1:], where), count=count)
        # 24:00 begins the next day.
        first = read_clock(begin, where) % DAY
        return cls(what, first, read_clock(end, where), daily=True, count=count)

    def spans(self, until: float, day_begins: float) -> Iterable[tuple[float, float]]:
        """Every time it is down, in seconds since the start of the run, before `until` (s)."""
        if not self.daily:
            if self.begin < until:
                yield self.begin, self.end
            return
        length = self.end - self.begin if self.end > self.begin else self.end + DAY - self.begin
        begin = self.begin - day_begins
        while begin > 0:
            begin -= DAY
        while begin < until:
            if begin + length > 0:
                yield max(begin, 0.0), begin + length
            begin += DAY


class Outages:
    """What is down in which `windows`; `day_begins` is the time of day (s) when the run starts.

    >>> outages = Outages.parse("cloud:12:00-12:10,workers:2:+30s-+40s")
    >>> outages.down("cloud", 12 * 3600.0), outages.down("cloud", 0.0)
    (43800.0, None)
    >>> outages.workers_down(35.0)
    2
    """

    def __init__(self, windows: Iterable[Outage] = (), *, day_begins: float = 0.0) -> None:
        self.windows = tuple(windows)
        self.day_begins = day_begins
        self._horizon = 0.0
        self._merged: dict[str, list[tuple[float, float]]] = {}  # of each part, up to the horizon

    @classmethod
    def parse(cls, text: str, *, day_begins: float = 0.0) -> Self:
        """Read windows joined by commas, none if `text` is empty.

        `day_begins` as of the class. InputError if one cannot be read.
        """
        parts = [part for part in text.split(",") if part.strip()]
        return cls([Outage.parse(part) for part in parts], day_begins=day_begins)

    def __bool__(self) -> bool:
        return bool(self.windows)

    def down(self, what: str, now: float) -> float | None:
        """Until when (s) `what` is down at `now` (s); None if it is up, infinity if for good.

        Windows that touch or overlap are one. Of ``workers``: until all are back.
        """
        if now + 2 * DAY > self._horizon:
            last = max((w.end for w in self.windows if not w.daily), default=0.0)
            self._horizon = max(2 * (now + 2 * DAY), last + 2 * DAY)
            self._merged.clear()
        if what not in self._merged:
            windows = [window for window in self.windows if window.what == what]
            spans = (s for w in windows for s in w.spans(self._horizon, self.day_begins))
            self._merged[what] = merged(spans)
        at = bisect_right(self._merged[what], now, key=lambda span: span[0]) - 1
        if at < 0 or not now < self._merged[what][at][1]:
            return None
        end = self._merged[what][at][1]
        # All that was asked about lies two days before: only what never ends gets there.
        return math.inf if end >= self._horizon else end

    def workers_down(self, now: float) -> int:
        """How many workers are down at `now` (s): windows that overlap add up."""
        just_after = math.nextafter(now, math.inf)
        return sum(
            window.count
            for window in self.windows
            if window.what == "workers"
            and any(b <= now < e for b, e in window.spans(just_after, self.day_begins))
        )

    def changes(self, seconds: float) -> list[float]:
        """Every time before `seconds` when something goes down or comes back, sorted."""
        spans = (s for w in self.windows for s in w.spans(seconds, self.day_begins))
        return sorted({at for span in spans for at in span if at < seconds})

    def faults(self, seconds: float) -> list[tuple[str, float, float, int]]:
        """All that is down before `seconds`: (what, begin, end, how many), by time, within it."""
        return sorted(
            (window.what, begin, min(end, seconds), window.count if window.what == "workers" else 1)
            for window in self.windows
            for begin, end in window.spans(seconds, self.day_begins)
        )

    def announce(self, on_fault: Callable[[str, bool, float], None], seconds: float) -> None:
        """Report to `on_fault` all changes before `seconds`: what, whether it is up, when (s)."""
        changes = [
            (when, what if what != "workers" else f"{count} workers", up)
            for what, begin, end, count in self.faults(seconds)
            for when, up in ((begin, False), (end, True))
        ]
        for when, what, up in sorted(changes):
            on_fault(what, up, when)


def merged(spans: Iterable[tuple[float, float]], gap: float = 0.0) -> list[tuple[float, float]]:
    """Sort spans of time, and join those that overlap or are at most `gap` apart.

    >>> merged([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0)], gap=1.0)
    [(0.0, 3.0), (5.0, 6.0)]
    """
    found: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1] + gap:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found
