"""Fit rows and validation rows of a model.

The user may give validation rows. Otherwise a fifth of the rows is held out, or few rows are
cross-fitted in five folds. Each row then validates a model that was fitted without it, and the
final model is fitted on all rows. Rows with groups are cross-fitted unless a fifth of the groups is
at least :data:`MIN_HELD_OUT_GROUPS`. If rows have times, the last fifth is held out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise.formats import plural
from gatewise_training.data.row_splitter import Rows, RowSplitter

__all__ = ["Rows", "ValidationSplit", "cross_fit", "unit_folds", "validation_after_training"]

#: Number of folds. If there are many rows, only one fold is held out.
N_FOLDS = 5

#: Largest number of rows for cross-fitting, which takes as many fits as there are folds.
MAX_CROSS_FIT_ROWS = 5000

#: Smallest number of held-out groups that makes cross-fitting unnecessary.
MIN_HELD_OUT_GROUPS = 30


class _ModelWithRounds(Protocol):
    """A model with its number of boosting rounds, which is 0 for other kinds of models."""

    @property
    def rounds(self) -> int: ...


Model = TypeVar("Model", bound=_ModelWithRounds)
#: Function from fit rows, rows for early stopping and a fixed number of rounds to a model.
Fit = Callable[[Rows, Rows | None, int | None], Model]


@dataclass(frozen=True, eq=False)
class ValidationSplit:
    """Rows, divided into fit rows and validation rows."""

    # (n, n_features): training rows, followed by the validation rows that the user gives
    x: NDArray[np.float32]
    y: NDArray[np.int64]  # (n,): class indices
    weight: NDArray[np.float64]  # (n,): with class weights, for fits and scores
    row_weight: NDArray[np.float64]  # (n,): without class weights, for costs and rates
    folds: tuple[tuple[Rows, Rows], ...]  # fit rows and validation rows of each fold
    splitter: RowSplitter  # groups and times of all rows

    @classmethod
    def choose(
        cls,
        x: NDArray[np.float32],
        y: NDArray[np.int64],
        weight: NDArray[np.float64],
        *,
        validation: tuple[NDArray[np.float32], NDArray[np.int64]] | None,
        seed: int,
        splitter: RowSplitter | None = None,
    ) -> ValidationSplit:
        """Use the user's validation rows, or else cross-fit few rows or hold out a fifth.

        `splitter` covers the training rows followed by the user's validation rows.
        """
        if validation is not None:
            x_val, y_val = validation
            weight = np.concatenate([weight, np.ones(len(x_val))])
            return cls(
                np.concatenate([x, x_val]),
                np.concatenate([y, y_val]),
                weight,
                weight,
                validation_after_training(len(x), len(x_val)),
                splitter or RowSplitter(len(x) + len(x_val)),
            )
        splitter = splitter or RowSplitter(len(x))
        folds = default_folds(splitter, y, seed)
        if not splitter.is_random:  # a random split is stratified by class
            _check_classes(y, folds)
        return cls(x, y, weight, weight, folds, splitter)

    @property
    def has_groups(self) -> bool:
        """Whether rows have groups."""
        return self.splitter.n_groups is not None

    def with_max_fit_rows(self, max_rows: int, seed: int) -> ValidationSplit:
        """Return a copy with at most `max_rows` fit rows per fold."""
        rng = np.random.default_rng(seed)
        folds = []
        for fit_rows, validation_rows in self.folds:
            if len(fit_rows) > max_rows:
                fit_rows = np.sort(rng.choice(fit_rows, max_rows, replace=False))
            folds.append((fit_rows, validation_rows))
        return replace(self, folds=tuple(folds))

    def with_columns(self, columns: slice) -> ValidationSplit:
        """Get the same rows with some of the columns."""
        if columns == slice(None):
            return self
        return replace(self, x=np.ascontiguousarray(self.x[:, columns]))

    def with_class_weights(self, class_weights: NDArray[np.float64]) -> ValidationSplit:
        """Multiply `weight` by the weights of the rows' classes, shape (n_classes,)."""
        weight = self.row_weight * class_weights[self.y]
        # with a mean of 1, penalties and minimal leaf weights keep their meaning
        return replace(self, weight=weight / weight.mean())

    def without_class_weights(self) -> ValidationSplit:
        """Use `row_weight` as weights, because fits of the user had no class weights."""
        return replace(self, weight=self.row_weight)

    def labels_and_weights(self, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Get labels and weights of some rows."""
        return self.y[rows], self.weight[rows]

    @property
    def validation_rows(self) -> Rows:
        """The validation rows, fold by fold, in the order of out-of-fold predictions."""
        return np.concatenate([validation_rows for _, validation_rows in self.folds])

    @property
    def fit_rows(self) -> Rows:
        """The rows that the final model is fitted on."""
        return np.arange(len(self.x)) if len(self.folds) > 1 else self.folds[0][0]

    @property
    def rows_of_all_fits(self) -> list[Rows]:
        """The fit rows of each fold and, if there are several folds, of the final model."""
        fit_rows_by_fold = [fit_rows for fit_rows, _ in self.folds]
        return [*fit_rows_by_fold, self.fit_rows] if len(self.folds) > 1 else fit_rows_by_fold


def cross_fit(
    split: ValidationSplit, fit: Fit[Model], predict: Callable[[Model, Rows], NDArray[Any]]
) -> tuple[Model, NDArray[Any]]:
    """Fit the final model, and compute out-of-fold predictions on the validation rows.

    If rows have groups, the models of folds have the rounds of the final model, because the best
    number of rounds of a fold depends on its few groups.
    """
    models = [fit(fit_rows, validation_rows, None) for fit_rows, validation_rows in split.folds]
    # the final model has the mean number of rounds
    rounds = round(float(np.mean([model.rounds for model in models]))) or None
    if len(models) > 1 and rounds and split.has_groups:
        models = [fit(fit_rows, None, rounds) for fit_rows, _ in split.folds]
    predictions = np.concatenate(
        [
            predict(model, validation_rows)
            for model, (_, validation_rows) in zip(models, split.folds, strict=True)
        ]
    )
    if len(models) == 1:
        return models[0], predictions
    return fit(split.fit_rows, None, rounds), predictions


def _check_classes(y: NDArray[np.int64], folds: tuple[tuple[Rows, Rows], ...]) -> None:
    """Raise InputError if the fit rows of a fold lack a class."""
    n_classes = len(np.unique(y))
    if any(len(np.unique(y[fit_rows])) < n_classes for fit_rows, _ in folds):
        raise InputError(
            "the split by groups or times leaves a fold without a class: each class needs rows in "
            "several groups and among the early rows; give more rows or drop the class"
        )


def default_folds(
    splitter: RowSplitter, y: NDArray[np.int64] | None, seed: int
) -> tuple[tuple[Rows, Rows], ...]:
    """Make five folds, but hold out a fifth of many rows, and the last fifth of rows with times."""
    has_enough_groups = (
        splitter.n_groups is None or splitter.n_groups >= N_FOLDS * MIN_HELD_OUT_GROUPS
    )
    if splitter.time is not None or (splitter.n_rows > MAX_CROSS_FIT_ROWS and has_enough_groups):
        return (splitter.hold_out(y, N_FOLDS, seed),)
    folds = splitter.folds(y, N_FOLDS, seed)
    if not folds:
        raise InputError(
            f"{plural(splitter.n_rows, 'row')} cannot both fit and validate a model: give more"
        )
    return folds


def validation_after_training(n_fit: int, n_validation: int) -> tuple[tuple[Rows, Rows], ...]:
    """Make one fold: the first rows are for training, the others for validation.

    >>> validation_after_training(3, 2)
    ((array([0, 1, 2]), array([3, 4])),)
    """
    return ((np.arange(n_fit), np.arange(n_fit, n_fit + n_validation)),)


def unit_folds(unit_of_row: NDArray[np.int64], seed: int) -> tuple[tuple[Rows, Rows], ...]:
    """Assign rows without classes to folds; rows with the same `unit_of_row` stay together.

    >>> [rows.tolist() for _, rows in unit_folds(np.array([0, 0, 1, 1]), seed=0)]
    [[0, 1], [2, 3]]
    """
    distinct_units, unit_index = np.unique(unit_of_row, return_inverse=True)
    if len(distinct_units) < 2:
        raise InputError("one row, group or query is too few to fit and validate a model")
    n_folds = min(N_FOLDS, len(distinct_units))
    fold_of_unit = np.random.default_rng(seed).permutation(len(distinct_units)) % n_folds
    fold_of_row = fold_of_unit[unit_index]
    folds = range(n_folds) if len(unit_of_row) <= MAX_CROSS_FIT_ROWS else range(1)
    return tuple(
        (np.flatnonzero(fold_of_row != fold), np.flatnonzero(fold_of_row == fold)) for fold in folds
    )
