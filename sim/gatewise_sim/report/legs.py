"""From what devices measured to ``report.json``.

A run routes the same rows three times over the same links, once per policy: the system, all
on the edge, all in the cloud. Each pass is a :class:`Leg` of outcomes, one an instance.
Nothing here is assumed: a row that no device answered is lost, bytes are those of messages
that went over the wire, and the estimator's own figures stand beside the measured ones so
that a difference shows.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.console import plain
from gatewise_export.bundle.manifest import Manifest
from gatewise_sim.live.outcome import BYTES_FORMULA, Outcome

__all__ = ["POLICIES", "Expected", "Leg", "compare", "measure", "to_json"]

POLICIES = {"system": "system", "edge_only": "edge-only", "cloud_only": "cloud-only"}
"""Key in the report to the device's policy, in the order in which they are run."""

_BINS_PER_DECADE = 10


@dataclass(frozen=True)
class Leg:
    """One pass over the rows under one policy.

    Attributes
    ----------
    outcomes : sequence of Outcome
    rows : int
        Rows handed to the devices.
    late : int
        Responses that came after their deadline and were not used.
    retries : int
        Requests sent a second time.
    seconds : float
        Wall time of the pass.
    """

    outcomes: Sequence[Outcome]
    rows: int
    late: int = 0
    retries: int = 0
    seconds: float = 0.0

    @property
    def lost(self) -> int:
        """Rows without an answer; one row answered twice does not make up for another."""
        return self.rows - len({o.row for o in self.outcomes})

    @property
    def routes(self) -> dict[str, int]:
        """Answers by route."""
        counts = Counter(o.route for o in self.outcomes)
        return {route: counts[route] for route in ("edge", "cloud", "fallback")}


@dataclass(frozen=True, eq=False)
class Expected:
    """What the estimator itself says about the rows, and what is true.

    Attributes
    ----------
    truth : ndarray of int, shape (n,)
        Class indices.
    labels : ndarray of int, shape (n,)
        Class indices that ``predict`` gives.
    offload : ndarray of bool, shape (n,)
    cost : ndarray of float, shape (n,)
        Union accounting, cloud prices included.
    cloud_labels : ndarray of int, shape (n,)
        Class indices that the high-cost model gives.
    """

    truth: NDArray[np.int64]
    labels: NDArray[np.int64]
    offload: NDArray[np.bool_]
    cost: NDArray[np.float64]
    cloud_labels: NDArray[np.int64]


def measure(
    legs: Mapping[str, Leg], truth: NDArray[np.int64], manifest: Manifest
) -> dict[str, Any]:
    """Turn the three passes into the measures of a report.

    Parameters
    ----------
    legs : mapping of str to Leg
        A pass for each key of :data:`POLICIES`.
    truth : ndarray of int, shape (n,)
        Class index of each row.
    manifest : Manifest
        Of the bundle that the devices ran.

    Returns
    -------
    dict
        ``instances, offload_rate, accuracy, feature_cost, cost_reduction, cost, bytes,
        traffic, latency_ms, latency_histogram, answers, passes, stages``. Costs are means per
        instance in the unit of the feature costs, bytes are totals, latencies milliseconds.
    """
    feature_cost = {k: _mean([o.feature_cost for o in leg.outcomes]) for k, leg in legs.items()}
    system = legs["system"]
    routes = system.routes
    answered = len(system.outcomes)
    return {
        "instances": system.rows,
        "offload_rate": _ratio(routes["cloud"] + routes["fallback"], answered),
        "accuracy": {
            key: _ratio(sum(o.label == truth[o.row] for o in leg.outcomes), leg.rows)
            for key, leg in legs.items()
        },
        "feature_cost": feature_cost,
        "cost_reduction": _saving(feature_cost["system"], feature_cost["cloud_only"]),
        "cost": {
            "full": {key: _mean([o.cost for o in leg.outcomes]) for key, leg in legs.items()},
            "paper": {key: _mean(_paper_costs(leg, manifest)) for key, leg in legs.items()},
            "all_features": manifest.feature_costs().total,
        },
        "bytes": {
            key: sum(o.up + o.down for o in legs[key].outcomes) for key in ("system", "cloud_only")
        },
        "traffic": {"formula": BYTES_FORMULA}
        | {key: _traffic(leg.outcomes) for key, leg in legs.items()},
        "latency_ms": {key: _latency(leg.outcomes) for key, leg in legs.items()},
        "latency_histogram": _histogram({key: leg.outcomes for key, leg in legs.items()}),
        "answers": {**routes, "late": system.late, "lost": system.lost},
        "passes": {
            key: {
                **leg.routes,
                "late": leg.late,
                "lost": leg.lost,
                "retries": leg.retries,
                "seconds": round(leg.seconds, 3),
            }
            for key, leg in legs.items()
        },
        "stages": _stages(system, manifest),
    }


