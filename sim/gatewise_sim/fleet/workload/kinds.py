"""Kinds of workloads: how instances come to one device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gatewise.columns.csv_file import csv_rows
from gatewise.errors import InputError
from gatewise.formats import DAY

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


class Workload:
    """How instances come to one device; `rate` is per second."""

    rate: float

    @property
    def mean_rate(self) -> float:
        """Arrivals per second, over a long time."""
        return self.rate

    def keep(self, times: _Floats, draw: _Floats) -> npt.NDArray[np.bool_] | None:
        """Which arrivals are real, from a uniform number each; None for all of them."""
        return None


@dataclass(frozen=True)
class Poisson(Workload):
    """Independent arrivals at a rate per second."""

    rate: float


@dataclass(frozen=True)
class Periodic(Workload):
    """One arrival in each period (s), later by a uniform part of `jitter`, at most the period.

    `aligned`: all devices are in step.
    """

    period: float
    jitter: float = 0.0
    aligned: bool = False

    def __post_init__(self) -> None:
        if not self.period > 0:
            raise InputError("workload periodic: the period must be above 0")
        if not 0 <= self.jitter <= self.period:
            raise InputError("workload periodic: jitter must not be longer than the period")

    @property
    def mean_rate(self) -> float:
        return 1 / self.period


@dataclass(frozen=True)
class Bursty(Workload):
    """A Markov-modulated Poisson process: quiet, with bursts.

    `rate` is per second over all, `ratio` the rate in a burst over that in quiet; `burst` is the
    mean length of a burst and `every` the mean time from one's begin to the next one's (s), both
    states of exponential length.
    """

    rate: float
    ratio: float = 20.0
    burst: float = 30.0
    every: float = 600.0

    def __post_init__(self) -> None:
        if not 0 < self.burst < self.every:
            raise InputError("workload bursty: burst must be above 0 and shorter than every")
        if not self.ratio >= 1:
            raise InputError("workload bursty: ratio must be at least 1")

    @property
    def rates(self) -> tuple[float, float]:
        """Arrivals per second in quiet and in a burst."""
        share = self.burst / self.every
        quiet = self.rate / (1 - share + self.ratio * share)
        return quiet, self.ratio * quiet


@dataclass(frozen=True)
class Diurnal(Workload):
    """A Poisson process with a rate that follows the day as a cosine; thinned from its peak rate.

    `rate` is per second over a day, highest at `peak` (s since midnight), `ratio` the highest over
    the lowest; infinity if the night is silent. `day_begins`: time of day at the start of the run.
    """

    rate: float
    peak: float = 50_400.0
    ratio: float = 5.0
    day_begins: float = 0.0

    def __post_init__(self) -> None:
        if not self.ratio >= 1:
            raise InputError("workload diurnal: ratio must be at least 1")

    @property
    def swing(self) -> float:
        """How far the rate strays from its mean, as a part of it."""
        return 1 - 2 / (self.ratio + 1)

    def rate_at(self, times: _Floats) -> _Floats:
        """Arrivals per second at `times` (s), shape (n,)."""
        angle = 2 * np.pi / DAY * (times + self.day_begins - self.peak)
        return np.asarray(self.rate * (1 + self.swing * np.cos(angle)), dtype=np.float64)

    def keep(self, times: _Floats, draw: _Floats) -> npt.NDArray[np.bool_]:
        kept: npt.NDArray[np.bool_] = draw * self.rate * (1 + self.swing) < self.rate_at(times)
        return kept


@dataclass(frozen=True, eq=False)
class Trace:
    """Recorded arrivals of each device: sorted times (s), and rows if recorded."""

    times: list[_Floats]
    rows: list[_Ints] | None = None

    @property
    def last(self) -> float:
        """Time of the last arrival, in s."""
        return max(float(times[-1]) for times in self.times)


def read_trace(path: str | Path) -> Trace:
    """Read a CSV file of ``time`` (s), and ``device`` and ``row`` if there are any."""
    lines = csv_rows(path)
    _, columns = next(lines)
    if "time" not in columns:
        raise InputError(f"trace {path}: no column 'time'")
    for name in columns:
        if name not in ("time", "device", "row"):
            raise InputError(f"trace {path}: unknown column {name!r}")
    found: dict[str, list[tuple[float, int]]] = {}
    for line, cells in lines:
        where, named = f"trace {path}, line {line}", dict(zip(columns, cells, strict=True))
        time, row = _time(named["time"], where), named.get("row", "0")
        if not row.isdecimal():
            raise InputError(f"{where}: row {row!r} is not the number of a row, from 0")
        found.setdefault(named.get("device", ""), []).append((time, int(row)))
    if not found:
        raise InputError(f"trace {path}: it holds no arrivals")
    times, rows = [], []
    for events in found.values():
        events.sort(key=lambda event: event[0])
        times.append(np.array([time for time, _ in events]))
        rows.append(np.array([row for _, row in events], dtype=np.int64))
    return Trace(times, rows if "row" in columns else None)


def _time(text: str, where: str) -> float:
    try:
        time = float(text)
    except ValueError:
        time = math.nan
    if not (math.isfinite(time) and time >= 0):
        raise InputError(f"{where}: time {text!r} is not a number of seconds, at least 0")
    return time


@dataclass(frozen=True)
class Replay(Workload):
    """A recorded trace, begun again after `every` (s), above its last arrival, if that is given."""

    trace: Trace
    every: float | None = None

    def __post_init__(self) -> None:
        if self.every is not None and not self.every > self.trace.last:
            raise InputError(
                f"workload replay: every must be longer than the trace ({self.trace.last:g} s)"
            )

    @property
    def mean_rate(self) -> float:
        n = sum(len(times) for times in self.trace.times) / len(self.trace.times)
        return n / (self.every or max(self.trace.last, 1.0))
