"""Features that each row acquires in a system and its high-cost model.

A forest as high-cost model needs only the features on a row's paths, as in figure 4 of Adapt (NIPS
2017), and a cascade as high-cost model (remark 2) only those of the stages that the row visits.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

from gatewise.models.trees import TreeEnsemble
from gatewise_training.learners.high_cost_model import HighCostModel

Accounting = Literal["union", "paper", "paths", "paper-paths"]


def acquired_by_high_cost(f0: HighCostModel, x: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Mask of the features that the high-cost model needs for each row, shape (n, n_features)."""
    columns = np.ascontiguousarray(x[:, f0.features])
    acquired = np.zeros(x.shape, np.bool_)
    acquired[:, f0.features] = True
    trees = f0.trees
    if isinstance(f0.estimator, RandomForestClassifier | ExtraTreesClassifier):
        trees = TreeEnsemble.from_forest(f0.estimator)
    if trees is not None:
        acquired[:, f0.features] = trees.visited(columns)
    system = f0.estimator if f0.opaque is None else f0.opaque.model
    if hasattr(system, "stages_"):
        acquired[:, f0.features] = acquired_by_system(system, columns, paths=True)
    return acquired


def acquired_by_system(system: Any, x: NDArray[np.float32], *, paths: bool) -> NDArray[np.bool_]:
    """Mask of the features that a fitted system acquires for each row, shape (n, n_features).

    With `paths`, an offload acquires only the features that the high-cost model needs for the row.
    """
    exits = system._exits(x)
    acquired = np.zeros(x.shape, np.bool_)
    for number, stage in enumerate(system.stages_):
        visits = exits >= number
        acquired[visits] |= np.broadcast_to(stage.acquired(x), acquired.shape)[visits]
    f0 = system.high_cost_model_
    is_offloaded = exits == len(system.stages_)
    if f0 is not None and is_offloaded.any():
        read = system.feature_costs_.mask(f0.features)
        offload = acquired_by_high_cost(f0, x[is_offloaded]) if paths else read
        acquired[is_offloaded] |= offload
    return acquired
