"""Arrivals of instances: their times, devices and rows of the table.

A workload is written as ``KIND:RATE:option=value``; rates are of one device::

    poisson:1/min
    periodic:10s:jitter=1s                    (or a rate, 6/min; aligned=yes: all in step)
    bursty:1/min:ratio=20:burst=30s:every=10min
    diurnal:1/min:peak=14:00:ratio=5
    replay:trace.csv:every=1day               (CSV of time[,device][,row])
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from gatewise.columns.csv_file import csv_rows
from gatewise.errors import InputError
from gatewise.formats import DAY, read_clock, read_number, read_rate, read_span

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Arrivals(NamedTuple):
    """Instances in order of time: `time` (s), device and row of the table, shape (n,) each."""

    time: FloatArray
    device: NDArray[np.int32]
    row: NDArray[np.int32]

    def subset(self, index: NDArray[Any]) -> Arrivals:
        """Select some of them, by indices or a mask."""
        return Arrivals(self.time[index], self.device[index], self.row[index])


class Events(NamedTuple):
    """Instances of a workload in any order, and their rows where the workload states them."""

    time: FloatArray
    device: IntArray
    row: IntArray | None = None


class Workload:
    """The arrivals of instances at one device; `rate` is per second."""

    rate: float

    @property
    def mean_rate(self) -> float:
        """Mean arrivals per second of a device, over a long time."""
        return self.rate

    def rate_at(self, times: FloatArray) -> FloatArray:
        """Arrivals per second of a device at `times` (s), shape (n,)."""
        return np.full(len(times), self.mean_rate)

    def draw(self, n_devices: int, seconds: float, rng: np.random.Generator) -> Events:
        """Draw the instances of a fleet in ``[0, seconds)``."""
        raise NotImplementedError


@dataclass(frozen=True)
class Poisson(Workload):
    """Independent arrivals at a rate per second."""

    rate: float

    def draw(self, n_devices: int, seconds: float, rng: np.random.Generator) -> Events:
        n = rng.poisson(self.rate * n_devices * seconds)
        return Events(rng.uniform(0.0, seconds, n), rng.integers(0, n_devices, n))


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

    def draw(self, n_devices: int, seconds: float, rng: np.random.Generator) -> Events:
        phase = np.zeros(n_devices) if self.aligned else rng.uniform(0, self.period, n_devices)
        n_periods = math.ceil(seconds / self.period)
        # The period before the start counts: its jitter may carry an arrival over.
        periods = np.arange(-1 if self.jitter else 0, n_periods)
        time = phase[:, None] + self.period * periods
        if self.jitter:
            time = time + rng.uniform(0, self.jitter, time.shape)
        device = np.broadcast_to(np.arange(n_devices)[:, None], time.shape)
        inside = (time >= 0) & (time < seconds)
        return Events(time[inside], device[inside])


@dataclass(frozen=True)
class Bursty(Workload):
    """A Markov-modulated Poisson process: quiet, with bursts.

    `rate` is per second over all, `ratio` the rate in a burst over that in quiet; `burst` is the
    mean length of a burst and `every` the mean time from the begin of one to the next (s), both
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

    def draw(self, n_devices: int, seconds: float, rng: np.random.Generator) -> Events:
        rates = np.array(self.rates)
        stays = np.array([self.every - self.burst, self.burst])
        state = (rng.random(n_devices) < self.burst / self.every).astype(np.int64)
        begin = np.zeros(n_devices)
        active = np.arange(n_devices)
        times: list[FloatArray] = []
        devices: list[IntArray] = []
        while len(active):
            stay = rng.exponential(stays[state[active]])
            end = np.minimum(begin[active] + stay, seconds)
            n_each = rng.poisson(rates[state[active]] * (end - begin[active]))
            times.append(rng.uniform(np.repeat(begin[active], n_each), np.repeat(end, n_each)))
            devices.append(np.repeat(active, n_each))
            begin[active] = end
            state[active] = 1 - state[active]
            active = active[end < seconds]
        return Events(np.concatenate(times), np.concatenate(devices))


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
        """Largest deviation of the rate from its mean, as a share of it."""
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
    """A recorded trace: device i does what recorded device ``i mod n`` did.

    `times` and, where recorded, `rows` are each device's, sorted by time. With `every` (s), above
    the last arrival, the trace comes again and again, and each device beyond the recorded ones
    begins somewhere in it, so that copies are not in step.
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
            for number in range(n_rounds):
                shifted = recorded + (number * cycle if number else 0.0) - shifts[device]
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
    """Read a CSV file of ``time`` (s), and ``device`` and ``row`` if there are any."""
    lines = csv_rows(path)
    _, columns = next(lines)
    if "time" not in columns:
        raise InputError(f"trace {path}: no column 'time'")
    for name in columns:
        if name not in ("time", "device", "row"):
            raise InputError(f"trace {path}: unknown column {name!r}")
    events: dict[str, list[tuple[float, int]]] = {}
    for line, cells in lines:
        where = f"trace {path}, line {line}"
        entry = dict(zip(columns, cells, strict=True))
        row = entry.get("row", "0")
        if not row.isdecimal():
            raise InputError(f"{where}: row {row!r} is not the number of a row, from 0")
        time = read_number(entry["time"], f"{where}: time")
        if time < 0:
            raise InputError(f"{where}: time {time:g} must be at least 0")
        events.setdefault(entry.get("device", ""), []).append((time, int(row)))
    if not events:
        raise InputError(f"trace {path}: it holds no arrivals")
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
    """A kind of workload: its maker, its subject (the text after the name), and its options."""

    make: Callable[..., Workload]
    subject: str
    read_subject: _Reader
    options: Mapping[str, _Reader]


def _read_period(text: str, where: str) -> float:
    return 1 / read_rate(text, where) if "/" in text else read_span(text, where)


def _read_yes(text: str, where: str) -> bool:
    if text not in ("yes", "no"):
        raise InputError(f"{where} is {text!r}; say yes or no")
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
    """Read a workload as the module's head shows; `day_begins` is the time of day (s) at the start.

    >>> read_workload("poisson:30/min")
    Poisson(rate=0.5)
    >>> read_workload("bursty:1/s:ratio=9:burst=10s:every=100s").mean_rate
    1.0
    """
    name, _, settings = text.strip().partition(":")
    if name not in _KINDS:
        raise InputError(f"workload {text!r}: choose one of {', '.join(_KINDS)}, as poisson:1/min")
    kind = _KINDS[name]
    # Colons stand in times of day as well: an option begins with its name.
    subject, *option_texts = re.split(r":(?=[a-z]+=)", settings)
    where = f"workload {name}"
    options: dict[str, Any] = {}
    for option_text in option_texts:
        option, _, value = option_text.partition("=")
        if option not in kind.options:
            names = ", ".join(kind.options) or "none"
            raise InputError(f"{where}: unknown option {option!r}; there are {names}")
        if option in options:
            raise InputError(f"{where}: {option} is given twice")
        options[option] = kind.options[option](value, f"{where}: {option}")
    if not subject:
        raise InputError(f"workload {text!r}: a {kind.subject} must follow {name}:")
    if name == "diurnal":
        options["day_begins"] = day_begins
    return kind.make(kind.read_subject(subject, where), **options)


# -- which rows instances are -----------------------------------------------------------------


class RowMix:
    """Draws rows so that each class has the share that it should have at the time.

    `labels` are the class indices of the table's rows, shape (n_rows,); `times` (s since the start,
    rising), shape (k,); `shares` the weight of each class at those times, shape (k, n_classes),
    scaled to sum to 1. They hold until the next time, or move evenly to it if `linear`. InputError
    if a class with a share has no row.

    >>> mix = RowMix.parse("linear,0s=1/0,10s=0/1", [0, 0, 1])
    >>> mix.shares(np.array([0.0, 5.0, 99.0])).tolist()
    [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    """

    def __init__(
        self, labels: Any, times: Sequence[float], shares: Any, *, linear: bool = False
    ) -> None:
        self._times = np.asarray(times, np.float64)
        weights = np.asarray(shares, np.float64)
        label = np.asarray(labels, np.int64)
        if (np.diff(self._times) <= 0).any():
            raise InputError("class mix: its times must rise")
        if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any(axis=1).all():
            raise InputError("class mix: shares must be at least 0, and one above it at each time")
        n_classes = weights.shape[1]
        if len(label) and not (label.min() >= 0 and label.max() < n_classes):
            raise InputError(f"class mix: there are {label.max() + 1} classes, not {n_classes}")
        self._counts = np.bincount(label, minlength=n_classes)
        for missing in np.flatnonzero(weights.any(axis=0) & (self._counts == 0)):
            raise InputError(f"class mix: class {missing} has a share but no row in the table")
        self._shares = weights / weights.sum(axis=1, keepdims=True)
        self._linear = linear
        self._rows = np.argsort(label, kind="stable")  # class by class
        self._begins = np.cumsum(self._counts) - self._counts

    @classmethod
    def parse(cls, text: str, labels: Any) -> Self:
        """Read ``steps,0s=9/1,12h=5/5`` or ``linear,...``: weights of all classes, in order."""
        shape, *knots = text.split(",")
        if shape.strip() not in ("steps", "linear") or not knots:
            raise InputError(f"class mix {text!r}: write it as steps,0s=9/1,12h=5/5 or linear,...")
        times = []
        shares = []
        for knot in knots:
            time, _, weights = knot.partition("=")
            where = f"class mix {knot.strip()!r}"
            times.append(read_span(time, where))
            shares.append([read_number(weight, where) for weight in weights.split("/")])
        if len(set(map(len, shares))) > 1:
            raise InputError(f"class mix {text!r}: each time needs a share for every class")
        return cls(labels, times, shares, linear=shape.strip() == "linear")

    def shares(self, times: FloatArray) -> FloatArray:
        """Share of each class at `times` (s), shape (n, n_classes)."""
        if self._linear:
            columns = [np.interp(times, self._times, column) for column in self._shares.T]
            return np.stack(columns, axis=1)
        knot = np.searchsorted(self._times, times, side="right") - 1
        return np.asarray(self._shares[np.maximum(knot, 0)])

    def rows(self, times: FloatArray, rng: np.random.Generator) -> IntArray:
        """Draw the row of each arrival, shape (n,)."""
        upper = np.cumsum(self.shares(times), axis=1)
        draw = rng.random(len(times))[:, None] * upper[:, -1:]
        label = np.minimum((draw >= upper).sum(axis=1), np.flatnonzero(self._counts)[-1])
        number = (rng.random(len(times)) * self._counts[label]).astype(np.int64)
        return np.asarray(self._rows[self._begins[label] + number], np.int64)


def draw_arrivals(
    workload: Workload,
    n_devices: int,
    seconds: float,
    *,
    n_rows: int,
    mix: RowMix | None = None,
    seed: int = 0,
) -> Arrivals:
    """Draw all instances of a fleet in ``[0, seconds)``, by time; every row is equally likely.

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
