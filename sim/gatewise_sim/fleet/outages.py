"""Outages on a schedule.

A window is written ``COMPONENT:FROM-TO``. Times of day define an outage on every simulated day.
Times with a ``+`` count from the start of the run, and define one outage::

    cloud:12:00-12:10            the cloud (or link, broker), for ten minutes from noon every day
    link:+30s-+35s               the link, once, for five seconds
    workers:2:+1min-+90s         two of the workers, once, for half a minute
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Self

import msgspec
from msgspec.structs import replace

from gatewise.errors import InputError
from gatewise.formats import DAY, read_clock, read_span

COMPONENTS: Final = ("cloud", "link", "broker", "workers")
#: Time (s) by which the schedule extends beyond the run, because the last answers and connections
#: may have to wait for the end of an outage.
_MARGIN_SECONDS: Final = 2 * DAY


@dataclass(frozen=True)
class OutageWindow:
    """A window ``[begin, end)`` in which a component is down, in s since the start of the run.

    The times of a daily window count from midnight. If its end is before its beginning, the window
    ends on the next day. `n_workers` is the number of workers that are down.
    """

    component: str
    begin_s: float
    end_s: float
    is_daily: bool = False
    n_workers: int = 1

    def __post_init__(self) -> None:
        if self.begin_s == self.end_s or (self.end_s < self.begin_s and not self.is_daily):
            raise InputError(f"outage of {self.component}: its end must be after its beginning")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a window, written as the module's docstring describes."""
        text = text.strip()
        component, colon, times_text = text.partition(":")
        if not colon or component not in COMPONENTS:
            raise InputError(
                f"outage {text!r}: write it as cloud:12:00-12:10 or link:+30s-+35s; "
                f"the components are {', '.join(COMPONENTS)}"
            )
        n_workers = 1
        if component == "workers":
            n_workers_text, _, times_text = times_text.partition(":")
            if not n_workers_text.isdecimal() or not int(n_workers_text):
                raise InputError(
                    f"outage {text!r}: give the number of workers, such as workers:2:+30s-+35s"
                )
            n_workers = int(n_workers_text)
        begin_s, end_s, is_daily = _parse_times(times_text, f"outage {text!r}")
        return cls(component, begin_s, end_s, is_daily, n_workers)

    def spans(self, horizon_s: float, start_time_of_day: float) -> Iterator[tuple[float, float]]:
        """Yield the spans (s since the start of the run) that begin before `horizon_s`.

        `start_time_of_day` is the time of day (s) at the start of the run.
        """
        if not self.is_daily:
            if self.begin_s < horizon_s:
                yield self.begin_s, self.end_s
            return
        length_s = self.end_s - self.begin_s
        if length_s < 0:
            length_s += DAY
        begin = self.begin_s - start_time_of_day
        # the window of the day before the run may last into the run
        begin -= DAY * math.ceil(max(begin, 0.0) / DAY)
        while begin < horizon_s:
            if begin + length_s > 0:
                yield max(begin, 0.0), begin + length_s
            begin += DAY


def _parse_times(times_text: str, error_subject: str) -> tuple[float, float, bool]:
    """Parse ``FROM-TO``; return both times in s, and whether they are times of day."""
    begin_text, dash, end_text = times_text.partition("-")
    if not dash or begin_text.startswith("+") != end_text.startswith("+"):
        raise InputError(
            f"{error_subject}: give two times of day (12:00-12:10), or two times since the "
            "start (+30s-+35s)"
        )
    if begin_text.startswith("+"):
        begin_s = read_span(begin_text[1:], error_subject)
        return begin_s, read_span(end_text[1:], error_subject), False
    begin_s = read_clock(begin_text, error_subject) % DAY  # a beginning of 24:00 is midnight
    return begin_s, read_clock(end_text, error_subject), True


class FaultSpan(msgspec.Struct, frozen=True, kw_only=True, order=True, forbid_unknown_fields=True):
    """Outage from `begin` to `end` (s) of the part `what`, or of `count` workers."""

    what: str
    begin: float
    end: float
    count: int = 1


class Outages:
    """Outages of a run of `run_seconds` that starts at the time of day `start_time_of_day` (s).

    >>> outages = Outages.parse(["cloud:12:00-12:10", "workers:2:+30s-+40s"], run_seconds=60.0)
    >>> outages.recovery_time("cloud", 12 * 3600.0), outages.recovery_time("cloud", 0.0)
    (43800.0, None)
    >>> outages.n_workers_down(35.0)
    2
    """

    def __init__(
        self,
        windows: Iterable[OutageWindow] = (),
        *,
        run_seconds: float,
        start_time_of_day: float = 0.0,
    ) -> None:
        self.windows = tuple(windows)
        self.run_seconds = run_seconds
        self.start_time_of_day = start_time_of_day
        self._horizon_s = run_seconds + _MARGIN_SECONDS
        self._spans = [
            FaultSpan(what=window.component, begin=begin, end=end, count=window.n_workers)
            for window in self.windows
            for begin, end in window.spans(self._horizon_s, start_time_of_day)
        ]
        self._merged_spans = {
            component: merge_spans(
                (span.begin, span.end) for span in self._spans if span.what == component
            )
            for component in COMPONENTS
        }

    @classmethod
    def parse(
        cls, window_texts: Iterable[str], *, run_seconds: float, start_time_of_day: float = 0.0
    ) -> Self:
        """Parse windows; an InputError names the invalid one."""
        windows = [OutageWindow.parse(text) for text in window_texts]
        return cls(windows, run_seconds=run_seconds, start_time_of_day=start_time_of_day)

    def __bool__(self) -> bool:
        return bool(self.windows)

    def recovery_time(self, component: str, now: float) -> float | None:
        """Get the time (s) at which a component that is down at `now` (s) recovers.

        It is None if the component is up, and infinity if it does not recover within two days after
        the run. Adjacent and overlapping windows count as one. ``workers`` recover when no worker
        is down.
        """
        spans = self._merged_spans[component]
        span_index = bisect_right(spans, now, key=lambda span: span[0]) - 1
        if span_index < 0 or now >= spans[span_index][1]:
            return None
        end = spans[span_index][1]
        return math.inf if end >= self._horizon_s else end

    def n_workers_down(self, now: float) -> int:
        """Count the workers that are down at `now` (s), summed over overlapping windows."""
        return sum(
            span.count
            for span in self._spans
            if span.what == "workers" and span.begin <= now < span.end
        )

    def change_times(self) -> list[float]:
        """List the sorted times (s) within the run at which a component goes down or recovers."""
        times = {time for span in self._spans for time in (span.begin, span.end)}
        return sorted(time for time in times if time < self.run_seconds)

    def spans_within_run(self) -> list[FaultSpan]:
        """List the outages, cut at the end of the run, sorted by component and begin."""
        return sorted(
            replace(span, end=min(span.end, self.run_seconds))
            for span in self._spans
            if span.begin < self.run_seconds
        )

    def components_outside_run(self) -> list[str]:
        """List the component of each window that lies outside the run."""
        return [
            window.component
            for window in self.windows
            if next(window.spans(self.run_seconds, self.start_time_of_day), None) is None
        ]


def merge_spans(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Sort spans of time, and merge adjacent and overlapping ones.

    >>> merge_spans([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0)])
    [(0.0, 3.0), (5.0, 6.0)]
    """
    merged_spans: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if merged_spans and begin <= merged_spans[-1][1]:
            merged_spans[-1] = merged_spans[-1][0], max(end, merged_spans[-1][1])
        else:
            merged_spans.append((begin, end))
    return merged_spans