def compare(legs: Mapping[str, Leg], expected: Expected) -> dict[str, Any]:
    """Hold the measured answers against the estimator's own, row by row.

    Fallbacks are left out: the estimator knows no broken link.

    Returns
    -------
    dict
        The estimator's ``accuracy``, ``offload_rate`` and mean ``cost`` on all rows, and the
        number of rows in which a device's ``labels``, ``routes`` or ``costs`` differ, of how
        many ``compared``.
    """
    measured = [o for o in legs["system"].outcomes if o.route != "fallback"]
    cloud = [o for o in legs["cloud_only"].outcomes if o.route == "cloud"]
    right = expected.labels == expected.truth
    return {
        "accuracy": {
            "system": _ratio(int(right.sum()), len(right)),
            "cloud_only": _ratio(
                int((expected.cloud_labels == expected.truth).sum()), len(expected.truth)
            ),
        },
        "offload_rate": _ratio(int(expected.offload.sum()), len(expected.offload)),
        "cost": _mean(expected.cost),
        "compared": len(measured),
        "differing": {
            "labels": sum(o.label != expected.labels[o.row] for o in measured),
            "routes": sum((o.route == "cloud") != expected.offload[o.row] for o in measured),
            "costs": sum(o.cost != expected.cost[o.row] for o in measured),
            "cloud_labels": sum(o.label != expected.cloud_labels[o.row] for o in cloud),
        },
    }


def to_json(report: Mapping[str, Any]) -> str:
    """Write a report as JSON text; NaN becomes null."""
    return json.dumps(plain(report), indent=2, allow_nan=False) + "\n"


# -- parts ---------------------------------------------------------------------------------


def _mean(values: ArrayLike) -> float | None:
    """Mean by an exact sum, so that it does not depend on the order of the answers."""
    items = np.asarray(values, np.float64).tolist()
    return math.fsum(items) / len(items) if items else None


def _ratio(part: int, whole: int) -> float | None:
    return int(part) / whole if whole else None


def _saving(spent: float | None, reference: float | None) -> float | None:
    return 1 - spent / reference if spent is not None and reference else None


def _paper_costs(leg: Leg, manifest: Manifest) -> list[float]:
    """The papers' accounting: an offloaded instance pays the cloud model's features only."""
    sent = manifest.feature_costs().price(manifest.cloud_inputs())
    return [sent if o.route == "cloud" else o.feature_cost for o in leg.outcomes]


def _traffic(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    total = {
        name: sum(getattr(o, name) for o in outcomes)
        for name in ("up", "down", "payload_up", "payload_down")
    }
    return total | {"per_instance": _ratio(total["up"] + total["down"], len(outcomes))}


def _latency(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    times = [o.latency_ms for o in outcomes]
    if not times:
        return dict.fromkeys(("p50", "p95", "p99", "max"))
    points = np.percentile(times, [50, 95, 99, 100])
    return {k: float(v) for k, v in zip(("p50", "p95", "p99", "max"), points, strict=True)}


def _histogram(passes: Mapping[str, Sequence[Outcome]]) -> dict[str, Any]:
    """Counts over bins that are even on a logarithmic scale, the same for all passes."""
    times = {key: np.array([o.latency_ms for o in some]) for key, some in passes.items()}
    every = np.concatenate([*times.values(), [1.0] * (not any(map(len, times.values())))])
    lo = math.floor(math.log10(max(every.min(), 1e-3)) * _BINS_PER_DECADE)
    hi = math.floor(math.log10(max(every.max(), 1e-3)) * _BINS_PER_DECADE) + 1
    edges = 10.0 ** (np.arange(lo, hi + 1) / _BINS_PER_DECADE)
    counts = {
        key: np.histogram(np.clip(some, edges[0], edges[-1]), edges)[0].tolist()
        for key, some in times.items()
    }
    return {"edges_ms": edges.tolist(), "counts": counts}


def _stages(system: Leg, manifest: Manifest) -> list[dict[str, Any]]:
    """What each stage buys and how many instances it answers; the cloud comes last."""
    costs = manifest.feature_costs()
    answered = len(system.outcomes)
    bought = np.zeros(costs.n_features, bool)
    rows: list[dict[str, Any]] = []
    steps = [(f"stage {s}", manifest.stage_inputs(s)) for s in range(len(manifest.stages))]
    if manifest.cloud is not None:
        steps.append(("cloud", manifest.cloud_inputs()))
    for s, (name, inputs) in enumerate(steps):
        wanted = costs.mask(inputs)
        new = np.flatnonzero(wanted & ~bought)
        price = costs.price(new, bought)
        bought = bought | wanted
        here = sum(
            o.route == "cloud" if name == "cloud" else o.route == "edge" and o.stage == s
            for o in system.outcomes
        )
        rows.append(
            {
                "name": name,
                "features": int(wanted.sum()),
                "buys": [manifest.feature_names[k] for k in new],
                "price": price,
                "answers": here,
                "share": _ratio(here, answered),
            }
        )
    return rows
