"""What a method gets to fit its chains of stages, and what it gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gatewise.acquisition import Bought
from gatewise.console import Progress
from gatewise.costs import FeatureCosts
from gatewise.models.stage import Stage
from gatewise_training.data.validation_split import Resampling
from gatewise_training.learners.high_cost_model import HighCostModel

__all__ = ["Chain", "Problem"]


@dataclass(frozen=True, eq=False)
class Problem:
    """What a method gets to fit its chains.

    Attributes
    ----------
    plan : Resampling
        Rows, labels, weights, and which rows judge.
    n_classes : int
    costs : FeatureCosts
    seed : int
    n_jobs : int or None
    report : Progress
        To be told (done, total, what).
    high_cost_model : HighCostModel or None
    high_cost_labels : ndarray of int64, shape (n_held,) or None
        Its honest answers on the judging rows.
    """

    plan: Resampling
    n_classes: int
    costs: FeatureCosts
    seed: int
    n_jobs: int | None
    report: Progress
    high_cost_model: HighCostModel | None = None
    high_cost_labels: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class Chain:
    """Fitted stages, and their honest outputs on the judging rows.

    Attributes
    ----------
    stages : tuple of Stage
    held_outputs : tuple of ndarray of float32, shape (n_held, n_outputs of the stage)
    held_bought : tuple of ndarray of bool, one a stage, optional
        What the models that gave these outputs bought; what the stages themselves buy on the
        judging rows by default, which is the same where they buy alike for every row.
    """

    stages: tuple[Stage, ...]
    held_outputs: tuple[NDArray[np.float32], ...]
    held_bought: tuple[Bought, ...] | None = None

    def bought(self, x_held: NDArray[np.float32]) -> Sequence[Bought]:
        """What each stage buys on the judging rows."""
        return self.held_bought or [stage.bought(x_held) for stage in self.stages]
