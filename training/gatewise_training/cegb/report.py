"""What each instance pays: the features it buys, and the splits it passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble

__all__ = ["CostReport", "report_costs"]


@dataclass(frozen=True, eq=False)
class CostReport:
    """Costs instance by instance, in the unit of the feature costs.

    Attributes
    ----------
    bought : ndarray of bool, shape (n, n_features)
        Features that each instance buys.
    features : ndarray of float64, shape (n,)
        Their price: own prices once, and the shared price of each group touched.
    splits : ndarray of int64, shape (n,)
        Splits that the instance passes, over all trees.
    evaluation : ndarray of float64, shape (n,)
        Price of those (CEGB, equation 6): `penalty_split` each.
    """

    bought: NDArray[np.bool_]
    features: NDArray[np.float64]
    splits: NDArray[np.int64]
    evaluation: NDArray[np.float64]

    @property
    def total(self) -> NDArray[np.float64]:
        """Features and evaluation together, shape (n,)."""
        return self.features + self.evaluation


def report_costs(
    stages: Sequence[Stage],
    x: NDArray[np.float32],
    costs: FeatureCosts,
    penalty_split: float,
) -> CostReport:
    """Count what instances pay that go through all `stages`.

    Parameters
    ----------
    stages : sequence of Stage
        Of trees.
    x : ndarray of float32, shape (n, n_features)
    costs : FeatureCosts
    penalty_split : float
        Price of a split for an instance that passes it.
    """
    bought, splits = np.zeros(x.shape, np.bool_), np.zeros(len(x), np.int64)
    for stage in stages:
        bought |= stage.bought(x)
        if isinstance(stage.model, TreeEnsemble):
            splits += stage.model.splits_passed(x[:, stage.features])
    features = costs.per_instance(bought)
    evaluation = np.asarray(penalty_split * splits, np.float64)
    return CostReport(bought, features, splits, evaluation)
