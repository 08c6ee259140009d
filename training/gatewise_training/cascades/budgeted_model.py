"""The surface that all estimators share: frontier, operating points, checked settings and rows."""

from __future__ import annotations

import copy
from abc import ABC
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from gatewise.costs import CostsLike
from gatewise.errors import InputError
from gatewise.models.stage import Stage
from gatewise_training.data.input_checks import (
    NOT_NEGATIVE,
    Constraints,
    check_costs,
    check_parameters,
    check_rows,
    feature_names,
)
from gatewise_training.operating_points.frontier import SLACK, Frontier, OperatingPoint

__all__ = ["MAX_LOSS", "BudgetedModel"]

MAX_LOSS = 0.01


class BudgetedModel(BaseEstimator, ABC):
    """Base of all estimators.

    Attributes
    ----------
    n_features_in_ : int
    feature_names_ : tuple of str
        Column names, x0, x1, ... where the table had none.
    feature_costs_ : FeatureCosts
    chains_ : tuple of tuple of Stage
        The stages of each candidate cascade that is on the frontier.
    frontier_ : Frontier
        Operating points, measured on validation rows.
    operating_point_ : OperatingPoint
        The active one.
    """

    feature_costs: CostsLike | None
    budget: float | None
    max_loss: float | None
    allow_missing: bool
    random_state: Any
    n_jobs: int | None
    verbose: int

    _parameter_constraints: ClassVar[Constraints] = {
        "budget": [NOT_NEGATIVE, None],
        "max_loss": [NOT_NEGATIVE, None],
        "offload_rate": [NOT_NEGATIVE, None],
        "penalties": ["array-like", None],
    }
    """What values each parameter takes; a class adds its own to those of its bases."""

    def _check_settings(self) -> None:
        """Refuse settings that no fit can use."""
        check_parameters(self)
        penalties = getattr(self, "penalties", None)
        if penalties is not None and not all(0.0 <= p < np.inf for p in penalties):
            raise InputError(f"penalties must be at least 0, not {list(penalties)}")

    def _check_costs(self) -> None:
        """Bring feature costs and names to the checked columns."""
        self.feature_names_ = feature_names(self)
        named = hasattr(self, "feature_names_in_")
        self.feature_costs_ = check_costs(self.feature_costs, self.feature_names_, named)

    def _keep(
        self,
        candidates: Sequence[tuple[Stage, ...]],
        points: Sequence[OperatingPoint],
        *,
        reference_accuracy: float,
        every: bool = False,
    ) -> None:
        """Keep the candidates that reach the frontier of the points, or every one."""
        frontier = Frontier.from_points(points, reference_accuracy=reference_accuracy)
        used = {p.chain for p in frontier.points}
        kept = [c for c in range(len(candidates)) if every or c in used]
        self.chains_ = tuple(candidates[c] for c in kept)
        renumbered = tuple(replace(p, chain=kept.index(p.chain)) for p in frontier.points)
        self.frontier_ = replace(frontier, points=renumbered)

    def _pick(self) -> OperatingPoint:
        """Take the operating point of the settings: a budget, or a largest loss."""
        if self.budget is not None:
            return self._choose(budget=self.budget)
        return self._choose(max_loss=MAX_LOSS if self.max_loss is None else self.max_loss)

    def _choose(self, **wanted: float | None) -> OperatingPoint:
        return self.frontier_.at(**wanted, slack=SLACK)

    @property
    def stages_(self) -> tuple[Stage, ...]:
        """Stages of the active operating point."""
        check_is_fitted(self, "operating_point_")
        return self.chains_[self.operating_point_.chain]

    @property
    def operating_points_(self) -> tuple[OperatingPoint, ...]:
        """The frontier's points and, if it is none of them, the active one; by cost."""
        check_is_fitted(self, "operating_point_")
        points = set(self.frontier_.points) | {self.operating_point_}
        return tuple(sorted(points, key=lambda p: (p.cost, p.accuracy)))

    @property
    def missing_(self) -> dict[str, Literal["allowed", "refused"]]:
        """Whether NaN is a value to the stages and to the high-cost model."""
        check_is_fitted(self, "operating_point_")
        word: Literal["allowed", "refused"] = "allowed" if self.allow_missing else "refused"
        return {"stages": word, "cloud": word}

    def at(self, *, budget: float | None = None, max_loss: float | None = None) -> Self:
        """Get the same fitted models at another operating point; nothing is refitted."""
        return self._moved(budget=budget, max_loss=max_loss)

    def _moved(self, **wanted: float | None) -> Self:
        check_is_fitted(self, "operating_point_")
        other = copy.copy(self)
        other.operating_point_ = self._choose(**wanted)
        return other

    def _rows(self, X: ArrayLike) -> NDArray[np.float32]:
        check_is_fitted(self, "operating_point_")
        rows: NDArray[np.float32] = check_rows(self, X, allow_missing=self.allow_missing)
        return rows

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.allow_missing
        return tags
