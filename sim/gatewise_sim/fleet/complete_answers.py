"""What follows from how a request ended: whose answer it is, and what it cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gatewise_sim.fleet.answers import REASONS, Answers
from gatewise_sim.fleet.routes import ROUTES

if TYPE_CHECKING:
    from gatewise_sim.fleet.state import World

__all__ = ["BOUGHT", "answer_here", "fill_in"]

_CLOUD: Final = ROUTES.index("cloud")
_HERE: Final = np.isin(REASONS, ("stopped", "edge-only", "value"))
_ASKED: Final = np.array([r == "timeout" or r.startswith("cloud:") for r in REASONS])
BOUGHT: Final = _ASKED | np.isin(REASONS, ("offloaded", "cloud-only", "deadline", "unsent"))
"""By reason: whether the features of a request were bought."""


def answer_here(world: World, answers: Answers, which: Any) -> None:
    """Fill in answers that the devices' own stages give; `which`: indices."""
    routes, rows = world.routes, answers.row[which]
    answers.route[which] = route = routes.local_route[rows]
    answers.stage[which] = routes.exit[rows]
    answers.label[which] = routes.local_label[rows]
    answers.cost[which] = answers.feature_cost[which] = routes.local_cost[rows]
    answers.latency_ms[which] = answers.device_ms[which] = 1000.0 * world.edge_seconds[rows]
    here = np.where(routes.offload[rows], _HERE_REASONS["edge-only"], _HERE_REASONS["stopped"])
    answers.reason[which] = np.where(route > 0, _HERE_REASONS["value"], here)


def fill_in(world: World, answers: Answers) -> None:
    """Enter stage, label, costs and time of the stages where a request was to be made.

    All of it follows from row, route and reason, as in
    :meth:`.Course.proceed`; so it is done for many answers at once.
    """
    which = np.flatnonzero((answers.route >= 0) & ~_HERE[answers.reason])
    routes, row = world.routes, answers.row[which]
    cloud, reason = answers.route[which] == _CLOUD, answers.reason[which]
    features = np.where(BOUGHT[reason], routes.asked_cost[row], routes.local_cost[row])
    ran = np.ones(len(which), bool)
    if world.cloud_only:
        features = np.where(cloud, routes.alone_cost, features)
        ran = ~cloud
    requests = np.where(_ASKED[reason], routes.plan.request_price, 0.0)
    answers.stage[which] = np.where(cloud, routes.cloud_stage[row], routes.exit[row])
    answers.label[which] = np.where(cloud, routes.cloud_label[row], routes.local_label[row])
    answers.feature_cost[which] = features
    answers.cost[which] = features + np.where(cloud, world.cloud_price[row], requests)
    answers.device_ms[which] = 1000.0 * np.where(ran, world.edge_seconds[row], 0.0)


_HERE_REASONS: Final = {r: REASONS.index(r) for r in ("edge-only", "stopped", "value")}
