"""Workloads: when instances arrive, and at which devices.

A workload is written as ``KIND:RATE:option=value``, with the rate of one device::

    poisson:1/min
    periodic:10s:jitter=1s                    (or 6/min; aligned=yes for the same times everywhere)
    bursty:1/min:ratio=20:burst=30s:every=10min
    diurnal:1/min:peak=14:00:ratio=5
    replay:trace.csv:every=1day               (CSV of time[,device][,row])
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise.columns.csv_file import csv_rows
from gatewise.errors import InputError
from gatewise.formats import DAY, read_clock, read_number, read_rate, read_span
from gatewise_sim.fleet.row_mix import RowMix

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Arrivals(NamedTuple):
    """Time (s), device and row of each instance, sorted by time; arrays of shape (n,)."""

    time: FloatArray
    device: NDArray[np.int32]
    row: NDArray[np.int32]

    def subset(self, index: NDArray[Any]) -> Arrivals:
        """Select instances by indices or a mask."""
        return Arrivals(self.time[index], self.device[index], self.row[index])


class Events(NamedTuple):
    """Time (s) and device of each instance in any order, and its row in a replay."""

    time: FloatArray
    device: IntArray
    row: IntArray | None = None


class Workload(ABC):
    """Arrivals of instances at a device, with `rate` per second."""

    rate: float

    @property
    def mean_rate(self) -> float:
        """Long-term mean of a device's arrivals per second."""
        return self.rate

    def rate_at(self, times: FloatArray) -> FloatArray:
        """Arrivals per second of a device at `times` (s), shape (n,)."""
        return np.full(len(times), self.mean_rate)

    @abstractmethod
    def draw(self, n_devices: int, seconds: float, rng: np.random.Generator) -> Events:
        """Draw the instances of a fleet in ``[0, seconds)``."""


@dataclass(frozen=True)
class Poisson(Workload):
    """Independent arrivals with `rate` per second."""

    rate: float

    def draw(self, n_devices: int, seconds: float, rng: np.random.Generator) -> Events:
        n = rng.poisson(self.rate * n_devices * seconds)
        return Events(rng.uniform(0.0, seconds, n), rng.integers(0, n_devices, n))


@dataclass(frozen=True)
class Periodic(Workload):
    """One arrival per period (s), with a uniform delay of up to `jitter` (s).

    With `aligned` the periods of all devices start at the same time.
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

    def draw(self, n_devices: int, seconds: float, rng: np.random.Generator) -> Events:
        phase = np.zeros(n_devices) if self.aligned else rng.uniform(0, self.period, n_devices)
        n_periods = math.ceil(seconds / self.period)
        # The jitter may delay an arrival of the period before the start into the run.
        periods = np.arange(-1 if self.jitter else 0, n_periods)
        time = phase[:, None] + self.period * periods
        if self.jitter:
            time = time + rng.uniform(0, self.jitter, time.shape)
        device = np.broadcast_to(np.arange(n_devices)[:, None], time.shape)
        inside = (time >= 0) & (time < seconds)
        return Events(time[inside], device[inside])


@dataclass(frozen=True)
class Bursty(Workload):
    """A Markov-modulated Poisson process with quiet times and bursts.

    Parameters
    ----------
    rate : float
        Mean arrivals per second.
    ratio : float
        Rate in a burst divided by the rate in quiet times.
    burst, every : float
        Mean length of a burst, and mean time between the starts of two bursts, in s. The lengths
        have exponential distributions.
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
        """Arrivals per second in quiet times and in a burst."""
        share = self.burst / self.every
        quiet = self.rate / (1 - share + self.ratio * share)
        return quiet, self.ratio * quiet

    def draw(self, n_devices: int, seconds: float, rng: np.random.Generator) -> Events:
        rates = np.array(self.rates)
        mean_lengths = np.array([self.every - self.burst, self.burst])
        state = (rng.random(n_devices) < self.burst / self.every).astype(np.int64)
        begin = np.zeros(n_devices)
        active = np.arange(n_devices)
        times: list[FloatArray] = []
        devices: list[IntArray] = []
        while len(active):
            length = rng.exponential(mean_lengths[state[active]])
            end = np.minimum(begin[active] + length, seconds)
            n_events = rng.poisson(rates[state[active]] * (end - begin[active]))
            times.append(rng.uniform(np.repeat(begin[active], n_events), np.repeat(end, n_events)))
            devices.append(np.repeat(active, n_events))
            begin[active] = end
            state[active] = 1 - state[active]
            active = active[end < seconds]
        return Events(np.concatenate(times), np.concatenate(devices))


