"""Fitting problems of cascades, made from rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from gatewise.costs import FeatureCosts
from gatewise_training.cascades.fit_problem import FitProblem
from gatewise_training.data.validation_split import ValidationSplit


def make_problem(x: Any, y: Any, costs: FeatureCosts | None = None) -> FitProblem:
    """Make the fitting problem of rows with class indices and weights of 1.

    Each feature costs 1 by default.
    """
    x = np.asarray(x, np.float32)
    y = np.asarray(y, np.int64)
    split = ValidationSplit.choose(x, y, np.ones(len(y)), validation=None, seed=0)
    costs = FeatureCosts.uniform(x.shape[1]) if costs is None else costs
    return FitProblem(
        split=split,
        cloud_split=split,
        n_classes=len(np.unique(y)),
        costs=costs,
        seed=0,
        report_progress=lambda *_: None,
    )
