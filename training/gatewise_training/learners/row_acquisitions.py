"""Features that each row acquires in a system and in its high-cost model.

If the high-cost model is a forest, a row needs only the features on its paths, as in figure 4 of
Adapt (NIPS 2017). If it is a cascade (remark 2), a row needs only the features of the stages that
it reaches.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

from gatewise.models.trees import TreeEnsemble
from gatewise_training.learners.high_cost_model import HighCostModel

Accounting = Literal["union", "paper", "paths", "paper-paths"]


def acquired_by_high_cost(model: HighCostModel, x: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Mark the features that the high-cost model needs for each row, shape (n, n_features)."""
    x_used = np.ascontiguousarray(x[:, model.features])
    is_acquired = np.zeros(x.shape, np.bool_)
    is_acquired[:, model.features] = True
    trees = model.trees
    if isinstance(model.estimator, RandomForestClassifier | ExtraTreesClassifier):
        trees = TreeEnsemble.from_forest(model.estimator)
    if trees is not None:
        is_acquired[:, model.features] = trees.visited_features(x_used)
    system = model.estimator if model.python_model is None else model.python_model.model
    if hasattr(system, "stages_"):
        is_acquired[:, model.features] = acquired_by_system(system, x_used, paths=True)
    return is_acquired


def acquired_by_system(system: Any, x: NDArray[np.float32], *, paths: bool) -> NDArray[np.bool_]:
    """Mark the features that a fitted system acquires for each row, shape (n, n_features).

    With `paths`, an offloaded row acquires only the features that the high-cost model needs for it.
    Otherwise it acquires all features of the high-cost model.
    """
    exit_stages = system._find_exits(x)
    is_acquired = np.zeros(x.shape, np.bool_)
    for stage_number, stage in enumerate(system.stages_):
        reaches_stage = exit_stages >= stage_number
        stage_features = np.broadcast_to(stage.acquired(x), is_acquired.shape)
        is_acquired[reaches_stage] |= stage_features[reaches_stage]
    high_cost_model = system.high_cost_model_
    is_offloaded = exit_stages == len(system.stages_)
    if high_cost_model is not None and is_offloaded.any():
        if paths:
            is_acquired[is_offloaded] |= acquired_by_high_cost(high_cost_model, x[is_offloaded])
        else:
            is_acquired[is_offloaded] |= system.feature_costs_.mask(high_cost_model.features)
    return is_acquired
