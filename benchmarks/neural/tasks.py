"""Tasks of the neural comparison: rows, hard budgets, and figures over numbers of features.

Every feature costs 1, and a method may acquire at most so many of each instance. A figure is
AUROC with two classes and accuracy with more, after 0, 1, 2, ... features; their mean is the area
under that curve by trapezes, as the SEFA authors' ``run_zero_acquisition`` takes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from benchmarks.data import problems
from benchmarks.data.folds import Table

MOST_FEATURES = 15
BUDGETS = (5, 10, 15)
MEAN = "mean"
MOST_ROWS = 12_000
"""Rows to fit at most, and test rows; half as many validate."""
SHARES = (0.5, 0.25)
"""Of rows to fit and to validate where no publisher fixed parts; the rest are test rows."""


@dataclass(frozen=True, eq=False)
class Task:
    """Rows of one data set under one seed; classes are indices."""

    name: str
    seed: int
    train: Table
    validation: Table
    test: Table
    n_classes: int

    @property
    def n_features(self) -> int:
        """Number of features there are."""
        return int(self.train[0].shape[1])

    @property
    def steps(self) -> int:
        """Most features of an instance."""
        return min(MOST_FEATURES, self.n_features)

    @property
    def metric(self) -> str:
        """Name of the figure, as the authors of the peers call it."""
        return "auroc" if self.n_classes == 2 else "accuracy"

    @property
    def digest(self) -> str:
        """Hash of all rows."""
        found = hashlib.sha256()
        for x, y in (self.train, self.validation, self.test):
            found.update(x.tobytes() + y.tobytes())
        return found.hexdigest()

    def budgets(self) -> list[int]:
        """Hard budgets of the table: of a set with fewer features only some."""
        return [budget for budget in BUDGETS if budget <= self.steps]


def draw(name: str, seed: int) -> Task:
    """Rows of a data set: the publisher's parts where there are three, else drawn by the seed.

    Of many rows some are drawn. Without validation rows a quarter of the training rows are; rows
    in cross-validation are drawn as a half to fit, a quarter to validate and a quarter to test.
    """
    problem = problems.get(name)
    folds = problem.deal(seed)
    fold = folds[0].thinned(MOST_ROWS)
    train, validation, test = fold.train, fold.validation, fold.test
    if len(folds) > 1:
        x, y = together(train, test)
        parts = np.split(_order(y, seed), np.cumsum([round(share * len(y)) for share in SHARES]))
        train, validation, test = (_some(x, y, rows) for rows in parts)
    elif validation is None:
        x, y = train
        held, kept = np.split(_order(y, seed), [len(y) // 4])
        train, validation = _some(x, y, kept), _some(x, y, held)
    return Task(name, seed, train, validation, test, problem.n_classes)


def together(*tables: Table) -> Table:
    """Rows of several tables as one."""
    x, y = (np.concatenate(column) for column in zip(*tables, strict=True))
    return x, y


def _some(x: NDArray[np.float32], y: NDArray[np.int64], rows: NDArray[np.intp]) -> Table:
    return np.ascontiguousarray(x[rows]), y[rows]


def _order(y: NDArray[np.int64], seed: int) -> NDArray[np.intp]:
    return np.random.default_rng(seed).permutation(len(y))


def score(proba: NDArray[np.floating], y: NDArray[np.int64]) -> float:
    """Get AUROC of two classes, or accuracy of more.

    >>> score(np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([0, 1]))
    1.0
    """
    if proba.shape[1] == 2:
        return float(roc_auc_score(y, proba[:, 1]))
    return float(np.mean(proba.argmax(axis=1) == y))


def mean_over_steps(scores: Sequence[float]) -> float:
    """Mean over the numbers of features: the area by trapezes, as a share of the most features.

    >>> mean_over_steps([0.5, 0.75, 1.0])
    0.75
    """
    return float(np.trapezoid(scores) / (len(scores) - 1))


def figures(scores: Sequence[float], budgets: Sequence[int]) -> dict[str, float]:
    """Get the figures of a table's cells: at each budget, and the mean over all steps."""
    return {str(budget): scores[budget] for budget in budgets} | {MEAN: mean_over_steps(scores)}


BySeed = Mapping[int, Mapping[str, float]]
"""Figures of a method by seed and column."""


def ahead(ours: BySeed, theirs: BySeed) -> dict[str, bool]:
    """Whether our mean is higher, by column, over the seeds that both have.

    >>> ahead({0: {"5": 0.7}, 1: {"5": 0.1}}, {0: {"5": 0.6}})
    {'5': True}
    """
    both = sorted(set(ours) & set(theirs))
    columns = ours[both[0]]
    return {c: sum(ours[s][c] - theirs[s][c] for s in both) > 0 for c in columns}


def led(ours: BySeed, peers: Mapping[str, BySeed]) -> dict[str, bool]:
    """Whether our mean is higher than that of every peer, by column."""
    found = [ahead(ours, theirs) for theirs in peers.values()]
    return {column: all(each[column] for each in found) for column in found[0]}
