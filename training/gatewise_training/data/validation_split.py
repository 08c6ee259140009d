"""Honest predictions: which rows fit a model and which rows judge it.

Three ways, one face. The user's own validation rows; a held-out fifth; or, on small data,
cross-fitting: each row is judged by a model that has not seen it, and the model that is kept
is fitted on all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError

__all__ = ["Resampling", "after", "cross_fit", "folds_of", "strata"]

CROSS_FIT_ROWS = 5000
"""Up to this many rows every row counts, and five fits instead of one are cheap."""

Rows = NDArray[np.intp]


class _Fitted(Protocol):
    @property
    def rounds(self) -> int: ...


Model = TypeVar("Model", bound=_Fitted)
Fit = Callable[[Rows, Rows | None, int | None], Model]


@dataclass(frozen=True, eq=False)
class Resampling:
    """Rows, and how they take turns at fitting and judging.

    Attributes
    ----------
    x : ndarray of float32, shape (n, n_features)
        Training rows and, behind them, the user's validation rows if there are any.
    y : ndarray of int64, shape (n,)
        Class indices.
    weight : ndarray of float64, shape (n,)
    folds : tuple of (fit rows, held rows)
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    weight: NDArray[np.float64]
    folds: tuple[tuple[Rows, Rows], ...]

    @classmethod
    def plan(
        cls,
        x: NDArray[np.float32],
        y: NDArray[np.int64],
        weight: NDArray[np.float64],
        *,
        validation: tuple[NDArray[np.float32], NDArray[np.int64]] | None,
        seed: int,
        cross: bool = True,
    ) -> Resampling:
        """Choose the way: given validation rows, a held-out fifth, or five folds.

        Five folds need `cross` and no more than 5,000 rows.
        """
        n = len(x)
        if validation is not None:
            x_all = np.concatenate([x, validation[0]])
            y_all = np.concatenate([y, validation[1]])
            w_all = np.concatenate([weight, np.ones(len(validation[0]))])
            return cls(x_all, y_all, w_all, after(n, len(validation[0])))
        part = strata(y, 5, seed)
        if n > CROSS_FIT_ROWS or not cross:
            return cls(x, y, weight, ((np.flatnonzero(part != 0), np.flatnonzero(part == 0)),))
        folds = tuple((np.flatnonzero(part != k), np.flatnonzero(part == k)) for k in range(5))
        folds = tuple(f for f in folds if len(f[0]) and len(f[1]))
        if not folds:
            raise InputError(f"{n} row(s) are too few to fit and judge a model; give more")
        return cls(x, y, weight, folds)

    @property
    def held(self) -> Rows:
        """The judging rows, in the order in which :func:`cross_fit` answers."""
        return np.concatenate([held for _, held in self.folds])

    @property
    def fit_rows(self) -> Rows:
        """The rows that the model which is kept may see."""
        return np.arange(len(self.x)) if len(self.folds) > 1 else self.folds[0][0]


def cross_fit(
    plan: Resampling, fit: Fit[Model], answer: Callable[[Model, Rows], NDArray[Any]]
) -> tuple[Model, NDArray[Any]]:
    """Fit a model and get its honest answers on the judging rows.

    Parameters
    ----------
    plan : Resampling
    fit : callable (fit rows, held rows or None, rounds or None) -> model
        Held rows may stop the fit early; on the last fit of cross-fitting there are none,
        and the folds' mean number of rounds is given instead.
    answer : callable (model, rows) -> ndarray

    Returns
    -------
    model
        The one to keep.
    answers : ndarray
        In the order of ``plan.held``.
    """
    models = [fit(rows, held, None) for rows, held in plan.folds]
    answers = np.concatenate(
        [answer(m, held) for m, (_, held) in zip(models, plan.folds, strict=True)]
    )
    if len(models) == 1:
        return models[0], answers
    rounds = round(float(np.mean([m.rounds for m in models])))
    return fit(plan.fit_rows, None, rounds or None), answers


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


def after(n_fit: int, n_held: int) -> tuple[tuple[Rows, Rows], ...]:
    """The user's own validation rows judge; they stand behind the training rows.

    Examples
    --------
    >>> after(3, 2)
    ((array([0, 1, 2]), array([3, 4])),)
    """
    return ((np.arange(n_fit), np.arange(n_fit, n_fit + n_held)),)


def folds_of(unit: NDArray[np.int64], seed: int) -> tuple[tuple[Rows, Rows], ...]:
    """Which rows fit and which judge, where there are no classes: values, or queries' documents.

    Parameters
    ----------
    unit : ndarray of int64, shape (n,)
        Rows that must stay together, a query's documents say, carry the same number.
    seed : int

    Returns
    -------
    tuple of (fit rows, held rows)
        Five folds on up to 5,000 rows, else a held-out fifth of the units.

    Raises
    ------
    InputError
        If there is one unit only.

    Examples
    --------
    >>> [held.tolist() for _, held in folds_of(np.array([0, 0, 1, 1]), seed=0)]
    [[0, 1], [2, 3]]
    """
    units, which = np.unique(unit, return_inverse=True)
    if len(units) < 2:
        raise InputError(f"{len(units)} row(s) or query are too few to fit and judge a model")
    k = min(5, len(units))
    part = (np.random.default_rng(seed).permutation(len(units)) % k)[which]
    some = range(k) if len(unit) <= CROSS_FIT_ROWS else range(1)
    return tuple((np.flatnonzero(part != i), np.flatnonzero(part == i)) for i in some)
