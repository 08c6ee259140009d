"""Synthetic reports with all their parts.

The figures are round numbers that grow with the offload rate, so that tests can predict texts and
sums.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from gatewise_sim.fleet.outages import FaultSpan
from gatewise_sim.report.document import (
    Bill,
    EnergyUse,
    EngineFigures,
    FrontierPoint,
    FrontierPoints,
    Report,
    RowCheck,
    StageResult,
    Transport,
)
from gatewise_sim.report.policy_result import (
    AnswerCounts,
    ByteUse,
    ClassResult,
    Estimate,
    JouleUse,
    LatencyHistogram,
    PolicyResult,
    TimelineBin,
)
from gatewise_sim.timings import Timings

POLICY_NAMES = {
    "system": "Gatewise",
    "edge_only": "All edge",
    "cloud_only": "All cloud",
    "confidence": "Confidence",
    "random": "Random",
    "oracle": "Oracle",
}
#: Offload rates of the policies that do not offload a fifth of the instances.
OFFLOAD_RATES = {"edge_only": 0.0, "cloud_only": 1.0, "oracle": 0.05}
#: 1,000 instances of 10 devices in an hour are 100 a device and hour.
INSTANCES_PER_DEVICE_DAY = 100 * 24
#: Energy of a device in a day that does not depend on its instances.
IDLE_JOULES_PER_DAY = 300.0
#: Timings without an assumed one.
MEASURED_TIMINGS = Timings(edge_ms=(0.1, 0.2), run_us=100.0, instance_us=20.0, assumed=())


def make_estimate(value: float, half_width: float) -> Estimate:
    """Make a figure with a symmetric interval."""
    return Estimate(value=value, low=value - half_width, high=value + half_width)


def make_policy_result(
    key: str, *, accuracy: float | None = 0.9, half_width: float = 0.01, cost: float = 10.0,
    p95_ms: float = 50.0, money: float | None = None, **changes: Any,
) -> PolicyResult:  # fmt: skip
    """Make the results of a policy for 1,000 instances.

    Most policies offload a fifth of them. `changes` are fields of the results.
    """
    offload_rate = OFFLOAD_RATES.get(key, 0.2)
    has_labels = accuracy is not None
    joules = JouleUse(radio=5 * offload_rate, features=0.5, stages=0.25)
    joules_per_instance = joules.radio + joules.features + joules.stages
    policy_result = PolicyResult(
        key=key,
        name=POLICY_NAMES[key],
        engine="virtual",
        sampling="all of 10 devices for 1 h",
        scale=1.0,
        instances=1000,
        accuracy=None if accuracy is None else make_estimate(accuracy, half_width),
        edge_accuracy=None if accuracy is None else make_estimate(accuracy - 0.1, half_width),
        offload_rate=make_estimate(offload_rate, 0.05 if 0 < offload_rate < 1 else 0.0),
        cost=make_estimate(cost, 0.1),
        feature_cost=make_estimate(cost, 0.1),
        latency_ms=make_latency(offload_rate, p95_ms),
        bytes=ByteUse(
            up=make_estimate(500 * offload_rate, offload_rate),
            down=make_estimate(250 * offload_rate, offload_rate),
            request=450 * offload_rate,
            response=220 * offload_rate,
            protocol=80 * offload_rate,
        ),
        joules=joules,
        joules_per_device_day=INSTANCES_PER_DEVICE_DAY * joules_per_instance + IDLE_JOULES_PER_DAY,
        battery_days=None,
        answers=make_answer_counts(offload_rate),
        money=None
        if money is None
        else Bill(
            currency="EUR",
            data=money / 2,
            workers=money / 2,
            energy=0.0,
            features=0.0,
            requests=0.0,
            devices=0.0,
        ),
        utilisation=0.1,
        workers={"utilisation": 0.1, "wait_ms": 1.5, "batch": 2.0, "answered": 190.0},
        histogram=LatencyHistogram(
            edges_ms=(0.1, 1.0, 10.0, 100.0),
            all=(1000.0 * (1 - offload_rate), 400.0 * offload_rate, 600.0 * offload_rate),
            offloaded=(0.0, 400.0 * offload_rate, 600.0 * offload_rate),
        ),
        breakdown_ms={
            "device": 0.2,
            "network": 40 * offload_rate,
            "cloud": 3 * offload_rate,
            "waiting": offload_rate,
        },
        reasons={
            "stopped": 1000 * (1 - offload_rate),
            "offloaded": 950 * offload_rate,
            "timeout": 50 * offload_rate,
        },
        timeline=tuple(make_timeline(has_labels=has_labels)),
        classes=make_class_results(has_labels=has_labels),
    )
    return replace(policy_result, **changes)


def make_latency(offload_rate: float, p95_ms: float) -> dict[str, Estimate]:
    """Make quantiles in ms; those of offloaded instances are twice as large."""
    factors = {"p50": 0.5, "p95": 1.0, "p99": 1.5}
    latency = {name: make_estimate(factor * p95_ms, 1.0) for name, factor in factors.items()}
    if offload_rate:
        latency |= {
            f"offloaded_{name}": make_estimate(2 * factor * p95_ms, 2.0)
            for name, factor in factors.items()
        }
    return latency


def make_answer_counts(offload_rate: float) -> AnswerCounts:
    """Count the routes of 1,000 instances; 5 % of the offloads become fallbacks after a retry."""
    n_offloads = round(1000 * offload_rate)
    n_fallbacks = round(0.05 * n_offloads)
    return AnswerCounts(
        edge=1000 - n_offloads,
        cloud=n_offloads - n_fallbacks,
        fallback=n_fallbacks,
        late=n_fallbacks // 2,
        retries=n_fallbacks,
        lost=0,
    )


def make_class_results(*, has_labels: bool) -> tuple[ClassResult, ...]:
    """Make the results of five classes, each with a fifth of the instances, and of an empty one.

    Each class has more offloads and a lower accuracy than the class before it.
    """
    class_results = [
        ClassResult(
            label=f"kind {index}",
            instances=200.0,
            offload_rate=0.1 * index,
            accuracy=0.98 - 0.04 * index if has_labels else None,
            edge_accuracy=0.95 - 0.1 * index if has_labels else None,
            precision=None,
        )
        for index in range(5)
    ]
    empty_class = ClassResult(
        label="kind 5", instances=0.0, offload_rate=None, accuracy=None, edge_accuracy=None,
        precision=None,
    )  # fmt: skip
    return (*class_results, empty_class)


def make_report(
    *, accuracy: float | None = 0.9, half_width: float = 0.01, cost: float = 10.0,
    p95_ms: float = 50.0, money: float | None = None, keys: tuple[str, ...] = tuple(POLICY_NAMES),
    settings: dict[str, Any] | None = None, system: dict[str, Any] | None = None, **changes: Any,
) -> Report:  # fmt: skip
    """Make a report of a simulated hour with an outage; `changes` are fields of the report."""
    # Offloading more costs more and is right more often; the oracle is the best.
    accuracy_gains = {"cloud_only": 0.05, "oracle": 0.06, "edge_only": -0.08}
    cost_factors = {"cloud_only": 4.0, "edge_only": 0.8}
    policies = [
        make_policy_result(
            key,
            accuracy=None
            if accuracy is None
            else min(0.99, accuracy + accuracy_gains.get(key, 0.0)),
            half_width=half_width,
            cost=cost * cost_factors.get(key, 1.0),
            p95_ms=p95_ms if key != "edge_only" else 1.0,
            money=None if money is None else money * cost_factors.get(key, 1.0),
            **(system or {}) if key == "system" else {},
        )
        for key in keys
    ]
    points = tuple(  # accuracy rises with cost, ever more slowly
        FrontierPoint(cost=cost, accuracy=0.99 - 0.6 * 2.0 ** (-cost / 4), offload_rate=cost / 64)
        for cost in (2.0, 5.0, 8.0, 10.0, 12.0, 18.0, 24.0, 40.0, 64.0)
    )
    fields: dict[str, Any] = {
        "dataset": "rows",
        "method": "m/1",
        "transport": Transport(kind="virtual", broker="simulated", link="4g"),
        "features": ("a", "b"),
        "stages": (
            StageResult(
                name="stage 0", columns=2, acquires=("a", "b"), price=2.0, answers=800, share=0.8
            ),
        ),
        "faults": (FaultSpan(what="cloud", begin=1200.0, end=1800.0, count=1),),
        "frontier": FrontierPoints(
            points=points, hull=points[::2], active=points[4], reference_accuracy=0.99
        ),
        "energy": EnergyUse(radio="lte", battery_wh=None),
        "timings": Timings(edge_ms=(0.1, 0.2), run_us=100.0, instance_us=20.0),
        "settings": {
            "devices": 10, "workers": 2, "time": "1h", "day_start": "00:00",
            "deadline_ms": 500.0, "link": "4g", "seed": 0, "workload": "poisson:1/min",
        } | (settings or {}),
        "command": "gatewise simulate bundle --data rows.csv --devices 10 --workers 2 --time 1h",
        "versions": {"python": "3.11.7", "gatewise": "0.1.0"},
        "notes": (),
    }  # fmt: skip
    return Report.from_policies(policies, **fields | changes)


def make_timeline(*, has_labels: bool = True) -> list[TimelineBin]:
    """Make the 12 bins of an hour; from 1200 s to 1800 s all offloads become fallbacks."""
    usual_bin = TimelineBin(
        begin=0.0, end=300.0, instances=100.0, edge=80.0, cloud=20.0, fallback=0.0, error=0.0,
        accuracy=0.95 if has_labels else None, edge_accuracy=0.7 if has_labels else None,
        p95_ms=80.0,
    )  # fmt: skip
    outage_bin = replace(
        usual_bin,
        cloud=0.0,
        fallback=20.0,
        accuracy=usual_bin.edge_accuracy,
        p95_ms=500.0,
    )
    return [
        replace(
            outage_bin if 4 <= bin_index < 6 else usual_bin,
            begin=300.0 * bin_index,
            end=300.0 * (bin_index + 1),
        )
        for bin_index in range(12)
    ]


def make_live_report(**changes: Any) -> Report:
    """Make the report of a live run."""
    return make_report(
        system={"engine": "live"},
        transport=Transport(kind="mqtt", broker="embedded", link="wifi"),
        checked=RowCheck(compared=990, differing={"labels": 0, "routes": 0, "costs": 0}),
        twin=EngineFigures(
            live={"accuracy": 0.9, "offload_rate": 0.2, "p95_ms": 50.0},
            virtual={"accuracy": 0.91, "offload_rate": 0.2, "p95_ms": None},
        ),
        run={"seconds": 20.0, "created": "2026-01-01T00:00:00+00:00", "machine": "Linux x86_64"},
        **changes,
    )


def replace_system(report: Report, **changes: Any) -> Report:
    """Replace fields of the system's policy."""
    return replace(report, policies=(replace(report.system, **changes), *report.policies[1:]))
