"""What became of the instances along a run, in so many bins however long it takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["ROUTES", "Bin", "TimeLine"]

ROUTES: Final = ("edge", "cloud", "fallback", "error")
_BINS: Final = 120
_FIRST: Final = 0.05  # s, width of a bin where the run's length is not known (or shorter)


@dataclass(slots=True)
class Bin:
    """A piece of the run.

    Attributes
    ----------
    edge, cloud, fallback, error : float
        Answers in it; parts of one, where news spans several bins.
    p50_ms, p95_ms : float or None
        The latest latencies told in it, in ms.
    """

    edge: float = 0.0
    cloud: float = 0.0
    fallback: float = 0.0
    error: float = 0.0
    p50_ms: float | None = None
    p95_ms: float | None = None

    @property
    def answered(self) -> float:
        """All answers in it."""
        return self.edge + self.cloud + self.fallback + self.error

    @property
    def sent_rate(self) -> float | None:
        """Share answered by the cloud or in its stead; None without answers."""
        return (self.cloud + self.fallback) / self.answered if self.answered else None

    @property
    def fallback_rate(self) -> float | None:
        """Share of fallbacks and errors; None without answers."""
        return (self.fallback + self.error) / self.answered if self.answered else None

    def take(self, other: Bin) -> None:
        """Add what comes after it."""
        for route in ROUTES:
            setattr(self, route, getattr(self, route) + getattr(other, route))
        if other.p50_ms is not None:
            self.p50_ms = other.p50_ms
        if other.p95_ms is not None:
            self.p95_ms = other.p95_ms


class TimeLine:
    """Bins of equal width from 0 on; when time runs past the last, two and two become one.

    Parameters
    ----------
    seconds : float
        Expected length; 0 or infinity = not known.
    bins : int, default 120
        At most, even.

    Attributes
    ----------
    width : float
        Of a bin, in s.
    bins : list of Bin
        Up to the latest time told, at most the number given.
    grain : float
        The longest time (s) that one piece of news was spread over: nothing shorter is to be seen.

    Examples
    --------
    >>> line = TimeLine(60.0, bins=6)
    >>> line.add(0.0, 20.0, {"edge": 8, "cloud": 2})
    >>> [(b.edge, b.cloud) for b in line.bins]
    [(4.0, 1.0), (4.0, 1.0)]
    """

    def __init__(self, seconds: float, bins: int = _BINS) -> None:
        self._most = bins
        known = math.isfinite(seconds) and seconds >= _FIRST
        self._expected = seconds if known else 0.0
        self.width = seconds / bins if known else _FIRST
        self.bins: list[Bin] = []
        self.grain = 0.0

    @property
    def span(self) -> float:
        """How long the line is, in s: as expected, or as long as it took."""
        return max(self._expected, len(self.bins) * self.width)

    def add(
        self,
        begin: float,
        end: float,
        counts: Mapping[str, float],
        p50_ms: float | None = None,
        p95_ms: float | None = None,
    ) -> None:
        """Spread answers evenly over the bins from `begin` to `end`.

        Parameters
        ----------
        begin, end : float
            In s. Where the end does not lie behind the begin, all is its end's.
        counts : mapping of str to float
            Answers by route.
        p50_ms, p95_ms : float or None
            Latency there, in ms.
        """
        end = max(end, 0.0)
        begin = begin if 0 <= begin < end else end
        self.grain = max(self.grain, end - begin)
        while end > self.width * self._most:
            self._halve()
        # A time on a border belongs to the piece that ends there.
        last = max(math.ceil(end / self.width) - 1, 0)
        first = min(int(begin / self.width), last)
        while len(self.bins) <= last:
            self.bins.append(Bin())
        share = 1.0 / (last - first + 1)
        for at in range(first, last + 1):
            part = {route: share * counts.get(route, 0.0) for route in ROUTES}
            self.bins[at].take(Bin(**part, p50_ms=p50_ms, p95_ms=p95_ms))

    def _halve(self) -> None:
        merged = self.bins[::2]
        for bin_, after in zip(merged, self.bins[1::2], strict=False):
            bin_.take(after)
        self.bins = merged
        self.width *= 2
