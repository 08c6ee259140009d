"""Training rows of the Adapt fits, with the losses of the high-cost model on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise_training.cascades.fit_problem import FitProblem
from gatewise_training.data.validation_split import Rows
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.learners.stage_bounds import TreeShape

#: Smallest probability of f0 in a loss, because f0 may be certain and wrong.
LOG_FLOOR = 1e-12

#: Largest number of codes of a column, for trees on few rows, as :data:`.COARSE_BINS`.
MAX_CODES = 63


@dataclass(frozen=True, eq=False)
class Sample:
    """Training rows, their weights and the losses of f0."""

    x: NDArray[np.float32]  # (n, n_features)
    y: NDArray[np.int64]  # (n,)
    weight: NDArray[np.float64]  # (n,): of mean 1
    f0_loss: NDArray[np.float64]  # (n,): ``-log p(y | x; f0)`` in nats; 0 without a high-cost model
    n_classes: int
    costs: FeatureCosts
    tree_shape: TreeShape | None = None  # best shape of boosted trees on all rows, if known

    @classmethod
    def all_rows(cls, problem: FitProblem) -> Sample:
        """Make the sample of all rows of a problem."""
        split = problem.split
        f0_loss = np.zeros(len(split.x))
        if problem.high_cost is not None:
            proba = problem.high_cost_probabilities()
            f0_loss = -np.log(np.maximum(proba[np.arange(len(split.x)), split.y], LOG_FLOOR))
        return cls(
            x=split.x,
            y=split.y,
            weight=split.weight,
            f0_loss=f0_loss,
            n_classes=problem.n_classes,
            costs=problem.costs,
            tree_shape=problem.tree_shape,
        )

    @cached_property
    def codes(self) -> Codes:
        """Codes of the columns."""
        return Codes.of_table(self.x, max_codes=MAX_CODES)

    def take(self, rows: Rows) -> Sample:
        """Get the sample of some rows; their weights are scaled to a mean of 1."""
        return replace(
            self,
            x=self.x[rows],
            y=self.y[rows],
            weight=self.weight[rows] / self.weight[rows].mean(),
            f0_loss=self.f0_loss[rows],
        )
