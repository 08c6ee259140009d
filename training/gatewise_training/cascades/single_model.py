"""Base of the models without a cloud: one budgeted model of one or several stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gatewise.costs import CostsLike
from gatewise_training.cascades.base import BudgetedClassifier


@dataclass(eq=False, repr=False, kw_only=True)
class SingleModel(BudgetedClassifier):
    """Settings of models without a cloud.

    Parameters
    ----------
    feature_costs : FeatureCosts, dict or Series by name, or list, optional
        Prices; 1 a feature by default.
    budget : float, optional
        Mean cost per instance that may be spent.
    max_loss : float, default 0.01
        Without a budget: the cheapest operating point within this accuracy loss of the last
        candidate, the unpenalised model.
    min_recall, min_precision : mapping of class label to float, optional
        In addition: least recall and precision of classes, ``{"fault": 0.9}``.
    class_weight : mapping of class label to float, or "balanced", optional
        Weight of a row of each class, as for :class:`StagedCascade`.
    guarantee : float, optional
        Confidence with which the bounds hold on new instances, as for :class:`StagedCascade`.
    allow_missing : bool, default False
        Whether NaN is a value.
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
