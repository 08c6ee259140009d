"""Estimate of what a fleet does, with confidence intervals, from the sums of its windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_sim.fleet.answers import (
    CLOUD,
    EDGE,
    REASONS,
    ROUTES,
    AlarmCount,
    Answers,
    FleetRun,
)
from gatewise_sim.fleet.energy import DeviceEnergy
from gatewise_sim.fleet.estimate.intervals import (
    Measurement,
    binomial_interval,
    mean,
    sample_interval,
)
from gatewise_sim.fleet.estimate.plan import SamplingPlan, cut_window
from gatewise_sim.fleet.estimate.sketch import BINS_A_DECADE as _FINE
from gatewise_sim.fleet.estimate.sketch import Sketch, quantile
from gatewise_sim.fleet.estimate.window_sums import (
    CLASS_COUNTS,
    SUMS,
    BinSums,
    RowFacts,
    WindowCounts,
    WindowSums,
)
from gatewise_sim.fleet.routes import Routes
from gatewise_sim.fleet.settings import FleetSettings

BINS_A_DECADE: Final = 10
MEANS: Final = {
    "accuracy": ("right", "labelled"),
    "edge_accuracy": ("edge_right", "labelled"),
    "offload_rate": ("requested", "n"),
    **{
        name: (name, "n")
        for name in SUMS
        if name not in ("n", "labelled", "right", "edge_right", "requested")
        and not name.endswith("_ms")
    },
}
"""Each mean as a ratio of two sums."""
_SHARES: Final = ("accuracy", "edge_accuracy", "offload_rate", *ROUTES)
_Floats = NDArray[np.float64]
_ROUNDING: Final = 1e-12  # relative, of a sum of squares
_BREAKDOWN: Final = ("device", "network", "cloud", "waiting")
_QUANTILES: Final = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, eq=False)
class FleetEstimate:
    """Estimate of what a fleet does: all but `plan` and `alarms` plain numbers, fit for JSON."""

    plan: SamplingPlan
    """Part of the run that was stepped."""
    instances: float
    """Of the whole fleet in all the time, estimated."""
    means: dict[str, Measurement]
    """Per instance: ``accuracy`` and ``edge_accuracy`` (what the device alone would have got
    right), both left out where no truth is known; ``offload_rate`` (requested, whether or not
    answered); the shares ``audited``, ``edge``, ``cloud``, ``fallback`` and ``error``; ``cost``,
    ``feature_cost``; ``bytes_up``, ``bytes_down``, ``payload_up``, ``payload_down``, and
    ``audit_bytes`` of them, both ways; in joules
    ``radio_j``, ``feature_j``, ``stage_j``.
    """
    latency_ms: dict[str, Measurement]
    """``p50``, ``p95`` and ``p99`` of all instances, and of those that were to be offloaded as
    ``offloaded_p50`` and so on (left out if there are none). From a histogram with 1,000 bins a
    decade, each of which stands for the mean of its values.
    """
    of_rows: dict[str, tuple[float, float]]
    """Intervals of `means`, and of ``p50``, ``p95`` and ``p99``, as the rows' own number allows
    them: however many instances are drawn from rows, these are a sample. As if the row decided
    each figure; the intervals beside the figures are about another such run with the same rows.
    """
    utilisation: float
    """Share of the workers' time spent in runs."""
    events: int
    """Stepped, warm-ups included."""
    histogram: dict[str, list[float]] = field(default_factory=dict)
    """``edges_ms`` (n + 1), ten bins a decade; ``all`` and ``offloaded`` (n): estimated numbers of
    instances.
    """
    breakdown_ms: dict[str, float] = field(default_factory=dict)
    """Mean ms per instance on ``device``, ``network`` and ``cloud``, and ``waiting`` in vain; they
    sum to the mean latency.
    """
    timeline: list[dict[str, Any]] = field(default_factory=list)
    """Bins of time in order: ``begin``, ``end`` (s), estimated numbers ``instances``, ``edge``,
    ``cloud``, ``fallback``, ``error``; ``accuracy`` and ``edge_accuracy`` (None without a truth);
    ``p50_ms``, ``p95_ms`` of those that were to be offloaded (None if none). In a sampled run a bin
    is the time that one window stands for.
    """
    classes: list[dict[str, Any]] = field(default_factory=list)
    """By true class: ``class_index``, ``instances``, ``offload_rate``, ``accuracy`` (its recall),
    ``edge_accuracy`` (the three None without instances).
    """
    reasons: dict[str, float] = field(default_factory=dict)
    """Estimated numbers of answers, see :data:`gatewise_sim.fleet.answers.REASONS`."""
    sets: list[float] = field(default_factory=list)
    """Estimated numbers of instances by the set of features that they acquired, in the order of
    :attr:`.Routes.acquired_sets`.
    """
    faults: list[dict[str, Any]] = field(default_factory=list)
    """``what``, ``begin``, ``end`` (s), ``count`` (of workers), by the schedule."""
    devices: dict[str, float] = field(default_factory=dict)
    """Sums of the devices' counters, estimated: ``retries``, ``late``, ``breaker_opened`` ..."""
    workers: dict[str, float] = field(default_factory=dict)
    """``utilisation``, ``wait_ms`` of an answered request in the queue, ``batch`` (its mean size in
    requests) and sums of the workers' counters, estimated; ``busy`` is refusals.
    """
    instances_stepped: int = 0
    """Warm-ups included."""
    alarms: tuple[AlarmCount, ...] = ()
    """Those of audits, if all of the run was stepped."""

    @classmethod
    def from_run(
        cls,
        routes: Routes,
        settings: FleetSettings,
        run: FleetRun,
        *,
        device_energy: DeviceEnergy | None = None,
    ) -> FleetEstimate:
        """Make the estimate of a whole run, live or simulated, stepped or answered for real."""
        answers, seconds = run.answers, settings.seconds
        if settings.in_turn is not None and len(answers):
            seconds = float(np.nanmax(answers.time + answers.latency_ms / 1000.0))
        seconds = max(seconds, 1e-9)
        plan = SamplingPlan.everything(settings.devices, settings.workers, seconds)
        facts = RowFacts.from_routes(
            routes, device_energy, cloud_only=settings.policy == "cloud-only"
        )
        sums = WindowSums(cut_window(plan, plan.windows[0], settings.outages), facts)
        sums.add(answers, run.joules)
        counts = replace(
            sums.result(answers.take(np.arange(0))),
            devices={name: float(count) for name, count in run.devices.items()},
            workers=_weighted(run.workers, [1.0] * len(run.workers)),
            worker_seconds=seconds * settings.workers * settings.parallel,
            events=run.events,
        )
        return combine(plan, settings, [counts], count_alarms(run.alarms, answers, settings))


