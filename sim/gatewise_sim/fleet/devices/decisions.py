"""A policy of one's own in virtual time: what each stage says of each row, computed once.

A policy may stop or offload after any stage, so a table of n rows becomes one of n rows for each
stage on the device, stage after stage: row ``stage * n + i`` is the i-th, ended at that stage. An
instance comes as one of the first n and moves on by n with each stage that it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.decision import as_float32
from gatewise.errors import InputError
from gatewise_edge.device.answer import DecisionPoint
from gatewise_edge.device.installed import Installed
from gatewise_edge.device.pacer import Pace
from gatewise_edge.errors import SensorError
from gatewise_edge.link.offload import Offloads
from gatewise_edge.sensors.feature_reader import Reading
from gatewise_export.bundle.bundle import Bundle
from gatewise_sim.fleet.routes import NO_LABEL, Routes, StageScores, acquired_columns


def routes_by_stage(bundle: Bundle, X: ArrayLike, routes: Routes) -> Routes:
    """Routes of the same rows, shape (n, n_features), ended at each of the device's stages.

    InputError if a value keeps a row from a stage or from the cloud: policies are asked only where
    there is a choice.
    """
    installed = Installed.load(bundle, sensors=None, most_bytes=None, check=False, functions=None)
    plan, runner = installed.plan, installed.runner
    n, stages = len(routes), plan.n_here
    if plan.has_cloud and (routes.cloud_label == NO_LABEL).any():
        row = int(np.flatnonzero(routes.cloud_label == NO_LABEL)[0])
        raise InputError(_REFUSED.format(row, "the cloud takes no such value"))
    scores = np.zeros((stages, n))
    labels = np.zeros((stages, n), np.int64)
    probabilities = np.zeros((stages, n, len(plan.classes)))
    acquired = np.zeros((stages, n, len(plan.names)), np.bool_)
    for i, row in enumerate(np.ascontiguousarray(X, np.float32)):
        reading = Reading(installed.source_of(row), installed.meter, lambda: np.inf)
        for s in range(stages):
            try:
                found = runner.visit(s, reading, allow_missing=plan.stages_take_nan)
            except SensorError as error:
                raise InputError(_REFUSED.format(i, error)) from error
            scores[s, i], labels[s, i] = found.score, found.label
            probabilities[s, i], acquired[s, i] = found.probabilities, reading.acquired
    local = acquired.reshape(stages * n, -1)
    carried = np.zeros(local.shape[1], np.bool_)
    carried[plan.request_inputs] = plan.has_cloud
    exits, flat = np.repeat(np.arange(stages), n), scores.ravel().astype(np.float32)
    return replace(
        routes,
        truth=np.tile(routes.truth, stages),
        exit=exits,
        offload=np.zeros(stages * n, np.bool_),
        local_route=np.zeros(stages * n, np.int64),
        local_label=labels.ravel(),
        cloud_label=np.tile(routes.cloud_label, stages),
        cloud_stage=np.tile(routes.cloud_stage, stages),
        score=np.where(exits == stages - 1, flat, np.float32(np.nan)),
        confidence=probabilities.max(axis=2).ravel().astype(np.float32),
        chance=0.0,
        gateway=None if routes.gateway is None else routes.gateway.repeated(stages),
        by_stage=StageScores(
            n, scores.ravel(), probabilities.reshape(stages * n, -1), runner.thresholds[:stages]
        ),
        **acquired_columns(local, carried, installed.meter.costs),
    )


_REFUSED = "row {}: {}; a policy of one's own is simulated on rows that have all their values"


@dataclass(frozen=True, slots=True, eq=False)
class DecisionPoints:
    """A policy's points in virtual time; the lists are by row, as :class:`.StageScores`."""

    rows: int
    scores: Sequence[float]
    probabilities: NDArray[np.float64]
    costs: Sequence[float]
    thresholds: Sequence[float | None]

    @classmethod
    def from_routes(cls, routes: Routes, stages: StageScores) -> DecisionPoints:
        """Take them from routes by stage."""
        scores, costs = stages.scores.tolist(), routes.local_cost.tolist()
        return cls(stages.rows, scores, stages.probabilities, costs, stages.thresholds)

    def point(
        self, row: int, offloads: Offloads, pace: Pace | None, *, left: float, connected: bool
    ) -> DecisionPoint:
        """What is known when a row's stage has answered, `left` seconds before the deadline."""
        stage = row // self.rows
        last = stage == len(self.thresholds) - 1
        threshold = self.thresholds[stage]
        if last and pace is not None and pace.moved:
            threshold = as_float32(pace.threshold())
        trip = offloads.round_trip.smoothed
        return DecisionPoint(
            stage=stage,
            last=last,
            score=self.scores[row],
            threshold=threshold,
            probabilities=self.probabilities[row],
            cost=self.costs[row],
            left_ms=1000.0 * left,
            connected=connected,
            round_trip_ms=0.0 if trip is None else 1000.0 * trip,
            outstanding=len(offloads),
            pacer_debt=None if pace is None else pace.gauges["pacer_debt"],
        )
