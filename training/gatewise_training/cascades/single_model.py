"""Base of the budgeted classifiers that have no high-cost model in the cloud."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gatewise.costs import CostsLike
from gatewise_training.cascades.base import BudgetedClassifier


@dataclass(eq=False, repr=False, kw_only=True)
class SingleModel(BudgetedClassifier):
    """Base of the classifiers without a cloud, with their settings.

    Parameters
    ----------
    feature_costs, budget, min_recall, min_precision, class_weight, guarantee
        As for :class:`.CascadeClassifier`.
    max_loss : float, default 0.01
        Largest loss of accuracy against the last candidate, the unpenalised model. Without a
        budget, the cheapest operating point within this loss is active.
    allow_missing : bool, default False
        Whether features may be NaN.
    random_state : int, RandomState or None
        Source of the random choices; an int makes a fit repeatable.
    """

    feature_costs: CostsLike | None = field(default=None, kw_only=False)
    budget: float | None = None
    max_loss: float | None = 0.01
    min_recall: Mapping[Any, float] | None = None
    min_precision: Mapping[Any, float] | None = None
    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None
    guarantee: float | None = None
    allow_missing: bool = False
    random_state: Any = None