def combine(
    plan: SamplingPlan,
    settings: FleetSettings,
    windows: Sequence[WindowCounts],
    alarms: tuple[AlarmCount, ...] = (),
) -> FleetEstimate:
    """Put the windows of a plan together; InputError if no instance came."""
    parts = [part for window in windows for part in window.parts]
    sums = np.array([part.bin.weight * part.sums for part in parts])
    total = dict(zip(SUMS, sums.sum(axis=0).tolist(), strict=True))
    if not total["n"]:
        raise InputError("no instance came: simulate more devices or a longer time")
    keys = [part.bin.segment for part in parts]
    segments = np.unique(np.array(keys), axis=0, return_inverse=True)[1].reshape(-1)
    scale = plan.of_devices / plan.devices
    weights = [scale * window.weight for window in plan.windows]

    def weighted(name: str) -> NDArray[np.float64]:
        found = (f * getattr(w, name) for f, w in zip(weights, windows, strict=True))
        return np.asarray(sum(found))

    workers = _weighted([w.workers for w in windows], weights)
    available = float(weighted("worker_seconds"))
    # What came by the end may take the workers longer than the run.
    busy = min(workers.get("busy_seconds", 0.0), available)
    utilisation = busy / available if available else 0.0
    return FleetEstimate(
        plan=plan,
        instances=scale * total["n"],
        means={
            name: mean(
                sums[:, SUMS.index(above)],
                sums[:, SUMS.index(below)],
                segments,
                most=1.0 if name in _SHARES else np.inf,
            )
            for name, (above, below) in MEANS.items()
            if total[below]
        },
        latency_ms=_latencies(parts, segments),
        of_rows=_of_rows(parts, total, weighted("rows"), weighted("squares") / scale),
        utilisation=utilisation,
        histogram=_histogram(parts, scale),
        breakdown_ms={name: total[f"{name}_ms"] / total["n"] for name in _BREAKDOWN},
        timeline=[_moment(part, scale) for part in parts],
        classes=[_class(index, counts) for index, counts in enumerate(weighted("classes"))],
        reasons={
            name: count
            for name, count in zip(REASONS, weighted("reasons").tolist(), strict=True)
            if count
        },
        sets=weighted("sets").tolist(),
        faults=[
            {"what": what, "begin": begin, "end": end, "count": count}
            for what, begin, end, count in settings.outages.faults(plan.seconds)
        ],
        devices=_weighted([w.devices for w in windows], weights),
        workers={"utilisation": utilisation, **_per_request(workers), **workers},
        instances_stepped=sum(window.instances for window in windows),
        events=sum(window.events for window in windows),
        alarms=alarms,
    )


def _weighted(counts: Sequence[Mapping[str, float]], weights: Sequence[float]) -> dict[str, float]:
    names = dict.fromkeys(name for each in counts for name in each)
    return {
        name: float(sum(f * each.get(name, 0.0) for f, each in zip(weights, counts, strict=True)))
        for name in names
    }


