"""Which part of a large fleet's day is stepped: windows of time, and a share of the fleet.

Queues must carry their full load, so what is sampled first is **time**: the day is cut into equal
strata, and in each a window is stepped after a warm-up, which is at least as long as the radio's
tail: what an exchange costs depends on the one before. Around an outage nothing is left out.
Only if even that is too much is the **fleet** sampled, devices and workers in the same proportion:
since the broker deals in turn, a part of the pool carries its full load. (It sees requests of
fewer devices, spaced a little less evenly: waits come out slightly too long, never too short. At
least :data:`LEAST_WORKERS` are kept for that reason.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from gatewise.errors import InputError
from gatewise_sim.fleet.network.outages import Outages
from gatewise_sim.fleet.routes import Routes
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.workload.arrivals import Diurnal, Periodic, Replay, Workload, parse
from gatewise_sim.fleet.workload.row_mix import RowMix
from gatewise_sim.fleet.workload.spans import DAY

__all__ = ["AFTER", "LEAST_WORKERS", "Plan", "Window", "plan", "window_settings"]

LEAST_WORKERS: Final = 8
_WINDOWS: Final = 24
_FEWEST: Final = 16  # if even a part of the fleet is too much for more
_SHORTEST: Final = 5.0  # seconds of a window
AFTER: Final = 60.0  # seconds after an outage that count as a part of it
_REQUESTS: Final = 120_000  # stepped at most, about
_INSTANCES: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the time that is stepped.

    Attributes
    ----------
    begin, end : float
        Seconds since the beginning; what comes in between is measured.
    warm : float
        Seconds before `begin` from which it is stepped.
    first, last : float
        The time that it stands for.
    segment : int
        Windows of one segment follow each other without a change of what is up.
    """

    begin: float
    end: float
    warm: float
    first: float
    last: float
    segment: int

    @property
    def stands_for(self) -> float:
        """Seconds that it stands for."""
        return self.last - self.first

    @property
    def weight(self) -> float:
        """Times that its instances count."""
        return self.stands_for / (self.end - self.begin)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is stepped of a fleet.

    Attributes
    ----------
    devices, workers : int
        Stepped.
    of_devices, of_workers : int
        Of the fleet.
    windows : tuple of Window
        By time; a single one for a run that is stepped whole.
    seconds : float
        Of the whole run.
    """

    devices: int
    workers: int
    of_devices: int
    of_workers: int
    windows: tuple[Window, ...]
    seconds: float

    @classmethod
    def everything(cls, settings: FleetSettings, seconds: float) -> Self:
        """Leave nothing out of a run of so many seconds."""
        devices, workers = settings.devices, settings.workers
        window = Window(0.0, seconds, 0.0, 0.0, seconds, 0)
        return cls(devices, workers, devices, workers, (window,), seconds)

    @property
    def whole(self) -> bool:
        """Whether nothing is left out."""
        return len(self.windows) == 1 and self.devices == self.of_devices

    @property
    def stepped(self) -> float:
        """Seconds that are stepped, warm-ups included."""
        return sum(w.end - w.begin + w.warm for w in self.windows)

    def __str__(self) -> str:
        if self.whole:
            return f"all {self.devices} devices, {self.seconds:g} s stepped whole"
        fleet = f"all {self.devices} devices and {self.workers} workers"
        if self.devices < self.of_devices:
            fleet = (
                f"{self.devices} of {self.of_devices} devices "
                f"and {self.workers} of {self.of_workers} workers"
            )
        measured = sum(w.end - w.begin for w in self.windows)
        return (
            f"{fleet}, {len(self.windows)} windows of time, {measured:.0f} s of {self.seconds:g} s "
            "measured, and what came shortly before stepped"
        )


def plan(
    routes: Routes,
    settings: FleetSettings,
    *,
    requests: int = _REQUESTS,
    instances: int = _INSTANCES,
    windows: int = _WINDOWS,
) -> Plan:
    """Choose what to step: all of it if that is little enough.

    Parameters
    ----------
    routes : Routes
    settings : FleetSettings
        With a workload that is not a replay; other runs are stepped whole.
    requests, instances : int
        How many may be stepped, about.
    windows : int
        If not all is stepped; fewer, but not below 16, if even a part of the fleet is too much.
    """
    whole = Plan.everything(settings, settings.seconds)
    work = _workload(settings)
    if work is None or isinstance(work, Replay):
        return whole
    if windows < 4:
        raise InputError(f"windows is {windows}; confidence intervals need at least 4")
    asked = {"system": routes.share, "edge-only": 0.0, "cloud-only": 1.0}
    share = 1.0 if settings.pace is not None else float(asked[settings.policy])
    rate = work.mean_rate * settings.devices
    affordable = min(requests / max(rate * share, 1e-12), instances / rate)
    if settings.seconds <= affordable:
        return whole
    warm = _warm_up(settings)
    special = _around_outages(settings, warm)
    in_special = sum(end - begin + warm for begin, end in special)
    least = windows * (_SHORTEST + warm) + in_special
    workers, devices = _part_of_fleet(settings, affordable / least)
    affordable *= settings.devices / devices
    if least > affordable:
        possible = int((affordable - in_special) / (_SHORTEST + warm))
        windows = min(windows, max(_FEWEST, possible))
    length = max(_SHORTEST, (affordable - in_special) / windows - warm)
    return replace(
        whole,
        devices=devices,
        workers=workers,
        windows=tuple(_windows(settings, work, special, windows, length, warm)),
    )


def window_settings(settings: FleetSettings, plan: Plan, number: int) -> FleetSettings:
    """Settings that step one window: time begins with its warm-up."""
    window, work = plan.windows[number], _workload(settings)
    assert work is not None
    start = window.begin - window.warm
    if isinstance(work, Diurnal):
        work = replace(work, day_begins=(work.day_begins + start) % DAY)
    outages = settings.outages
    if outages:
        scale = plan.workers / plan.of_workers
        moved = [
            replace(
                w,
                begin=w.begin - (0.0 if w.daily else start),
                end=w.end - (0.0 if w.daily else start),
                count=max(1, round(w.count * scale)),
            )
            for w in outages.windows
        ]
        outages = Outages(moved, day_begins=(outages.day_begins + start) % DAY)
    return replace(
        settings,
        devices=plan.devices,
        workers=plan.workers,
        seconds=window.end - start,
        workload=work,
        mix=None if settings.mix is None else _Later.of(settings.mix, start),
        outages=outages,
        primed=True,
        seed=settings.seed * 1_000_003 + number,
    )


def _warm_up(settings: FleetSettings) -> float:
    """Seconds after which neither queues nor radios know where a window began.

    What an exchange costs its radio depends on the one before if that ended within the tail.
    """
    radio = settings.link.radio
    used = radio.tail_j > 0 and settings.policy != "edge-only"
    tail = radio.tail_s + settings.deadline_ms / 1000.0 if used else 0.0
    return max(5.0, settings.deadline_ms / 100.0, tail)


def _workload(settings: FleetSettings) -> Workload | None:
    work = settings.workload
    return parse(work) if isinstance(work, str) else work


def _around_outages(settings: FleetSettings, warm: float) -> list[tuple[float, float]]:
    """Times in which nothing is left out, apart from each other and in order."""
    spans: list[list[float]] = []
    found = sorted(
        span
        for window in settings.outages.windows
        for span in window.spans(settings.seconds, settings.outages.day_begins)
    )
    for begin, end in found:
        begin, end = max(0.0, begin - 1.0), min(settings.seconds, end + AFTER)
        if spans and begin <= spans[-1][1] + warm:
            spans[-1][1] = max(spans[-1][1], end)
        else:
            spans.append([begin, end])
    return [(begin, end) for begin, end in spans]


def _part_of_fleet(settings: FleetSettings, part: float) -> tuple[int, int]:
    """Workers and devices to step, given the part of the load that can be."""
    n, pool = settings.devices, settings.workers
    counts = [w.count for w in settings.outages.windows if w.what == "workers"]
    # A number of workers that the outages leave whole.
    unit = pool // math.gcd(pool, *counts) if counts else 1
    least = min(pool, max(LEAST_WORKERS, math.ceil(pool / n)))
    if part < 1.0:
        # The proportion must be exact, or the load is not.
        for workers in range(unit, pool, unit):
            if workers >= max(least, part * pool) and n * workers % pool == 0:
                return workers, n * workers // pool
    return pool, n


def _windows(
    settings: FleetSettings,
    work: Workload,
    special: Sequence[tuple[float, float]],
    number: int,
    length: float,
    warm: float,
) -> list[Window]:
    rng = np.random.default_rng([settings.seed, 2])
    edges = [0.0, *(t for span in special for t in span), settings.seconds]
    usual = list(zip(edges[::2], edges[1::2], strict=True))
    total = sum(end - begin for begin, end in usual)
    step = work.period if isinstance(work, Periodic) and work.aligned else 0.0
    found: list[Window] = []
    for segment, (begin, end) in enumerate(usual):
        if end - begin > 0:
            count = max(2, round(number * (end - begin) / total))
            stratum = (end - begin) / count
            for i in range(count):
                size = min(length, stratum)
                from_ = begin + i * stratum
                at = from_ + float(rng.uniform(0.0, stratum - size))
                before = min(warm, at)
                if step:
                    # Devices in step begin a period together, and so must time.
                    before += (at - before) % step
                    before = min(before, at)
                to = begin + (i + 1) * stratum
                found.append(Window(at, at + size, before, from_, to, 2 * segment))
        if segment < len(special):
            first, last = special[segment]
            # One after the other they are the whole of it; several, to see how they differ.
            found.append(Window(first, last, min(warm, first), first, last, 2 * segment + 1))
    return sorted(found, key=lambda w: w.begin)


class _Later(RowMix):
    """A mix whose time begins later."""

    _start: float

    @classmethod
    def of(cls, mix: RowMix, start: float) -> _Later:
        later = object.__new__(cls)
        later.__dict__.update(mix.__dict__)
        later._start = start + getattr(mix, "_start", 0.0)
        return later

    def shares(self, times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return super().shares(times + self._start)
