"""Which rows fit a model, which are its validation rows, and which certify guarantees.

Validation rows come in three ways: the user's own, a held-out fifth, or on small data five-fold
cross-fitting, where every row is a validation row of a model that has not seen it and the model
that is kept is fitted on all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_training.data.input_checks import Table

__all__ = ["ValidationSplit", "after", "cross_fit", "folds_of", "hold_back", "strata"]

CROSS_FIT_ROWS = 5000
"""Up to this many rows every row counts, and five fits instead of one are cheap."""

CALIBRATION_SHARE = 5
"""One training row in so many becomes a calibration row."""

Rows = NDArray[np.intp]


class _HasRounds(Protocol):
    @property
    def rounds(self) -> int: ...


Model = TypeVar("Model", bound=_HasRounds)
Fit = Callable[[Rows, Rows | None, int | None], Model]


@dataclass(frozen=True, eq=False)
class ValidationSplit:
    """Rows, and which of them fit and which validate."""

    # (n, n_features): training rows and, behind them, the user's validation rows if there are any
    x: NDArray[np.float32]
    y: NDArray[np.int64]  # (n,): class indices
    weight: NDArray[np.float64]  # (n,)
    folds: tuple[tuple[Rows, Rows], ...]  # fit rows and validation rows of each

    @classmethod
    def choose(
        cls,
        x: NDArray[np.float32],
        y: NDArray[np.int64],
        weight: NDArray[np.float64],
        *,
        validation: tuple[NDArray[np.float32], NDArray[np.int64]] | None,
        seed: int,
    ) -> ValidationSplit:
        """Take the given validation rows, a held-out fifth, or up to 5,000 rows five folds."""
        n = len(x)
        if validation is not None:
            x_all = np.concatenate([x, validation[0]])
            y_all = np.concatenate([y, validation[1]])
            w_all = np.concatenate([weight, np.ones(len(validation[0]))])
            return cls(x_all, y_all, w_all, after(n, len(validation[0])))
        part = strata(y, 5, seed)
        if n > CROSS_FIT_ROWS:
            return cls(x, y, weight, ((np.flatnonzero(part != 0), np.flatnonzero(part == 0)),))
        folds = tuple((np.flatnonzero(part != k), np.flatnonzero(part == k)) for k in range(5))
        folds = tuple(f for f in folds if len(f[0]) and len(f[1]))
        if not folds:
            raise InputError(f"{n} row(s) are too few to fit and validate a model; give more")
        return cls(x, y, weight, folds)

    def with_class_weights(self, weights: NDArray[np.float64]) -> ValidationSplit:
        """Multiply the rows' weights by those of their classes, shape (n_classes,)."""
        weight = self.weight * weights[self.y]
        return replace(self, weight=weight / weight.mean())

    @property
    def validation_rows(self) -> Rows:
        """The validation rows, fold after fold: the order of out-of-fold predictions."""
        return np.concatenate([rows for _, rows in self.folds])

    @property
    def fit_rows(self) -> Rows:
        """The rows that the model which is kept may see."""
        return np.arange(len(self.x)) if len(self.folds) > 1 else self.folds[0][0]


def cross_fit(
    plan: ValidationSplit, fit: Fit[Model], answer: Callable[[Model, Rows], NDArray[Any]]
) -> tuple[Model, NDArray[Any]]:
    """Fit the model to keep, and get out-of-fold predictions on the validation rows."""
    models = [fit(rows, unseen, None) for rows, unseen in plan.folds]
    predictions = np.concatenate(
        [answer(m, unseen) for m, (_, unseen) in zip(models, plan.folds, strict=True)]
    )
    if len(models) == 1:
        return models[0], predictions
    rounds = round(float(np.mean([m.rounds for m in models])))
    return fit(plan.fit_rows, None, rounds or None), predictions


def strata(y: NDArray[np.int64], k: int, seed: int) -> NDArray[np.intp]:
    """Deal the rows of each class out to k parts; the classes take turns at starting."""
    rng = np.random.default_rng(seed)
    part = np.empty(len(y), np.intp)
    start = 0
    for c in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == c))
        part[rows] = (start + np.arange(len(rows))) % k
        start += len(rows)
    return part


def hold_back(table: Table, confidence: float, seed: int) -> tuple[Table, Table]:
    """Set calibration rows aside: half of the user's validation rows, else a training fifth."""
    if not 0 < confidence < 1:
        raise InputError(f"guarantee must be between 0 and 1, not {confidence}")
    if np.ptp(table.weight) > 0:
        raise InputError("a guarantee needs rows of equal weight: its tests count rows")
    x, y = (table.x, table.y) if table.validation is None else table.validation
    chances = None if table.validation is not None else table.high_cost
    part = strata(y, CALIBRATION_SHARE if table.validation is None else 2, seed)
    kept, aside = np.flatnonzero(part != 0), np.flatnonzero(part == 0)
    if table.validation is None:
        known = None if chances is None else chances[kept]
        rest = replace(table, x=x[kept], y=y[kept], weight=table.weight[kept], high_cost=known)
    else:
        rest = replace(table, validation=(x[kept], y[kept]))
    if len(np.unique(rest.y)) < len(table.classes) or not len(aside):
        raise InputError("too few rows to set some aside for a guarantee; give more data")
    ones = np.ones(len(aside))
    known = None if chances is None else chances[aside]
    return rest, replace(
        table, x=x[aside], y=y[aside], weight=ones, validation=None, high_cost=known
    )


def after(n_fit: int, n_validation: int) -> tuple[tuple[Rows, Rows], ...]:
    """Make one fold with the validation rows behind the training rows.

    Examples
    --------
    >>> after(3, 2)
    ((array([0, 1, 2]), array([3, 4])),)
    """
    return ((np.arange(n_fit), np.arange(n_fit, n_fit + n_validation)),)


def folds_of(unit: NDArray[np.int64], seed: int) -> tuple[tuple[Rows, Rows], ...]:
    """Deal out rows without classes, values or documents; rows of one `unit` stay together.

    Examples
    --------
    >>> [rows.tolist() for _, rows in folds_of(np.array([0, 0, 1, 1]), seed=0)]
    [[0, 1], [2, 3]]
    """
    units, which = np.unique(unit, return_inverse=True)
    if len(units) < 2:
        raise InputError(f"{len(units)} row(s) or query are too few to fit and validate a model")
    k = min(5, len(units))
    part = (np.random.default_rng(seed).permutation(len(units)) % k)[which]
    some = range(k) if len(unit) <= CROSS_FIT_ROWS else range(1)
    return tuple((np.flatnonzero(part != i), np.flatnonzero(part == i)) for i in some)