def _per_request(workers: Mapping[str, float]) -> dict[str, float]:
    found = {}
    answered, batches = workers.get("answered", 0.0), workers.get("batches", 0.0)
    if answered and "queued_seconds" in workers:
        found["wait_ms"] = 1000.0 * workers["queued_seconds"] / answered
    if batches:
        found["batch"] = answered / batches
    return found


def _latencies(parts: Sequence[BinSums], segments: NDArray[np.int64]) -> dict[str, Measurement]:
    weights = [part.bin.weight for part in parts]
    every, offloaded = ([getattr(p, name) for p in parts] for name in ("latencies", "offloaded"))
    return {
        prefix + label: quantile(share, sketches, weights, segments)
        for prefix, sketches in (("", every), ("offloaded_", offloaded))
        if any(sketch.total for sketch in sketches)
        for label, share in _QUANTILES.items()
    }


def _of_rows(
    parts: Sequence[BinSums], total: Mapping[str, float], rows: _Floats, squares: _Floats
) -> dict[str, tuple[float, float]]:
    """Shapes: `rows` (n_rows,), `squares` (len(SUMS),), of the same instances as `total`."""
    # Instances share rows: so many independent ones would be as sure of a mean (Kish 1965).
    independent = float(rows.sum() ** 2 / (rows**2).sum())
    found = {}
    for name, (above, below) in MEANS.items():
        if not total[below]:
            continue
        value, n = total[above] / total[below], independent * total[below] / total["n"]
        if name in _SHARES:
            found[name] = binomial_interval(min(value, 1.0), n)
        else:
            square = float(squares[SUMS.index(above)]) / total[below]
            variance = max(0.0, square - (1 + _ROUNDING) * value**2)
            found[name] = sample_interval(value, variance, n)
    whole = Sketch.merge([p.latencies for p in parts], [p.bin.weight for p in parts])
    if len(whole.bins):
        for label, share in _QUANTILES.items():
            low, high = binomial_interval(share, independent)
            found[label] = whole.quantile(low), whole.quantile(high)
    return found


def _histogram(parts: Sequence[BinSums], scale: float) -> dict[str, list[float]]:
    weights = [scale * part.bin.weight for part in parts]
    every = Sketch.merge([part.latencies for part in parts], weights)
    offloaded = Sketch.merge([part.offloaded for part in parts], weights)
    if not len(every.bins):
        return {"edges_ms": [], "all": [], "offloaded": []}
    first, last = (int(b) // (_FINE // BINS_A_DECADE) for b in every.bins[[0, -1]])
    n = last - first + 1
    return {
        "edges_ms": [10.0 ** (b / BINS_A_DECADE) for b in range(first, last + 2)],
        "all": every.coarse(BINS_A_DECADE, first, n),
        "offloaded": offloaded.coarse(BINS_A_DECADE, first, n),
    }


def _moment(part: BinSums, scale: float) -> dict[str, Any]:
    sums = dict(zip(SUMS, (scale * part.bin.weight * part.sums).tolist(), strict=True))
    offloaded, labelled = part.offloaded, sums["labelled"]
    return {
        "begin": part.bin.first,
        "end": part.bin.last,
        "instances": sums["n"],
        **{route: sums[route] for route in ROUTES},
        "accuracy": sums["right"] / labelled if labelled else None,
        "edge_accuracy": sums["edge_right"] / labelled if labelled else None,
        "p50_ms": offloaded.quantile(0.5) if offloaded.total else None,
        "p95_ms": offloaded.quantile(0.95) if offloaded.total else None,
    }


def _class(index: int, counts: NDArray[np.float64]) -> dict[str, Any]:
    own = dict(zip(CLASS_COUNTS, counts.tolist(), strict=True))
    n = own["n"]
    return {
        "class_index": index,
        "instances": n,
        "offload_rate": own["requested"] / n if n else None,
        "accuracy": own["right"] / n if n else None,
        "edge_accuracy": own["edge_right"] / n if n else None,
        "precision": own["right"] / own["answered"] if own["answered"] else None,
    }


def count_alarms(
    alarms: Sequence[int] | None, answers: Answers, settings: FleetSettings
) -> tuple[AlarmCount, ...]:
    """Count the alarms of a run's workers; nothing without audits.

    A worker tests what it is sent: one of several sees its share of the fleet's.
    """
    if alarms is None:
        return ()
    # What audits could test before the data changed; fallbacks are no evidence.
    before = np.isin(answers.route, (EDGE, CLOUD)) & (answers.time < (settings.data_change or 0.0))
    since = [float(at * settings.workers - before.sum()) for at in alarms]
    found = [instances for instances in since if instances > 0]
    return (
        AlarmCount(
            tests=settings.workers,
            raised=len(since),
            early=len(since) - len(found),
            instances=float(np.median(found)) if found else None,
        ),
    )
