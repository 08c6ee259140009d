"""Accuracy, feature time and device time of a cascade on a split of a signal set."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.signals.splits import MAX_LOSS, Split, make_booster
from gatewise_training.cascades.staged import StagedCascade

#: Number of windows that a device's time is measured on.
N_TIMED_WINDOWS = 150


def fit_cascade(split: Split) -> dict[str, Any]:
    """Fit a cascade whose high-cost model is a boosted model on all features; compare both."""
    y, x, test, costs = split.signal_set.y, split.x, split.test, split.graph.costs()
    system = StagedCascade(
        make_booster(split, None),
        feature_costs=costs,
        families=split.signal_set.families,
        max_loss=MAX_LOSS,
        class_weight=split.class_weight,
        random_state=split.seed,
    ).fit(x[split.train], y[split.train], groups=split.groups)
    is_correct = split.is_correct(system, x)
    is_cloud_correct = system.classes_[system.high_cost_model_.labels(x[test])] == y[test]
    loss, error = split.mean_and_error(is_cloud_correct.astype(float) - is_correct)
    point, frontier = system.operating_point_, system.frontier_
    reference_accuracy = frontier.reference_weighted_accuracy or frontier.reference_accuracy
    return {
        "all features": split.figures(is_cloud_correct, costs.total),
        "gatewise": split.figures(is_correct, float(system.cost(x[test]).mean()))
        | {
            "offloaded": float(system.offload(x[test]).mean()),
            "promised_loss": reference_accuracy - (point.weighted_accuracy or point.accuracy),
            "loss": loss,
            "loss_error": error,
            "device_over_charged": _measure_device_ratio(split, system),
        },
    }


def _measure_device_ratio(split: Split, system: Any) -> float:
    """Compute the median over windows of the feature time on a device by the charged price."""
    graph = split.graph
    rows = split.test[:: max(1, len(split.test) // N_TIMED_WINDOWS)]
    windows, x = split.signal_set.windows[rows], split.x[rows]
    ratios = []
    for window, exit_stage, charged_price in zip(
        windows, system.exit_stage(x), system.cost(x), strict=True
    ):
        features_of_stages = [stage.features for stage in system.stages_[: exit_stage + 1]]
        if exit_stage == len(system.stages_):
            features_of_stages.append(system.high_cost_model_.features)
        blocks = [
            dict.fromkeys(graph.block_of_feature[features].tolist())
            for features in features_of_stages
        ]
        durations = []
        for _ in range(5):
            start_time = time.perf_counter()
            lazy_values = graph.lazy_values(window)
            for stage_blocks in blocks:
                for block_index in stage_blocks:
                    lazy_values.block_features(block_index)
            durations.append(time.perf_counter() - start_time)
        ratios.append(1e6 * min(durations) / charged_price)
    return float(np.median(ratios))