@dataclass(frozen=True)
class Diurnal(Workload):
    """A Poisson process with a rate that is a cosine over the day; drawn by thinning.

    Parameters
    ----------
    rate : float
        Mean arrivals per second.
    peak : float
        Time of day of the highest rate, in s.
    ratio : float
        Highest rate divided by the lowest rate; infinity for a lowest rate of 0.
    day_begins : float
        Time of day at the start of the run, in s.
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
        """Largest deviation of the rate from its mean, as a share of the mean."""
        return 1 - 2 / (self.ratio + 1)

    def rate_at(self, times: FloatArray) -> FloatArray:
        angle = 2 * np.pi / DAY * (times + self.day_begins - self.peak)
        return np.asarray(self.rate * (1 + self.swing * np.cos(angle)), np.float64)

    def draw(self, n_devices: int, seconds: float, rng: np.random.Generator) -> Events:
        highest = self.rate * (1 + self.swing)
        time, device, _ = Poisson(highest).draw(n_devices, seconds, rng)
        is_accepted = rng.random(len(time)) * highest < self.rate_at(time)
        return Events(time[is_accepted], device[is_accepted])


@dataclass(frozen=True, eq=False)
class Replay(Workload):
    """A recorded trace of n devices, in which device i repeats the recorded device ``i mod n``.

    Parameters
    ----------
    times : sequence of ndarray
        Times of arrival (s) of each recorded device, sorted.
    rows : sequence of ndarray, optional
        Row of the table of each arrival.
    every : float, optional
        Period (s) of a repeated trace, longer than the trace. Devices that copy a recorded one then
        start at a random time of the trace.
    """

    times: Sequence[FloatArray]
    rows: Sequence[IntArray] | None = None
    every: float | None = None

    def __post_init__(self) -> None:
        if self.every is not None and not self.every > self.last:
            raise InputError(
                f"workload replay: every must be longer than the trace ({self.last:g} s)"
            )

    @property
    def last(self) -> float:
        """Time of the last arrival, in s."""
        return max(float(times[-1]) for times in self.times)

    @property
    def mean_rate(self) -> float:
        n = sum(map(len, self.times)) / len(self.times)
        return n / (self.every or max(self.last, 1.0))

    def draw(self, n_devices: int, seconds: float, rng: np.random.Generator) -> Events:
        n_recorded = len(self.times)
        cycle = self.every or math.inf
        n_rounds = 1 if self.every is None else math.ceil(seconds / self.every) + 1
        shifts = np.zeros(n_devices)
        if self.every is not None:
            shifts[n_recorded:] = rng.uniform(0, self.every, max(n_devices - n_recorded, 0))
        times: list[FloatArray] = []
        devices: list[IntArray] = []
        rows: list[IntArray] = []
        for device in range(n_devices):
            recorded = self.times[device % n_recorded]
            for repetition in range(n_rounds):
                offset = repetition * cycle if repetition else 0.0
                shifted = recorded + offset - shifts[device]
                inside = (shifted >= 0) & (shifted < seconds)
                times.append(shifted[inside])
                devices.append(np.full(int(inside.sum()), device))
                if self.rows is not None:
                    rows.append(self.rows[device % n_recorded][inside])
        return Events(
            np.concatenate(times),
            np.concatenate(devices),
            np.concatenate(rows) if self.rows is not None else None,
        )


def read_trace(path: str | Path, every: float | None = None) -> Replay:
    """Read a CSV file with a column ``time`` (s), and optionally ``device`` and ``row``."""
    lines = csv_rows(path)
    _, columns = next(lines)
    if "time" not in columns:
        raise InputError(f"trace {path}: no column 'time'")
    for name in columns:
        if name not in ("time", "device", "row"):
            raise InputError(f"trace {path}: unknown column {name!r}")
    events: dict[str, list[tuple[float, int]]] = {}
    for line, cells in lines:
        context = f"trace {path}, line {line}"
        entry = dict(zip(columns, cells, strict=True))
        row = entry.get("row", "0")
        if not row.isdecimal():
            raise InputError(f"{context}: row {row!r} is not a row number (0, 1, ...)")
        time = read_number(entry["time"], f"{context}: time")
        if time < 0:
            raise InputError(f"{context}: time {time:g} must be at least 0")
        events.setdefault(entry.get("device", ""), []).append((time, int(row)))
    if not events:
        raise InputError(f"trace {path}: it has no arrivals")
    devices = [sorted(of_device, key=lambda event: event[0]) for of_device in events.values()]
    return Replay(
        [np.array([time for time, _ in device]) for device in devices],
        [np.array([row for _, row in device], np.int64) for device in devices]
        if "row" in columns
        else None,
        every,
    )


# -- reading a workload -----------------------------------------------------------------------

_Reader = Callable[[str, str], Any]


class _Kind(NamedTuple):
    """A kind of workload: constructor, main setting (the text after the name), and options."""

    make: Callable[..., Workload]
    main_setting: str
    read_main_setting: _Reader
    options: Mapping[str, _Reader]


def _read_period(text: str, context: str) -> float:
    return 1 / read_rate(text, context) if "/" in text else read_span(text, context)


def _read_yes(text: str, context: str) -> bool:
    if text not in ("yes", "no"):
        raise InputError(f"{context} is {text!r}; write yes or no")
    return text == "yes"


_PERIODIC: Final = {"jitter": read_span, "aligned": _read_yes}
_BURSTY: Final = {"ratio": read_number, "burst": read_span, "every": read_span}
_DIURNAL: Final = {"peak": read_clock, "ratio": read_number}
_KINDS: Final[Mapping[str, _Kind]] = {
    "poisson": _Kind(Poisson, "rate (1/min)", read_rate, {}),
    "periodic": _Kind(Periodic, "period (10s)", _read_period, _PERIODIC),
    "bursty": _Kind(Bursty, "rate (1/min)", read_rate, _BURSTY),
    "diurnal": _Kind(Diurnal, "rate (1/min)", read_rate, _DIURNAL),
    "replay": _Kind(read_trace, "file (trace.csv)", lambda path, _: path, {"every": read_span}),
}


def read_workload(text: str, *, day_begins: float = 0.0) -> Workload:
    """Parse a workload, written as the module's docstring describes.

    `day_begins` is the time of day (s) at the start of the run.

    >>> read_workload("poisson:30/min")
    Poisson(rate=0.5)
    >>> read_workload("bursty:1/s:ratio=9:burst=10s:every=100s").mean_rate
    1.0
    """
    name, _, settings = text.strip().partition(":")
    if name not in _KINDS:
        raise InputError(
            f"workload {text!r}: choose one of {', '.join(_KINDS)}, such as poisson:1/min"
        )
    kind = _KINDS[name]
    # Split only before the name of an option, because times of day contain colons as well.
    main_setting, *option_texts = re.split(r":(?=[a-z]+=)", settings)
    context = f"workload {name}"
    options: dict[str, Any] = {}
    for option_text in option_texts:
        option, _, value = option_text.partition("=")
        if option not in kind.options:
            names = ", ".join(kind.options) or "none"
            raise InputError(f"{context}: unknown option {option!r}; the options are {names}")
        if option in options:
            raise InputError(f"{context}: the option {option} occurs twice")
        options[option] = kind.options[option](value, f"{context}: {option}")
    if not main_setting:
        raise InputError(f"workload {text!r}: a {kind.main_setting} must follow {name}:")
    if name == "diurnal":
        options["day_begins"] = day_begins
    return kind.make(kind.read_main_setting(main_setting, context), **options)


def draw_arrivals(
    workload: Workload,
    n_devices: int,
    seconds: float,
    *,
    n_rows: int,
    mix: RowMix | None = None,
    seed: int = 0,
) -> Arrivals:
    """Draw the instances of a fleet in ``[0, seconds)``, sorted by time.

    Without a trace or a class mix every row is equally likely.

    >>> draw_arrivals(read_workload("periodic:10s:aligned=yes"), 2, 15.0, n_rows=1).time.tolist()
    [0.0, 0.0, 10.0, 10.0]
    """
    rng = np.random.default_rng([seed, 1])
    events = workload.draw(n_devices, seconds, rng)
    order = np.lexsort((events.device, events.time))
    time = events.time[order]
    if events.row is not None:
        row = events.row[order]
        if len(row) and row.max() >= n_rows:
            raise InputError(f"trace: row {row.max()} is beyond the {n_rows} rows of the table")
    elif mix is not None:
        row = mix.rows(time, rng)
    else:
        row = rng.integers(0, n_rows, len(time))
    return Arrivals(time, events.device[order].astype(np.int32), row.astype(np.int32))
