"""Outages on a schedule.

A window is written ``WHAT:FROM-TO``. A time of day applies to every simulated day; ``+30s`` counts
from the start of the run and happens once::

    cloud:12:00-12:10            the cloud, ten minutes at every noon (or link, broker)
    link:+30s-+35s               the link, once, for five seconds
    workers:2:+1min-+90s         two of the workers
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Self

from gatewise.errors import InputError
from gatewise.formats import DAY, read_clock, read_span

PARTS: Final = ("cloud", "link", "broker", "workers")
#: Seconds after the run for which the schedule is still known.
_MARGIN: Final = 2 * DAY


@dataclass(frozen=True)
class OutageWindow:
    """One window in which a part is down: ``[begin, end)``, in s since the start of the run.

    The times of a daily window count from midnight; if the end is before the beginning, the window
    ends on the next day. `count` of the workers are down.
    """

    part: str
    begin: float
    end: float
    daily: bool = False
    count: int = 1

    def __post_init__(self) -> None:
        if self.begin == self.end or (self.end < self.begin and not self.daily):
            raise InputError(f"outage of {self.part}: its end must be after its beginning")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read one window in the form that the module's docstring shows."""
        text = text.strip()
        part, colon, window = text.partition(":")
        if not colon or part not in PARTS:
            raise InputError(
                f"outage {text!r}: write it as cloud:12:00-12:10 or link:+30s-+35s; "
                f"{', '.join(PARTS)} can be down"
            )
        count = 1
        if part == "workers":
            number, _, window = window.partition(":")
            if not number.isdecimal() or not int(number):
                raise InputError(
                    f"outage {text!r}: give the number of workers, such as workers:2:+30s-+35s"
                )
            count = int(number)
        begin, dash, end = window.partition("-")
        if not dash or begin.startswith("+") != end.startswith("+"):
            raise InputError(
                f"outage {text!r}: give both ends as times of day (12:00-12:10) or both since the "
                "start (+30s-+35s)"
            )
        context = f"outage {text!r}"
        if begin.startswith("+"):
            return cls(
                part, read_span(begin[1:], context), read_span(end[1:], context), count=count
            )
        # 24:00 begins the next day.
        begin_of_day = read_clock(begin, context) % DAY
        return cls(part, begin_of_day, read_clock(end, context), daily=True, count=count)

    def spans(self, until: float, day_begins: float) -> Iterator[tuple[float, float]]:
        """Spans of time (s since the start of the run) that it is down, if they begin by `until`.

        `day_begins` is the time of day (s) when the run starts.
        """
        if not self.daily:
            if self.begin < until:
                yield self.begin, self.end
            return
        length = self.end - self.begin if self.end > self.begin else self.end + DAY - self.begin
        begin = self.begin - day_begins
        begin -= DAY * math.ceil(max(begin, 0.0) / DAY)
        while begin < until:
            if begin + length > 0:
                yield max(begin, 0.0), begin + length
            begin += DAY


class Outages:
    """Outages of a run of `seconds`; `day_begins` is the time of day (s) when it starts.

    >>> outages = Outages.parse(["cloud:12:00-12:10", "workers:2:+30s-+40s"], seconds=60.0)
    >>> outages.down("cloud", 12 * 3600.0), outages.down("cloud", 0.0)
    (43800.0, None)
    >>> outages.workers_down(35.0)
    2
    """

    def __init__(
        self, windows: Iterable[OutageWindow] = (), *, seconds: float, day_begins: float = 0.0
    ) -> None:
        self.windows = tuple(windows)
        self.seconds = seconds
        self.day_begins = day_begins
        self._horizon = seconds + _MARGIN
        #: Spans by part, each with how many are down.
        self._spans = [
            (window.part, begin, end, window.count)
            for window in self.windows
            for begin, end in window.spans(self._horizon, day_begins)
        ]
        self._merged = {
            part: merged((begin, end) for name, begin, end, _ in self._spans if name == part)
            for part in PARTS
        }

    @classmethod
    def parse(cls, texts: Iterable[str], *, seconds: float, day_begins: float = 0.0) -> Self:
        """Read windows; InputError names the one that cannot be read."""
        windows = [OutageWindow.parse(text) for text in texts]
        return cls(windows, seconds=seconds, day_begins=day_begins)

    def __bool__(self) -> bool:
        return bool(self.windows)

    def down(self, part: str, now: float) -> float | None:
        """Time (s) until which a part that is down at `now` (s) stays down.

        None if it is up, infinity if it never recovers. Windows that touch or overlap are one.
        ``workers`` are down until all have recovered.
        """
        spans = self._merged[part]
        number = bisect_right(spans, now, key=lambda span: span[0]) - 1
        if number < 0 or now >= spans[number][1]:
            return None
        end = spans[number][1]
        return math.inf if end >= self._horizon else end

    def workers_down(self, now: float) -> int:
        """Number of workers that are down at `now` (s): windows that overlap add up."""
        return sum(
            count
            for part, begin, end, count in self._spans
            if part == "workers" and begin <= now < end
        )

    def changes(self) -> list[float]:
        """Times (s) of the run when a part goes down or recovers, sorted."""
        times = {time for _, begin, end, _ in self._spans for time in (begin, end)}
        return sorted(time for time in times if time < self.seconds)

    def faults(self) -> list[tuple[str, float, float, int]]:
        """Outages of the run by time: part, begin, end within the run (s), number of workers."""
        return sorted(
            (part, begin, min(end, self.seconds), count)
            for part, begin, end, count in self._spans
            if begin < self.seconds
        )

    def unreached(self) -> list[str]:
        """Parts of windows that never come in the run."""
        return [
            window.part
            for window in self.windows
            if next(window.spans(self.seconds, self.day_begins), None) is None
        ]


def merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Sort spans of time, and join neighbours that touch or overlap.

    >>> merged([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0)])
    [(0.0, 3.0), (5.0, 6.0)]
    """
    merged_spans: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if merged_spans and begin <= merged_spans[-1][1]:
            merged_spans[-1] = merged_spans[-1][0], max(end, merged_spans[-1][1])
        else:
            merged_spans.append((begin, end))
    return merged_spans
