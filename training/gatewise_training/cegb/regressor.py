"""CEGBRegressor: boosted regression trees under feature cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight

from gatewise.costs import FeatureCosts
from gatewise_training.cegb.base import Scored
from gatewise_training.cegb.growth import Order
from gatewise_training.cegb.objectives import Measured
from gatewise_training.cegb.penalties import Accounting
from gatewise_training.data.input_checks import check_values
from gatewise_training.data.validation_split import after, folds_of

__all__ = ["CEGBRegressor"]


class CEGBRegressor(RegressorMixin, Scored):
    """Cost-efficient gradient boosting (NIPS 2017) of measured values, by squared error.

    As :class:`CEGBClassifier`, with R² in the place of accuracy: `frontier_` holds R² against
    mean cost on judging rows, and `max_loss` is a loss of R².

    Parameters
    ----------
    penalties : sequence of float, optional
        In units of half the values' variance: what share of it a feature of mean price must
        explain. Searched by default.
    feature_costs, accounting, budget, max_loss, penalty_split, n_penalties, growth, n_rounds
        As for :class:`CEGBClassifier`.
    patience, num_leaves, max_depth, learning_rate, newton, subsample, lightgbm_params
        As for :class:`CEGBClassifier`, but for 31 leaves and a learning rate of 0.1 at any size.
    allow_missing, random_state, n_jobs, verbose
        As for :class:`CEGBClassifier`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = CEGBRegressor(budget=5.0, penalties=(0.03,), n_rounds=20, random_state=0)
    >>> model = model.fit(X, y)
    >>> bool(model.operating_point_.cost <= 5.0 and model.operating_point_.accuracy > 0.2)
    True
    """

    def __init__(
        self,
        feature_costs: FeatureCosts | None = None,
        *,
        accounting: Accounting = "lazy",
        budget: float | None = None,
        max_loss: float | None = 0.01,
        penalty_split: float = 0.0,
        penalties: Sequence[float] | None = None,
        n_penalties: int = 12,
        growth: Order = "best-first",
        n_rounds: int = 200,
        patience: int | None = 20,
        num_leaves: int | None = 31,
        max_depth: int | None = None,
        learning_rate: float | None = 0.1,
        newton: bool = True,
        subsample: float = 1.0,
        lightgbm_params: Mapping[str, Any] | None = None,
        allow_missing: bool = False,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.feature_costs = feature_costs
        self.accounting = accounting
        self.budget = budget
        self.max_loss = max_loss
        self.penalty_split = penalty_split
        self.penalties = penalties
        self.n_penalties = n_penalties
        self.growth = growth
        self.n_rounds = n_rounds
        self.patience = patience
        self.num_leaves = num_leaves
        self.max_depth = max_depth
        self.learning_rate = learning_rate
        self.newton = newton
        self.subsample = subsample
        self.lightgbm_params = lightgbm_params
        self.allow_missing = allow_missing
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        validation: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Self:
        """Fit all models and find the frontier.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Numbers; taken as float32.
        y : array-like of shape (n,)
            Measured values.
        sample_weight : array-like of shape (n,), optional
        validation : pair (X_val, y_val), optional
            Rows that judge. By default a fifth of the rows is held out, or on up to 5,000 rows
            five-fold cross-fitting lets every row judge.

        Returns
        -------
        self

        Raises
        ------
        InputError
            For data, prices or a budget that cannot be used; it says which and why.
        """
        self._check_settings()
        x, value = check_values(self, X, y, allow_missing=self.allow_missing)
        weight = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
        seen = weight > 0
        x, value, weight = x[seen], value[seen], weight[seen]
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if validation is None:
            folds = folds_of(np.arange(len(x)), seed)
        else:
            x_val, y_val = check_values(
                self, *validation, allow_missing=self.allow_missing, reset=False
            )
            folds = after(len(x), len(x_val))
            x, value = np.concatenate([x, x_val]), np.concatenate([value, y_val])
            weight = np.concatenate([weight / weight.mean(), np.ones(len(x_val))])
        self._settle(x, Measured.of(value, weight), folds, seed)
        return self
