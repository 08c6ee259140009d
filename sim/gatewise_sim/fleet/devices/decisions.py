"""A policy of one's own in virtual time: what each stage says of each row, computed once.

A policy may stop or offload after any stage, so a table of n rows becomes one of n rows for each
stage on the device, stage after stage: row ``stage * n + i`` is the i-th, ended at that stage. An
instance comes as one of the first n and moves on by n with each stage that it runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from gatewise.errors import InputError
from gatewise_edge.device.installed import InstalledBundle
from gatewise_edge.errors import SensorError
from gatewise_edge.sensors.feature_reader import Reading
from gatewise_export.bundle.bundle import Bundle
from gatewise_sim.fleet.routes import NO_LABEL, Routes, StageScores, acquired_columns

_REFUSED: Final = (
    "row {}: {}; a policy of one's own is simulated on rows that have all their values"
)


def routes_by_stage(bundle: Bundle, X: ArrayLike, routes: Routes) -> Routes:
    """Routes of the same rows, shape (n, n_features), ended at each of the device's stages.

    InputError if a value keeps a row from a stage or from the cloud: policies are asked only where
    there is a choice.
    """
    installed = plan = InstalledBundle.load(bundle, check=False, functions=None)
    n, stages = len(routes), plan.n_stages
    if plan.has_cloud and (routes.cloud_label == NO_LABEL).any():
        row = int(np.flatnonzero(routes.cloud_label == NO_LABEL)[0])
        raise InputError(_REFUSED.format(row, "the cloud takes no such value"))
    scores = np.zeros((stages, n))
    labels = np.zeros((stages, n), np.int64)
    probabilities = np.zeros((stages, n, len(plan.classes)))
    acquired = np.zeros((stages, n, len(plan.names)), np.bool_)
    for i, row in enumerate(np.ascontiguousarray(X, np.float32)):
        reading = Reading(installed.source_of(row), installed.meter, lambda: np.inf)
        for s, stage in enumerate(plan.stages):
            try:
                found = stage.visit(reading, allow_missing=plan.stages_take_nan)
            except SensorError as error:
                raise InputError(_REFUSED.format(i, error)) from error
            scores[s, i], labels[s, i] = found.score, found.label
            probabilities[s, i], acquired[s, i] = found.probabilities, reading.acquired
    local = acquired.reshape(stages * n, -1)
    carried = np.zeros(local.shape[1], np.bool_)
    carried[plan.request_inputs] = plan.has_cloud
    columns = acquired_columns(local, carried, installed.meter.costs)
    exits, flat = np.repeat(np.arange(stages), n), scores.ravel().astype(np.float32)
    return replace(
        routes,
        truth=np.tile(routes.truth, stages),
        exit=exits,
        offload=np.zeros(stages * n, np.bool_),
        local_route=np.zeros(stages * n, np.int64),
        local_label=labels.ravel(),
        cloud_label=np.tile(routes.cloud_label, stages),
        score=np.where(exits == stages - 1, flat, np.float32(np.nan)),
        confidence=probabilities.max(axis=2).ravel().astype(np.float32),
        chance=0.0,
        by_stage=StageScores(
            n,
            scores.ravel().tolist(),
            probabilities.reshape(stages * n, -1),
            columns["local_cost"].tolist(),
            tuple(stage.threshold for stage in plan.stages),
        ),
        **columns,
    )
