"""Kinds of workloads: how instances come to one device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gatewise.errors import InputError
from gatewise_sim.fleet.workload.spans import DAY
from gatewise_sim.fleet.workload.streams import Streams
from gatewise_sim.fleet.workload.times import PeriodicSource, PoissonSource, Source
from gatewise_sim.fleet.workload.trace import Trace, TraceSource

__all__ = ["Bursty", "Diurnal", "Periodic", "Poisson", "Replay", "Workload"]

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


class Workload(ABC):
    """How instances come to one device."""

    @property
    @abstractmethod
    def mean_rate(self) -> float:
        """Arrivals per second, over a long time."""

    @abstractmethod
    def source(self, streams: Streams, ids: _Ints) -> Source:
        """Arrivals of the devices `ids`, shape (n,), before thinning."""

    def keep(self, times: _Floats, draw: _Floats) -> npt.NDArray[np.bool_] | None:
        """Which arrivals are real, from a uniform number each; None for all of them."""
        return None


@dataclass(frozen=True)
class Poisson(Workload):
    """Independent arrivals at a rate per second."""

    rate: float

    @property
    def mean_rate(self) -> float:
        return self.rate

    def source(self, streams: Streams, ids: _Ints) -> Source:
        return PoissonSource(streams, ids, (self.rate, self.rate))


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

    def source(self, streams: Streams, ids: _Ints) -> Source:
        return PeriodicSource(streams, ids, self.period, self.jitter, self.aligned)


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
    def mean_rate(self) -> float:
        return self.rate

    @property
    def rates(self) -> tuple[float, float]:
        """Arrivals per second in quiet and in a burst."""
        share = self.burst / self.every
        quiet = self.rate / (1 - share + self.ratio * share)
        return quiet, self.ratio * quiet

    def source(self, streams: Streams, ids: _Ints) -> Source:
        return PoissonSource(streams, ids, self.rates, (self.every - self.burst, self.burst))


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
    def mean_rate(self) -> float:
        return self.rate

    @property
    def swing(self) -> float:
        """How far the rate strays from its mean, as a part of it."""
        return 1 - 2 / (self.ratio + 1)

    def rate_at(self, times: _Floats) -> _Floats:
        """Arrivals per second at `times` (s), shape (n,)."""
        angle = 2 * np.pi / DAY * (times + self.day_begins - self.peak)
        return np.asarray(self.rate * (1 + self.swing * np.cos(angle)), dtype=np.float64)

    def source(self, streams: Streams, ids: _Ints) -> Source:
        highest = self.rate * (1 + self.swing)
        return PoissonSource(streams, ids, (highest, highest))

    def keep(self, times: _Floats, draw: _Floats) -> npt.NDArray[np.bool_]:
        kept: npt.NDArray[np.bool_] = draw * self.rate * (1 + self.swing) < self.rate_at(times)
        return kept


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

    def source(self, streams: Streams, ids: _Ints) -> Source:
        return TraceSource(streams, ids, self.trace, self.every)
