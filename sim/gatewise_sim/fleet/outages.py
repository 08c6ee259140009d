"""Outages on a schedule.

A window is written ``PART:FROM-TO``. Times of day define an outage on every simulated day. Times
with a ``+`` count from the start of the run, and define one outage::

    cloud:12:00-12:10            the cloud (or link, broker), ten minutes at every noon
    link:+30s-+35s               the link, once, for five seconds
    workers:2:+1min-+90s         two of the workers, once
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
#: Seconds after the run for which the schedule is computed.
_MARGIN: Final = 2 * DAY


@dataclass(frozen=True)
class OutageWindow:
    """A window ``[begin, end)`` in which a part is down, in s since the start of the run.

    The times of a daily window count from midnight. If its end is before its beginning, the window
    ends on the next day. `count` is the number of workers that are down.
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
        """Parse a window, written as the module's docstring describes."""
        text = text.strip()
        part, colon, window = text.partition(":")
        if not colon or part not in PARTS:
            raise InputError(
                f"outage {text!r}: write it as cloud:12:00-12:10 or link:+30s-+35s; "
                f"the parts are {', '.join(PARTS)}"
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
                f"outage {text!r}: give two times of day (12:00-12:10), or two times since the "
                "start (+30s-+35s)"
            )
        context = f"outage {text!r}"
        if begin.startswith("+"):
            return cls(
                part, read_span(begin[1:], context), read_span(end[1:], context), count=count
            )
        # A beginning of 24:00 is midnight.
        begin_of_day = read_clock(begin, context) % DAY
        return cls(part, begin_of_day, read_clock(end, context), daily=True, count=count)

    def spans(self, until: float, day_begins: float) -> Iterator[tuple[float, float]]:
        """Yield the spans (s since the start of the run) of the window that begin before `until`.

        `day_begins` is the time of day (s) at the start of the run.
        """
        if not self.daily:
            if self.begin < until:
                yield self.begin, self.end
            return
        length = self.end - self.begin if self.end > self.begin else self.end + DAY - self.begin
        begin = self.begin - day_begins
        begin -= DAY * math.ceil(max(begin, 0.0) / DAY)  # the first may last into the run
        while begin < until:
            if begin + length > 0:
                yield max(begin, 0.0), begin + length
            begin += DAY


class Outages:
    """Outages of a run of `seconds` that starts at the time of day `day_begins` (s).

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
        #: Part, begin, end and number of workers of each span.
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
        """Parse windows; an InputError names the invalid one."""
        windows = [OutageWindow.parse(text) for text in texts]
        return cls(windows, seconds=seconds, day_begins=day_begins)

    def __bool__(self) -> bool:
        return bool(self.windows)

    def down(self, part: str, now: float) -> float | None:
        """Get the time (s) at which a part that is down at `now` (s) recovers.

        It is None if the part is up, and infinity if the part never recovers. Adjacent and
        overlapping windows count as one. ``workers`` recover when no worker is down.
        """
        spans = self._merged[part]
        span_index = bisect_right(spans, now, key=lambda span: span[0]) - 1
        if span_index < 0 or now >= spans[span_index][1]:
            return None
        end = spans[span_index][1]
        return math.inf if end >= self._horizon else end

    def workers_down(self, now: float) -> int:
        """Number of workers that are down at `now` (s), summed over overlapping windows."""
        return sum(
            count
            for part, begin, end, count in self._spans
            if part == "workers" and begin <= now < end
        )

    def changes(self) -> list[float]:
        """Times (s) within the run at which a part goes down or recovers, sorted."""
        times = {time for _, begin, end, _ in self._spans for time in (begin, end)}
        return sorted(time for time in times if time < self.seconds)

    def faults(self) -> list[tuple[str, float, float, int]]:
        """Part, begin, end (s) and number of workers of each outage within the run, sorted."""
        return sorted(
            (part, begin, min(end, self.seconds), count)
            for part, begin, end, count in self._spans
            if begin < self.seconds
        )

    def unreached(self) -> list[str]:
        """Parts of the windows that do not begin within the run."""
        return [
            window.part
            for window in self.windows
            if next(window.spans(self.seconds, self.day_begins), None) is None
        ]


def merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Sort spans of time, and merge adjacent and overlapping ones.

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
