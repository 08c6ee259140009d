"""CEGBRegressor: boosted regression trees under feature cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state

from gatewise_training.cegb.base import Scored
from gatewise_training.cegb.objectives import Measured
from gatewise_training.data.input_checks import Validation, check_values, checked_splits
from gatewise_training.data.validation_split import after, chosen_folds, folds_of


@dataclass(eq=False, repr=False, kw_only=True)
class CEGBRegressor(RegressorMixin, Scored):
    """Cost-efficient gradient boosting of measured values, by squared error.

    Peter, Diego, Hamprecht & Nadler, NIPS 2017, section 3.

    As :class:`CEGBClassifier`, with R² instead of accuracy: `frontier_` holds R² against mean
    cost on validation rows, and `max_loss` is a loss of R².

    Parameters
    ----------
    penalties : sequence of float, optional
        Share of half the values' variance that a feature of mean price must explain. Searched by
        default.
    feature_costs, accounting, coupled_costs, budget, budget_counts, max_loss, penalty_split
        As for :class:`CEGBClassifier`.
    n_penalties, prefixes, growth, n_rounds
        As for :class:`CEGBClassifier`.
    patience, num_leaves, max_depth, learning_rate, newton
        As for :class:`CEGBClassifier`, but for 31 leaves and a learning rate of 0.1 at any size.
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
        """Fit all models and find the frontier.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Numbers; taken as float32.
        y : array-like of shape (n,)
            Measured values.
        sample_weight : array-like of shape (n,), optional
            Weight of each row; 1 by default.
        validation : pair (X_val, y_val), or with groups (X_val, y_val, groups_val), optional
            Validation rows. By default a fifth of the rows is held out, or on up to 5,000 rows
            five-fold cross-fitting makes every row one.
        groups : array-like of shape (n,), optional
            Subject, machine or recording of each row: whole groups fit or validate, and
            `max_loss` keeps a margin of two standard errors between groups.
        time : array-like of shape (n,), optional
            Numbers or dates: the earlier rows fit and the last fifth validates.

        Returns
        -------
        self

        Raises
        ------
        InputError
            For data, prices or a budget that cannot be used; it says which and why.
        """
        self._check_settings()
        x, value = check_values(self, X, y)
        weight, validation, splitter = checked_splits(x, sample_weight, groups, time, validation)
        counts = weight > 0
        x, value, weight = x[counts], value[counts], weight[counts]
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if validation is None and splitter.is_random:
            folds = folds_of(np.arange(len(x)), seed)
        elif validation is None:
            folds = chosen_folds(splitter, None, seed)
        else:
            x_val, y_val = check_values(self, *validation, reset=False)
            folds = after(len(x), len(x_val))
            x = np.concatenate([x, x_val])
            value = np.concatenate([value, y_val])
            weight = np.concatenate([weight / weight.mean(), np.ones(len(x_val))])
        validation_groups = None
        if splitter.groups is not None:
            validation_groups = splitter.groups[np.concatenate([rows for _, rows in folds])]
        target = Measured.standardised(value, weight)
        self._settle(x, target, folds, seed, validation_groups)
        return self
