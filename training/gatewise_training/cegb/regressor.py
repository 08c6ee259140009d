"""CEGBRegressor: boosted regression trees under feature cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state

from gatewise_training.cegb.base import ScoredModel
from gatewise_training.cegb.objectives import ValueTarget
from gatewise_training.data.input_checks import Validation, check_values
from gatewise_training.data.row_splitter import check_splits
from gatewise_training.data.validation_split import (
    default_folds,
    unit_folds,
    validation_after_training,
)


@dataclass(eq=False, repr=False, kw_only=True)
class CEGBRegressor(RegressorMixin, ScoredModel):
    """Cost-efficient gradient boosting of measured values, by squared error.

    Peter, Diego, Hamprecht & Nadler, NIPS 2017, section 3.

    The regressor works like :class:`CEGBClassifier`, but uses R² instead of accuracy. `frontier_`
    relates R² to the mean cost on validation rows, and `max_loss` is a loss of R².

    Parameters
    ----------
    penalties : sequence of float, optional
        Share of half the variance of the values that a feature of mean price must explain. By
        default the penalties are searched.
    feature_costs, accounting, coupled_costs, budget, budget_counts, max_loss, penalty_split
        As for :class:`CEGBClassifier`.
    n_penalties, prefixes, growth, n_rounds
        As for :class:`CEGBClassifier`.
    patience, num_leaves, max_depth, learning_rate, newton
        As for :class:`CEGBClassifier`. The defaults are 31 leaves and a learning rate of 0.1 for
        any number of rows.
    allow_missing, random_state
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

    num_leaves: int | None = 31
    learning_rate: float | None = 0.1

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        validation: Validation | None = None,
        groups: ArrayLike | None = None,
        time: ArrayLike | None = None,
    ) -> Self:
        """Fit the models of all penalties and find the frontier.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Features, converted to float32.
        y : array-like of shape (n,)
            Measured values.
        sample_weight : array-like of shape (n,), optional
            Weight of each row; 1 by default.
        validation : pair (X_val, y_val), or with groups (X_val, y_val, groups_val), optional
            Validation rows. By default, up to 5,000 rows are cross-fitted in five folds, and every
            row is used for validation. If there are more rows, a fifth is used for validation.
        groups : array-like of shape (n,), optional
            Subject, machine or recording of each row. No group is split between fit and
            validation, and `max_loss` is about new groups.
        time : array-like of shape (n,), optional
            Numbers or dates. The last fifth of the rows is used for validation.

        Returns
        -------
        self

        Raises
        ------
        InputError
            If the data, prices or budget are invalid. The message names the cause.
        """
        self._check_settings()
        x, target_values = check_values(self, X, y)
        weight, validation, splitter = check_splits(x, sample_weight, groups, time, validation)
        has_weight = weight > 0
        x = x[has_weight]
        target_values = target_values[has_weight]
        weight = weight[has_weight]
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if validation is None and splitter.is_random:
            folds = unit_folds(np.arange(len(x)), seed)
        elif validation is None:
            folds = default_folds(splitter, None, seed)
        else:
            x_val, y_val = check_values(self, *validation, reset=False)
            folds = validation_after_training(len(x), len(x_val))
            x = np.concatenate([x, x_val])
            target_values = np.concatenate([target_values, y_val])
            weight = np.concatenate([weight / weight.mean(), np.ones(len(x_val))])
        validation_groups = None
        if splitter.groups is not None:
            validation_groups = splitter.groups[np.concatenate([rows for _, rows in folds])]
        target = ValueTarget.standardised(target_values, weight)
        self._fit_frontier(x, target, folds, seed, validation_groups)
        return self
