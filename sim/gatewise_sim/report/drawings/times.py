"""Moments of a run on an axis: since its beginning, or as times of day if it is a long one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

__all__ = ["TimeScale"]

_DAY: Final = 86_400.0
_LONG: Final = 4 * 3600.0  # from here on people think in times of day
_STEPS: Final = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60.0 * m for m in (1, 2, 5, 10, 15, 30)),
    *(3600.0 * h for h in (1, 2, 3, 6, 12)),
    *(_DAY * d for d in (1, 2, 7, 14, 28)),
)


@dataclass(frozen=True)
class TimeScale:
    """How the moments of one run are written.

    Parameters
    ----------
    seconds : float
        Of the whole run.
    day_begins : float, default 0
        Time of day at which it begins, in seconds since midnight.
    """

    seconds: float
    day_begins: float = 0.0

    @property
    def of_day(self) -> bool:
        """Whether moments are written as times of day."""
        return self.seconds >= _LONG

    def ticks(self, begin: float, end: float, about: int) -> list[float]:
        """Round moments within [begin, end], about so many at most.

        Examples
        --------
        >>> TimeScale(86_400).ticks(0, 86_400, 5)
        [0.0, 21600.0, 43200.0, 64800.0, 86400.0]
        """
        offset = self.day_begins if self.of_day else 0.0
        raw = (end - begin) / max(about, 1)
        step = next((s for s in _STEPS if s >= raw * 0.999), _STEPS[-1])
        while (end - begin) / step > 2 * about:
            step *= 2
        first = math.ceil((begin + offset) / step - 1e-9)
        last = math.floor((end + offset) / step + 1e-9)
        return [round(k * step - offset, 6) for k in range(first, last + 1)]

    def label(self, at: float) -> str:
        """Write one moment; seconds and parts of them only where they are needed.

        Examples
        --------
        >>> day = TimeScale(86_400)
        >>> day.label(43_200), day.label(43_230), TimeScale(120).label(90), TimeScale(3).label(0.5)
        ('12:00', '12:00:30', '1:30', '0.5')
        >>> TimeScale(3 * 86_400, day_begins=43_200).label(43_200)
        'day 2'
        """
        if not self.of_day:
            if self.seconds < 60:
                return f"{at:.4g}"
            minutes, left = divmod(round(at, 1), 60)
            return (
                f"{minutes:.0f}:{left:02.0f}"
                if left == int(left)
                else f"{minutes:.0f}:{left:04.1f}"
            )
        day, of_day = divmod(round(at + self.day_begins), int(_DAY))
        if of_day == 0 and self.seconds > _DAY:
            return f"day {day + 1:.0f}"
        hours, left = divmod(of_day, 3600)
        text = f"{hours:02.0f}:{left // 60:02.0f}"
        if of_day == 0 and at > 0:
            text = "24:00"
        return f"{text}:{left % 60:02.0f}" if left % 60 else text

    @property
    def unit(self) -> str:
        """What the labels are, for the axis."""
        if self.of_day:
            return "time of day"
        return "seconds since the start" if self.seconds < 60 else "minutes since the start"

    def span(self, begin: float, end: float) -> str:
        """Write a window of time.

        Examples
        --------
        >>> TimeScale(86_400).span(43_200, 43_800), TimeScale(120).span(30, 45)
        ('12:00 to 12:10', '0:30 to 0:45')
        """
        return f"{self.label(begin)} to {self.label(end)}"
