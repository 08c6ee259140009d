"""Baselines of a simulation: other policies for what is offloaded, on the same instances.

All of them use the same bundle; its stages decide what the device itself answers and what that
costs, not what is offloaded.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise_sim.fleet.estimate.plan import SamplingPlan
from gatewise_sim.fleet.estimate.sampling import choose_plan, exact_parts
from gatewise_sim.fleet.routes import NO_LABEL, Routes
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.workload.kinds import Diurnal, Workload

_STEPS: Final = 1000  # in which a mix is averaged


class Baseline(NamedTuple):
    """One policy beside the system's."""

    key: str
    routes: Routes
    settings: FleetSettings


def make_baselines(
    routes: Routes,
    settings: FleetSettings,
    *,
    rate: float | None = None,
    weights: NDArray[np.float64] | None = None,
    labelled: bool = True,
) -> list[Baseline]:
    """Make the baselines of a run.

    Shapes: `weights` (n,).
    """
    plain = replace(settings, audit=None, policy="system")
    found = [Baseline("edge_only", routes, replace(plain, policy="edge-only"))]
    if not routes.plan.has_cloud:
        return found
    weight = np.ones(len(routes)) if weights is None else weights
    if rate is None:
        rate = float(weight[routes.offload].sum() / weight.sum())
    found.append(Baseline("cloud_only", routes, replace(plain, policy="cloud-only")))
    answerable = routes.cloud_label != NO_LABEL
    # Where the device has nothing to say, it is least sure.
    sure = np.where(np.isnan(routes.confidence), -1.0, routes.confidence)
    order = np.argsort(sure, kind="stable")
    chosen = routes.choose(fill(order[answerable[order]], weight, rate))
    found.append(Baseline("confidence", chosen, plain))
    # Drawn among instances: a lucky draw among rows would last for the whole run.
    possible = float(weight[answerable].sum() / weight.sum())
    chance = min(1.0, rate / possible) if possible else 0.0
    found.append(Baseline("random", routes.by_chance(chance), plain))
    if labelled:
        found.append(Baseline("oracle", routes.choose(oracle(routes)), plain))
    if settings.policy != "system":
        found.append(Baseline("thresholds", routes, plain))
    return found


def fill(order: NDArray[np.intp], weight: NDArray[np.float64], rate: float) -> NDArray[np.bool_]:
    """Take rows in the `order` given until their share of all is nearest to `rate`.

    Shapes: returns (n,).

    >>> fill(np.array([2, 0, 1]), np.ones(4), 0.5).tolist()
    [True, False, True, False]
    """
    share = np.concatenate([[0.0], np.cumsum(weight[order])]) / weight.sum()
    count = int(np.argmin(np.abs(share - rate)))
    chosen = np.zeros(len(weight), np.bool_)
    chosen[order[:count]] = True
    return chosen


def oracle(routes: Routes) -> NDArray[np.bool_]:
    """Rows that the device gets wrong and the cloud right, shape (n,)."""
    cloud = routes.cloud_label == routes.truth
    device = routes.local_label == routes.truth
    return np.asarray(cloud & ~device & (routes.cloud_label != NO_LABEL), np.bool_)


def row_weights(
    routes: Routes, settings: FleetSettings, *, whole: bool
) -> NDArray[np.float64] | None:
    """Relative frequency of each row, shape (n,); None: all equal."""
    work, mix = settings.workload, settings.mix
    if whole:
        counts = np.zeros(len(routes), np.int64)
        for _, _, rows in settings.chunks(len(routes)):
            counts += np.bincount(rows, minlength=len(routes))
        return counts.astype(np.float64) if counts.any() else None
    if mix is None:
        return None
    times = np.arange(0.5, _STEPS, dtype=np.float64) * (settings.seconds / _STEPS)
    rate = work.rate_at(times) if isinstance(work, Diurnal) else np.ones(_STEPS)
    shares = (rate[:, None] * mix.shares(times)).sum(axis=0)
    counts = np.bincount(routes.truth, minlength=len(shares))
    return np.asarray((shares / np.maximum(counts, 1))[routes.truth], np.float64)


REQUESTS: Final = 1_000_000
"""Of a baseline, stepped at most, about."""
_LEAST_WORKERS: Final = 2


def sampled(routes: Routes, settings: FleetSettings, *, requests: int = REQUESTS) -> SamplingPlan:
    """Plan what to step of a baseline: fewer devices and workers if there are too many requests.

    All-cloud offloads ten times as often as a system that offloads a tenth, and around an outage
    every second is stepped. Queues carry their full load all the same; a pool of two deals less
    evenly than one of twenty, so waits come out a little too long.
    """
    chosen, work = choose_plan(routes, settings), settings.workload
    if chosen.whole or not isinstance(work, Workload) or settings.policy == "edge-only":
        return chosen
    share = 1.0 if settings.policy == "cloud-only" else routes.share
    pool, fleet = chosen.of_workers, chosen.of_devices
    each = chosen.stepped * work.mean_rate * fleet / pool * share  # requests of one worker
    least = max(_LEAST_WORKERS, math.floor(requests / max(each, 1e-12)), math.ceil(pool / fleet))
    workers = next((n for n in exact_parts(settings) if n >= least), pool)
    if workers >= chosen.workers:
        return chosen
    return replace(chosen, workers=workers, devices=fleet * workers // pool)
