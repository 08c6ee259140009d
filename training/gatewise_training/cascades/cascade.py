"""Cascades: stages on the device before a high-cost model in the cloud."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.costs import CloudPrices, CostsLike
from gatewise.errors import InputError
from gatewise_training.cascades.base import BudgetedClassifier
from gatewise_training.cascades.fit_problem import Problem
from gatewise_training.data.input_checks import is_fitted
from gatewise_training.learners.high_cost_model import HighCostModel
from gatewise_training.learners.high_cost_training import train_high_cost_model

__all__ = ["CascadeClassifier"]


@dataclass(eq=False, repr=False, kw_only=True)
class CascadeClassifier(BudgetedClassifier):
    """Base of the cascades, with their settings; see :class:`StagedCascade`.

    ``high_cost_model_`` is never None, ``offload`` gives the rows that go to it, and an operating
    point may be picked by `offload_rate`.
    """

    high_cost_model: Any = field(default=None, kw_only=False)
    feature_costs: CostsLike | None = field(default=None, kw_only=False)
    cloud_prices: CloudPrices | None = None
    budget: float | None = None
    max_loss: float | None = 0.01
    offload_rate: float | None = None
    min_recall: Mapping[Any, float] | None = None
    min_precision: Mapping[Any, float] | None = None
    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None
    guarantee: float | None = None
    random_state: Any = None
    n_jobs: int | None = None
    verbose: int = 0

    def _with_high_cost_model(self, problem: Problem) -> Problem:
        given, plan = self.high_cost_model, problem.plan
        if given is None or (hasattr(given, "fit") and not is_fitted(given)):
            problem.report(0, 1, "high-cost model")
            f0, answers, chances = train_high_cost_model(
                plan,
                problem.n_classes,
                template=given,
                allow_missing=self.allow_missing,
                seed=problem.seed,
                n_jobs=self.n_jobs,
                report=lambda what: problem.report(0, 1, what),
            )
        else:
            names = self.feature_names_ if hasattr(self, "feature_names_in_") else None
            f0 = HighCostModel.given(given, self.classes_, self.n_features_in_, names)
            rows = plan.x[plan.validation_rows]
            answers, chances = f0.labels(rows), f0.predict_proba(rows)
        return replace(
            problem,
            high_cost_model=f0,
            high_cost_labels=answers,
            high_cost_probabilities=chances,
        )

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.budget is not None and self.offload_rate is not None:
            raise InputError("give budget or offload_rate, not both")

    def _goal(self) -> dict[str, float]:
        if self.offload_rate is not None:
            return {"offload_rate": self.offload_rate}
        return super()._goal()

    def offload(self, X: ArrayLike) -> NDArray[np.bool_]:
        """Which rows go to the high-cost model, shape (n,)."""
        return np.equal(self.exit_stage(X), len(self.stages_))

    def at(
        self,
        *,
        budget: float | None = None,
        max_loss: float | None = None,
        offload_rate: float | None = None,
        min_recall: Mapping[Any, float] | None = None,
        min_precision: Mapping[Any, float] | None = None,
    ) -> Self:
        """Get the same fitted models at another operating point; nothing is refitted.

        `min_recall` and `min_precision` by class label take the place of those of the settings; an
        empty dict lifts them. Beside them one of the others, or the settings' own.
        """
        return self._moved_within(
            min_recall, min_precision, budget=budget, max_loss=max_loss, offload_rate=offload_rate
        )
