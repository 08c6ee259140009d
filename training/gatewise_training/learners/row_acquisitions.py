"""Features that rows acquire: of a system's stages, and of its high-cost model row by row.

A high-cost model reads a fixed set of features, but a forest tests only the features on a row's
paths, and a fitted cascade as high-cost model (Adapt, NIPS 2017, remark 2) answers many rows at its
first stages. The paper's figure 4 charges a forest by paths.
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
    """Features that the high-cost model acquires for each row, shape (n, n_features).

    All that it reads, unless it is a forest or a fitted cascade.
    """
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
    """Features that rows of a fitted system acquire until they are answered, shape (n, n_features).

    With `paths` an offloaded row acquires only the features that the high-cost model tests on it.
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
