"""What follows from how an instance ended: stage, label, costs, times and energy of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_sim.fleet.answers import CLOUD, LOCAL, REASON, Answers
from gatewise_sim.fleet.energy import Radio, radio_joules
from gatewise_sim.fleet.routes import Routes


class AnswerRules:
    """Stage, label, costs and device time of an answer, from its row, route and reason.

    `edge_ms` is the time until a stage has answered, by stage or one number for all; `edge_seconds`
    how long each row occupies its device. `cloud_only`: stages run only where the cloud did not
    answer.
    """

    def __init__(
        self, routes: Routes, edge_ms: float | Sequence[float], *, cloud_only: bool
    ) -> None:
        n_here = routes.plan.n_stages
        by_stage = np.broadcast_to(np.asarray(edge_ms, np.float64), (n_here,)) / 1000.0
        if not (np.isfinite(by_stage) & (by_stage >= 0)).all():
            raise InputError(f"edge_ms {edge_ms}: give milliseconds")
        self.edge_seconds: NDArray[np.float64] = by_stage[np.maximum(routes.exit, 0)]
        self.routes = routes
        self.cloud_only = cloud_only

    def seconds_before_request(self, row: NDArray[Any]) -> NDArray[np.float64]:
        """Seconds from the arrival of such rows until a request is made, same shape."""
        return np.zeros(len(row)) if self.cloud_only else self.edge_seconds[row]

    def local_answers(self) -> Answers:
        """Answer to each row by its device alone, shape (n_rows,)."""
        n = len(self.routes)
        answers = Answers.empty(np.zeros(n), np.zeros(n), np.arange(n))
        self.answer_locally(answers, np.arange(n))
        return answers

    def answer_locally(self, answers: Answers, which: Any) -> None:
        """Fill in answers that the devices' own stages give; `which`: indices."""
        routes, rows = self.routes, answers.row[which]
        answers.route[which] = route = routes.local_route[rows]
        answers.stage[which] = routes.exit[rows]
        answers.label[which] = routes.local_label[rows]
        answers.cost[which] = answers.feature_cost[which] = routes.local_cost[rows]
        answers.latency_ms[which] = answers.device_ms[which] = 1000.0 * self.edge_seconds[rows]
        local = np.where(routes.offload[rows], REASON["edge-only"], REASON["stopped"])
        answers.reason[which] = np.where(route > 0, REASON["value"], local)

    def complete(self, answers: Answers) -> None:
        """Fill in the rest of the answers to instances that were to be offloaded.

        All of it follows from row, route and reason, as on a device; so it is done for many
        answers at once.
        """
        which = np.flatnonzero((answers.route >= 0) & ~LOCAL[answers.reason])
        routes, row = self.routes, answers.row[which]
        cloud = answers.route[which] == CLOUD
        features = np.where(
            answers.acquired[which], routes.request_cost[row], routes.local_cost[row]
        )
        ran = np.ones(len(which), bool)
        if self.cloud_only:
            features = np.where(cloud, routes.alone_cost, features)
            ran = ~cloud
        requests = np.where(answers.requested[which], routes.plan.request_price, 0.0)
        price = routes.plan.offload_price
        answers.stage[which] = np.where(cloud, routes.plan.n_stages, routes.exit[row])
        answers.label[which] = np.where(cloud, routes.cloud_label[row], routes.local_label[row])
        answers.feature_cost[which] = features
        answers.cost[which] = features + np.where(cloud, price, requests)
        answers.device_ms[which] = 1000.0 * np.where(ran, self.edge_seconds[row], 0.0)


def exchange_joules(
    answers: Answers, before: NDArray[np.float64], radio: Radio
) -> NDArray[np.float64]:
    """Energy (J) that each instance's messages cost its device's radio, shape (n,).

    The answers are at least all that were sent, in any order; `before` are the seconds from an
    instance's arrival until its request enters the link. An exchange ends with its answer, and that
    of an audit after as long as half of the others take.
    """
    sent = np.flatnonzero(answers.payload_up > 0)
    begin = answers.time[sent] + before[sent]
    order = np.lexsort((begin, answers.device[sent]))
    sent, begin = sent[order], begin[order]
    end = np.maximum(begin, answers.time[sent] + answers.latency_ms[sent] / 1000.0)
    by_cloud = answers.route[sent] == CLOUD
    if by_cloud.any():
        usual = float(np.median((end - begin)[by_cloud]))
        end = np.where(answers.audited[sent], begin + usual, end)
    device, up, down = (
        getattr(answers, name)[sent].astype(np.int64) for name in ("device", "up", "down")
    )
    joules = np.zeros(len(answers))
    joules[sent] = radio_joules(radio, device, begin, end, up, down)
    return joules


def rows_by_stage(answers: Answers, routes: Routes) -> Answers:
    """Answers of a live run, with rows as of :mod:`gatewise_sim.fleet.devices.decisions`.

    A cloud's answer does not say after which stage it was asked; the features paid for do, and of
    two stages that paid alike the later one is taken.
    """
    assert routes.by_stage is not None
    n = routes.by_stage.rows
    stage = np.minimum(answers.stage, routes.plan.n_stages - 1).astype(np.int64).clip(0)
    by_cloud = answers.route == CLOUD
    for s in range(routes.plan.n_stages):
        paid = routes.request_cost[s * n + answers.row] == answers.feature_cost
        stage[by_cloud & paid] = s
    return replace(answers, row=(stage * n + answers.row).astype(np.int32))
