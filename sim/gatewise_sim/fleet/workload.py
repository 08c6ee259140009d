"""Workloads: when instances arrive, and at which devices.

A workload is written as ``KIND:RATE:option=value``, with the rate of one device::

    poisson:1/min
    periodic:10s:jitter=1s                    (or 6/min; aligned=yes: all devices at the same times)
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
from gatewise_sim.fleet.row_mix import FloatArray, IntArray, RowMix


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

    @abstractmethod
    def draw(self, n_devices: int, seconds: float, rng: np.random.Generator) -> Events:
        """Draw the instances of a fleet in ``[0, seconds)``."""


@dataclass(frozen=True)
class Poisson(Workload):
    """Independent arrivals with `rate` per second."""

    rate: float

    def draw(self, n_devices: int, seconds: float, rng: np.random.Generator) -> Events:
        n_events = rng.poisson(self.rate * n_devices * seconds)
        return Events(rng.uniform(0.0, seconds, n_events), rng.integers(0, n_devices, n_events))


@dataclass(frozen=True)
class Periodic(Workload):
    """One arrival per `period_s`, with a uniform delay of up to `jitter_s`.

    With `is_aligned` the periods of all devices start at the same time.
    """

    period_s: float
    jitter_s: float = 0.0
    is_aligned: bool = False

    def __post_init__(self) -> None:
        if not self.period_s > 0:
            raise InputError("workload periodic: the period must be above 0")
        if not 0 <= self.jitter_s <= self.period_s:
            raise InputError("workload periodic: jitter must not be longer than the period")

    @property
    def mean_rate(self) -> float:
        return 1 / self.period_s

    def draw(self, n_devices: int, seconds: float, rng: np.random.Generator) -> Events:
        phases = (
            np.zeros(n_devices) if self.is_aligned else rng.uniform(0, self.period_s, n_devices)
        )
        n_periods = math.ceil(seconds / self.period_s)
        # The jitter may delay an arrival of the period before the start into the run.
        periods = np.arange(-1 if self.jitter_s else 0, n_periods)
        times = phases[:, None] + self.period_s * periods
        if self.jitter_s:
            times = times + rng.uniform(0, self.jitter_s, times.shape)
        devices = np.broadcast_to(np.arange(n_devices)[:, None], times.shape)
        is_inside = (times >= 0) & (times < seconds)
        return Events(times[is_inside], devices[is_inside])


@dataclass(frozen=True)
class Bursty(Workload):
    """A Markov-modulated Poisson process with quiet times and bursts.

    Parameters
    ----------
    rate : float
        Mean arrivals per second.
    rate_ratio : float
        Rate in a burst divided by the rate in quiet times.
    mean_burst_s, mean_period_s : float
        Mean length of a burst, and mean time between the starts of two bursts, in s. The lengths
        have exponential distributions.
    """

    rate: float
    rate_ratio: float = 20.0
    mean_burst_s: float = 30.0
    mean_period_s: float = 600.0

    def __post_init__(self) -> None:
        if not 0 < self.mean_burst_s < self.mean_period_s:
            raise InputError("workload bursty: burst must be above 0 and shorter than every")
        if not self.rate_ratio >= 1:
            raise InputError("workload bursty: ratio must be at least 1")

    @property
    def rates(self) -> tuple[float, float]:
        """Arrivals per second in quiet times and in a burst."""
        # With b the share of time in bursts, r the ratio and q the quiet rate:
        # rate = (1 - b) * q + b * r * q.
        burst_share = self.mean_burst_s / self.mean_period_s
        quiet_rate = self.rate / (1 - burst_share + self.rate_ratio * burst_share)
        return quiet_rate, self.rate_ratio * quiet_rate

    def draw(self, n_devices: int, seconds: float, rng: np.random.Generator) -> Events:
        rates = np.array(self.rates)
        mean_lengths = np.array([self.mean_period_s - self.mean_burst_s, self.mean_burst_s])
        phases = (rng.random(n_devices) < self.mean_burst_s / self.mean_period_s).astype(np.int64)
        phase_begins = np.zeros(n_devices)
        active_devices = np.arange(n_devices)
        times: list[FloatArray] = []
        devices: list[IntArray] = []
        while len(active_devices):
            phase_lengths = rng.exponential(mean_lengths[phases[active_devices]])
            phase_ends = np.minimum(phase_begins[active_devices] + phase_lengths, seconds)
            n_events = rng.poisson(
                rates[phases[active_devices]] * (phase_ends - phase_begins[active_devices])
            )
            times.append(
                rng.uniform(
                    np.repeat(phase_begins[active_devices], n_events),
                    np.repeat(phase_ends, n_events),
                )
            )
            devices.append(np.repeat(active_devices, n_events))
            phase_begins[active_devices] = phase_ends
            phases[active_devices] = 1 - phases[active_devices]
            active_devices = active_devices[phase_ends < seconds]
        return Events(np.concatenate(times), np.concatenate(devices))


@dataclass(frozen=True)
class Diurnal(Workload):
    """A Poisson process with a rate that is a cosine over the day; drawn by thinning.

    Parameters
    ----------
    rate : float
        Mean arrivals per second.
    peak_time_of_day : float
        Time of day of the highest rate, in s.
    rate_ratio : float
        Highest rate divided by the lowest rate; infinity for a lowest rate of 0.
    start_time_of_day : float
        Time of day at the start of the run, in s.
    """

    rate: float
    peak_time_of_day: float = 50_400.0  # 14:00
    rate_ratio: float = 5.0
    start_time_of_day: float = 0.0

    def __post_init__(self) -> None:
        if not self.rate_ratio >= 1:
            raise InputError("workload diurnal: ratio must be at least 1")

    @property
    def relative_amplitude(self) -> float:
        """Largest deviation a of the rate from its mean, as a share of the mean.

        The ratio of the highest and the lowest rate is (1 + a) / (1 - a).
        """
        return 1 - 2 / (self.rate_ratio + 1)

    def rate_at(self, times: FloatArray) -> FloatArray:
        """Compute the arrivals per second of a device at `times` (s), shape (n,)."""
        angles = 2 * np.pi / DAY * (times + self.start_time_of_day - self.peak_time_of_day)
        return np.asarray(self.rate * (1 + self.relative_amplitude * np.cos(angles)), np.float64)

    def draw(self, n_devices: int, seconds: float, rng: np.random.Generator) -> Events:
        peak_rate = self.rate * (1 + self.relative_amplitude)
        time, device, _ = Poisson(peak_rate).draw(n_devices, seconds, rng)
        # Thinning: keep an arrival with the probability rate(t) / peak_rate.
        is_accepted = rng.random(len(time)) * peak_rate < self.rate_at(time)
        return Events(time[is_accepted], device[is_accepted])


@dataclass(frozen=True, eq=False)
class Replay(Workload):
    """A recorded trace of n devices; device i of the fleet repeats recorded device ``i mod n``.

    Parameters
    ----------
    times : sequence of ndarray
        Times of arrival (s) of each recorded device, sorted.
    rows : sequence of ndarray, optional
        Row of the table of each arrival.
    period_s : float, optional
        Period (s) of a repeated trace, longer than the trace. Devices that copy a recorded device
        then start at a random time of the trace.
    """

    times: Sequence[FloatArray]
    rows: Sequence[IntArray] | None = None
    period_s: float | None = None

    def __post_init__(self) -> None:
        if self.period_s is not None and not self.period_s > self.last_time:
            raise InputError(
                f"workload replay: every must be longer than the trace ({self.last_time:g} s)"
            )

    @property
    def last_time(self) -> float:
        """Time of the last arrival, in s."""
        return max(float(times[-1]) for times in self.times)

    @property
    def mean_rate(self) -> float:
        n_arrivals = sum(map(len, self.times)) / len(self.times)
        return n_arrivals / (self.period_s or max(self.last_time, 1.0))

    def draw(self, n_devices: int, seconds: float, rng: np.random.Generator) -> Events:
        n_recorded = len(self.times)
        period_s = self.period_s or math.inf
        n_rounds = 1 if self.period_s is None else math.ceil(seconds / self.period_s) + 1
        shifts = np.zeros(n_devices)
        if self.period_s is not None:
            shifts[n_recorded:] = rng.uniform(0, self.period_s, max(n_devices - n_recorded, 0))
        times: list[FloatArray] = []
        devices: list[IntArray] = []
        rows: list[IntArray] = []
        for device in range(n_devices):
            recorded_times = self.times[device % n_recorded]
            for repetition in range(n_rounds):
                offset = repetition * period_s if repetition else 0.0
                shifted_times = recorded_times + offset - shifts[device]
                is_inside = (shifted_times >= 0) & (shifted_times < seconds)
                times.append(shifted_times[is_inside])
                devices.append(np.full(int(is_inside.sum()), device))
                if self.rows is not None:
                    rows.append(self.rows[device % n_recorded][is_inside])
        return Events(
            np.concatenate(times),
            np.concatenate(devices),
            np.concatenate(rows) if self.rows is not None else None,
        )


def read_trace(path: str | Path, period_s: float | None = None) -> Replay:
    """Read a CSV file with a column ``time`` (s), and optionally ``device`` and ``row``."""
    csv_lines = csv_rows(path)
    _, columns = next(csv_lines)
    if "time" not in columns:
        raise InputError(f"trace {path}: it needs a column 'time'")
    for name in columns:
        if name not in ("time", "device", "row"):
            raise InputError(
                f"trace {path}: unknown column {name!r}; it may have time, device and row"
            )
    events: dict[str, list[tuple[float, int]]] = {}
    for line_number, cells in csv_lines:
        error_subject = f"trace {path}, line {line_number}"
        cell_by_column = dict(zip(columns, cells, strict=True))
        row_text = cell_by_column.get("row", "0")
        if not row_text.isdecimal() or int(row_text) > np.iinfo(np.int32).max:
            raise InputError(f"{error_subject}: row {row_text!r} is not a row number (0, 1, ...)")
        time = read_number(cell_by_column["time"], f"{error_subject}: time")
        if time < 0:
            raise InputError(f"{error_subject}: time {time:g} must be at least 0")
        events.setdefault(cell_by_column.get("device", ""), []).append((time, int(row_text)))
    if not events:
        raise InputError(f"trace {path}: it has no arrivals")
    events_by_device = [
        sorted(device_events, key=lambda event: event[0]) for device_events in events.values()
    ]
    times = [np.array([time for time, _ in device_events]) for device_events in events_by_device]
    rows = [
        np.array([row for _, row in device_events], np.int64) for device_events in events_by_device
    ]
    return Replay(times, rows if "row" in columns else None, period_s)


# -- reading a workload -----------------------------------------------------------------------

_Reader = Callable[[str, str], Any]


class _WorkloadKind(NamedTuple):
    """A kind of workload: constructor, main setting (the text after the name), and options."""

    constructor: Callable[..., Workload]
    main_setting: str
    read_main_setting: _Reader
    options: Mapping[str, tuple[str, _Reader]]


def _read_period(text: str, subject: str) -> float:
    return 1 / read_rate(text, subject) if "/" in text else read_span(text, subject)


def _read_yes_or_no(text: str, subject: str) -> bool:
    if text not in ("yes", "no"):
        raise InputError(f"{subject} is {text!r}; write yes or no")
    return text == "yes"


#: Parameter of the constructor, and function that reads the text, of each option.
_PERIODIC_OPTIONS: Final = {
    "jitter": ("jitter_s", read_span),
    "aligned": ("is_aligned", _read_yes_or_no),
}
_BURSTY_OPTIONS: Final = {
    "ratio": ("rate_ratio", read_number),
    "burst": ("mean_burst_s", read_span),
    "every": ("mean_period_s", read_span),
}
_DIURNAL_OPTIONS: Final = {
    "peak": ("peak_time_of_day", read_clock),
    "ratio": ("rate_ratio", read_number),
}
_REPLAY_OPTIONS: Final = {"every": ("period_s", read_span)}
_WORKLOAD_KINDS: Final[Mapping[str, _WorkloadKind]] = {
    "poisson": _WorkloadKind(Poisson, "rate (1/min)", read_rate, {}),
    "periodic": _WorkloadKind(Periodic, "period (10s)", _read_period, _PERIODIC_OPTIONS),
    "bursty": _WorkloadKind(Bursty, "rate (1/min)", read_rate, _BURSTY_OPTIONS),
    "diurnal": _WorkloadKind(Diurnal, "rate (1/min)", read_rate, _DIURNAL_OPTIONS),
    "replay": _WorkloadKind(read_trace, "file (trace.csv)", lambda path, _: path, _REPLAY_OPTIONS),
}


def read_workload(text: str, *, start_time_of_day: float = 0.0) -> Workload:
    """Parse a workload, written as the module's docstring describes.

    `start_time_of_day` is the time of day (s) at the start of the run.

    >>> read_workload("poisson:30/min")
    Poisson(rate=0.5)
    >>> read_workload("bursty:1/s:ratio=9:burst=10s:every=100s").mean_rate
    1.0
    """
    kind_name, _, settings_text = text.strip().partition(":")
    if kind_name not in _WORKLOAD_KINDS:
        raise InputError(
            f"workload {text!r}: choose one of {', '.join(_WORKLOAD_KINDS)}, such as poisson:1/min"
        )
    kind = _WORKLOAD_KINDS[kind_name]
    # Split only before the name of an option, because times of day contain colons as well.
    main_text, *option_entries = re.split(r":(?=[a-z]+=)", settings_text)
    error_subject = f"workload {kind_name}"
    options: dict[str, Any] = {}
    for option_entry in option_entries:
        option_name, _, option_text = option_entry.partition("=")
        if option_name not in kind.options:
            names = ", ".join(kind.options) or "none"
            raise InputError(
                f"{error_subject}: unknown option {option_name!r}; the options are {names}"
            )
        parameter, read_option = kind.options[option_name]
        if parameter in options:
            raise InputError(f"{error_subject}: the option {option_name} occurs twice")
        options[parameter] = read_option(option_text, f"{error_subject}: {option_name}")
    if not main_text:
        raise InputError(f"workload {text!r}: a {kind.main_setting} must follow {kind_name}:")
    if kind_name == "diurnal":
        options["start_time_of_day"] = start_time_of_day
    return kind.constructor(kind.read_main_setting(main_text, error_subject), **options)


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
    rng = np.random.default_rng([seed, 1])  # other draws of a run have another second part
    events = workload.draw(n_devices, seconds, rng)
    order = np.lexsort((events.device, events.time))
    times = events.time[order]
    if events.row is not None:
        rows = events.row[order]
        if len(rows) and rows.max() >= n_rows:
            raise InputError(f"trace: row {rows.max()} is beyond the {n_rows} rows of the table")
    elif mix is not None:
        rows = mix.draw_rows(times, rng)
    else:
        rows = rng.integers(0, n_rows, len(times))
    return Arrivals(times, events.device[order].astype(np.int32), rows.astype(np.int32))
