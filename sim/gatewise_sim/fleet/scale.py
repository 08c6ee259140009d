"""What a fleet of any size does, from the part of it that is stepped, with confidence intervals.

Means are ratio estimates over windows that follow each other systematically through the day;
their variance is that of successive differences, which a slow change over the day does not
inflate (Wolter, "Introduction to Variance Estimation", 2007, section 8.2). Quantiles have
Woodruff's intervals: those of the share below, read off the distribution (Woodruff 1952).
A run that is stepped whole is cut into equal parts: its intervals say what another such run
would bring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gatewise_sim.fleet.answers import Answers
from gatewise_sim.fleet.routing import ROUTES, Routes
from gatewise_sim.fleet.run import simulate_fleet
from gatewise_sim.fleet.sampling import Plan, plan, window_settings
from gatewise_sim.fleet.settings import FleetSettings

__all__ = ["Estimate", "FleetEstimate", "estimate_fleet"]

_LEVEL: Final = 0.95
_PARTS: Final = 24  # of a run, or of an outage, that is stepped whole
_QUANTILES: Final = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
_Floats = npt.NDArray[np.float64]


class Estimate(NamedTuple):
    """A figure and its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class FleetEstimate:
    """What a fleet does.

    Attributes
    ----------
    plan : Plan
        What was stepped.
    instances : float
        Of the whole fleet in all the time, estimated.
    means : dict of str to Estimate
        Per instance: ``accuracy``, ``offload_rate`` (asked, whether or not answered), the shares
        ``edge``, ``cloud``, ``fallback`` and ``error``, ``cost``, ``bytes_up``, ``bytes_down``.
    latency_ms : dict of str to Estimate
        ``p50``, ``p95`` and ``p99`` of all instances, and of those that were to be offloaded as
        ``offloaded_p50`` and so on.
    utilisation : float
        Share of the workers' time spent in runs, in the windows stepped, warm-ups included.
    events : int
        Stepped.
    """

    plan: Plan
    instances: float
    means: dict[str, Estimate]
    latency_ms: dict[str, Estimate]
    utilisation: float
    events: int


@dataclass(frozen=True, eq=False)
class _Part:
    """One window's instances, as far as they are measured."""

    weight: float
    segment: int
    n: int
    sums: Mapping[str, float]
    latencies: _Floats
    offloaded: _Floats


def estimate_fleet(
    routes: Routes, settings: FleetSettings, *, sampling: Plan | None = None
) -> FleetEstimate:
    """Estimate what a fleet does; a small one is stepped whole.

    Parameters
    ----------
    routes : Routes
    settings : FleetSettings
    sampling : Plan, optional
        By default :func:`gatewise_sim.fleet.sampling.plan`'s.

    Raises
    ------
    InputError
        As :func:`gatewise_sim.fleet.run.simulate_fleet`.
    """
    chosen = plan(routes, settings) if sampling is None else sampling
    parts: list[_Part] = []
    busy = capacity = 0.0
    events = 0
    for number, window in enumerate(chosen.windows):
        own = settings if chosen.whole else window_settings(settings, chosen, number)
        run = simulate_fleet(routes, own)
        events += run.events
        busy += sum(w["busy_seconds"] for w in run.workers)
        capacity += own.workers * own.parallel * own.seconds
        # Outages, and whole runs, are certain: cut, so that one sees how their parts differ.
        pieces = _PARTS if window.weight == 1.0 else 1
        cuts = np.linspace(window.warm, own.seconds, pieces + 1)
        cuts[-1] = np.inf
        answers = run.answers
        if own.in_turn is not None:  # device after device
            answers = answers.take(np.argsort(answers.time, kind="stable"))
        places = np.searchsorted(answers.time, cuts)
        for begin, end in zip(places[:-1].tolist(), places[1:].tolist(), strict=True):
            some = answers.take(np.arange(begin, end))
            parts.append(_measure(some, routes, window.weight, window.segment))
    sizes = np.array([p.weight * p.n for p in parts])
    t = _t(len(parts) - len({p.segment for p in parts}))
    means = {
        name: _mean(np.array([p.weight * p.sums[name] for p in parts]), sizes, parts, t)
        for name in (parts[0].sums if parts else ())
    }
    latency = _quantiles(parts, "latencies", "", t) | _quantiles(
        parts, "offloaded", "offloaded_", t
    )
    return FleetEstimate(
        plan=chosen,
        instances=float(sizes.sum()) * chosen.of_devices / chosen.devices,
        means=means,
        latency_ms=latency,
        utilisation=busy / capacity,
        events=events,
    )


def _measure(a: Answers, routes: Routes, weight: float, segment: int) -> _Part:
    asked = a.payload_up > 0
    wanted = asked | (a.route == ROUTES.index("fallback"))
    sums: dict[str, Any] = {
        "accuracy": np.count_nonzero(a.label == routes.truth[a.row]),
        "offload_rate": np.count_nonzero(asked),
        **{route: np.count_nonzero(a.route == i) for i, route in enumerate(ROUTES)},
        "cost": a.cost.sum(),
        "bytes_up": a.up.sum(),
        "bytes_down": a.down.sum(),
    }
    return _Part(
        weight,
        segment,
        len(a),
        {name: float(total) for name, total in sums.items()},
        np.sort(a.latency_ms),
        np.sort(a.latency_ms[wanted]),
    )


def _mean(sums: _Floats, sizes: _Floats, parts: Sequence[_Part], t: float) -> Estimate:
    """Ratio of two totals over the parts, with its interval."""
    total = sizes.sum()
    if not total:
        return Estimate(np.nan, np.nan, np.nan)
    value = float(sums.sum() / total)
    half = t * float(np.sqrt(_variance(sums - value * sizes, parts))) / float(total)
    return Estimate(value, value - half, value + half)


def _variance(residuals: _Floats, parts: Sequence[_Part]) -> float:
    """Variance of the residuals' sum, by successive differences within each segment."""
    segments = np.array([p.segment for p in parts])
    found = 0.0
    for segment in np.unique(segments):
        own = residuals[segments == segment]
        if len(own) > 1:
            found += len(own) * float((np.diff(own) ** 2).sum()) / (2 * (len(own) - 1))
    return found


def _quantiles(parts: Sequence[_Part], name: str, prefix: str, t: float) -> dict[str, Estimate]:
    samples = [getattr(p, name) for p in parts]
    sizes = np.array([p.weight * len(s) for p, s in zip(parts, samples, strict=True)])
    if not sizes.sum():
        return {}
    values = np.concatenate(samples)
    weights = np.repeat([p.weight for p in parts], [len(s) for s in samples])
    order = np.argsort(values, kind="stable")
    values, below = values[order], np.cumsum(weights[order])
    below /= below[-1]

    def at(share: float) -> float:
        place = int(np.searchsorted(below, min(max(share, 0.0), 1.0)))
        return float(values[min(place, len(values) - 1)])

    found = {}
    for label, share in _QUANTILES.items():
        value = at(share)
        under = [np.searchsorted(s, value, side="right") for s in samples]
        sums = np.array([p.weight * u for p, u in zip(parts, under, strict=True)])
        # Ties at the quantile, as among instances that never left the device, shift the share.
        centred = sums - sums.sum() / sizes.sum() * sizes
        half = t * float(np.sqrt(_variance(centred, parts))) / float(sizes.sum())
        found[prefix + label] = Estimate(value, at(share - half), at(share + half))
    return found


def _t(freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf(0.5 + _LEVEL / 2, max(freedom, 1)))
