"""Sample a large fleet's day: windows of time, and a share of the fleet.

Queues must carry their full load, so **time** is sampled first: the day is cut into equal strata,
and in each a window is stepped after a warm-up, which is at least as long as the radio's tail, as
the cost of an exchange depends on the one before. Around an outage nothing is left out. Only if
even that is too much is the **fleet** sampled, devices and workers in the same proportion: since
the broker deals in turn, a part of the pool carries its full load. (It gets requests of fewer
devices, spaced a little less evenly: waits come out slightly too long, never too short. At least
:data:`LEAST_WORKERS` are kept for that reason.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from gatewise.errors import InputError
from gatewise.formats import DAY
from gatewise_sim.fleet.estimate.plan import AFTER_OUTAGE, SamplingPlan, Window
from gatewise_sim.fleet.network.outages import Outages, merged
from gatewise_sim.fleet.routes import Routes
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.workload.arrivals import parse
from gatewise_sim.fleet.workload.kinds import Diurnal, Periodic, Replay, Workload

LEAST_WORKERS: Final = 8
_WINDOWS: Final = 24
_FEWEST: Final = 16  # if even a part of the fleet is too much for more
_SHORTEST: Final = 5.0  # seconds of a window
_REQUESTS: Final = 120_000  # stepped at most, about
_INSTANCES: Final = 10_000_000
_AUDITED: Final = 300_000  # instances, if devices' auditors take in each


def choose_plan(
    routes: Routes,
    settings: FleetSettings,
    *,
    requests: int = _REQUESTS,
    instances: int = _INSTANCES,
    windows: int = _WINDOWS,
) -> SamplingPlan:
    """Choose the part of a run to step: all of it if that is little enough."""
    whole = SamplingPlan.everything(settings.devices, settings.workers, settings.seconds)
    work = _workload(settings)
    if work is None or isinstance(work, Replay):
        return whole
    if windows < 4:
        raise InputError(f"windows is {windows}; confidence intervals need at least 4")
    sent = {"system": routes.share, "edge-only": 0.0, "cloud-only": 1.0}
    share = 1.0 if callable(settings.policy) else float(sent[settings.policy])
    if settings.audit is not None and settings.policy == "system":
        share += (1.0 - share) * settings.audit
        instances = min(instances, _AUDITED)
    rate = work.mean_rate * settings.devices
    affordable = min(requests / max(rate * share, 1e-12), instances / rate)
    if settings.seconds <= affordable:
        return whole
    warm, step = _warm_up(settings), _period_in_step(work)
    special = _around_outages(settings, warm)
    in_special = sum(end - begin + warm for begin, end in special)
    # Of devices in step a window has a whole period, and begins another one for its warm-up.
    shortest, before = max(_SHORTEST, step), warm + step
    least = windows * (shortest + before) + in_special
    part = affordable / min(least, settings.seconds)
    workers, devices = _part_of_fleet(settings, part)
    chosen = replace(whole, devices=devices, workers=workers)
    if least >= settings.seconds:
        return chosen
    affordable *= settings.devices / devices
    if least > affordable:
        possible = int((affordable - in_special) / (shortest + before))
        windows = min(windows, max(_FEWEST, possible))
    length = max(shortest, (affordable - in_special) / windows - before)
    return replace(chosen, windows=tuple(_windows(settings, step, special, windows, length, warm)))


def window_settings(settings: FleetSettings, plan: SamplingPlan, number: int) -> FleetSettings:
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
        mix=None if settings.mix is None else settings.mix.later(start),
        outages=outages,
        primed=True,
        seed=settings.seed * 1_000_003 + number,
    )


def _warm_up(settings: FleetSettings) -> float:
    """Seconds after which the begin of a window has no effect on queues and radios."""
    radio = settings.link.radio
    used = radio.tail_j > 0 and settings.policy != "edge-only"
    tail = radio.tail_s + settings.deadline_ms / 1000.0 if used else 0.0
    return max(5.0, settings.deadline_ms / 100.0, tail)


def _period_in_step(work: Workload) -> float:
    """Seconds of the period that all devices begin together; 0 if they do not."""
    return work.period if isinstance(work, Periodic) and work.aligned else 0.0


def _workload(settings: FleetSettings) -> Workload | None:
    work = settings.workload
    return parse(work) if isinstance(work, str) else work


def _around_outages(settings: FleetSettings, warm: float) -> list[tuple[float, float]]:
    """Times in which nothing is left out, apart from each other and in order."""
    found = (
        (max(0.0, begin - 1.0), min(settings.seconds, end + AFTER_OUTAGE))
        for _, begin, end, _ in settings.outages.faults(settings.seconds)
    )
    return merged(found, gap=warm)


def exact_parts(settings: FleetSettings) -> list[int]:
    """Numbers of workers, rising, to which the devices keep their exact proportion.

    If the proportion is not exact, the load is not; nor are the workers whole that an outage takes.
    """
    pool = settings.workers
    counts = [w.count for w in settings.outages.windows if w.what == "workers"]
    unit = pool // math.gcd(pool, *counts) if counts else 1
    return [n for n in range(unit, pool + 1, unit) if settings.devices * n % pool == 0]


def _part_of_fleet(settings: FleetSettings, part: float) -> tuple[int, int]:
    """Workers and devices to step, given the part of the load that can be."""
    n, pool = settings.devices, settings.workers
    least = min(pool, max(LEAST_WORKERS, math.ceil(pool / n), part * pool))
    workers = next(w for w in exact_parts(settings) if w >= least)
    return workers, n * workers // pool


def _windows(
    settings: FleetSettings,
    step: float,
    special: Sequence[tuple[float, float]],
    number: int,
    length: float,
    warm: float,
) -> list[Window]:
    rng = np.random.default_rng([settings.seed, 2])
    edges = [0.0, *(t for span in special for t in span), settings.seconds]
    usual = list(zip(edges[::2], edges[1::2], strict=True))
    total = sum(end - begin for begin, end in usual)
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
                found.append(Window(at, at + size, before, from_, to, (2 * segment, 0)))
        if segment < len(special):
            first, last = special[segment]
            # One after the other they are the whole of it; several, to see how they differ.
            around = (2 * segment + 1, 0)
            found.append(Window(first, last, min(warm, first), first, last, around))
    return sorted(found, key=lambda w: w.begin)
