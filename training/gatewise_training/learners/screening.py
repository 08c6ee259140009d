"""Selection of the columns of a wide table that differ most between classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Largest number of columns for searches and boosted models, because the time of both is
#: proportional to the number of columns.
MAX_COLUMNS = 500


def most_different_columns(x: NDArray[np.float32], y: NDArray[np.int64]) -> NDArray[np.intp]:
    """Select the :data:`MAX_COLUMNS` columns that differ most between classes, in their order.

    If the table has at most this many columns, all are selected. Shapes: `x` (n, n_features),
    `y` (n,).
    """
    n_columns = x.shape[1]
    if n_columns <= MAX_COLUMNS:
        return np.arange(n_columns)
    return np.sort(np.argsort(-class_contrasts(x, y), kind="stable")[:MAX_COLUMNS])


def class_contrasts(x: NDArray[np.float32], y: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compute the ratio of variances between and within classes, shape (n_features,).

    A column that separates the classes perfectly has the ratio infinity, and a constant column 0.
    Shapes: `x` (n, n_features), `y` (n,). Missing values are replaced by the mean of the column.
    """
    x64 = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        means = np.nansum(x64, axis=0) / np.maximum((~np.isnan(x64)).sum(axis=0), 1)
    deviations = np.where(np.isnan(x64), means, x64) - means
    # sums of squares: sum_c n_c (mean_c - mean)^2 between classes, and the rest within classes
    total_squares = (deviations**2).sum(axis=0)
    squares_between = np.zeros(x.shape[1])
    for class_index in np.unique(y):
        is_class = y == class_index
        squares_between += is_class.sum() * deviations[is_class].mean(axis=0) ** 2
    squares_within = total_squares - squares_between
    # 0, up to rounding, for a column that is constant within each class
    is_separating = squares_within <= 1e-12 * total_squares
    contrasts = np.where(is_separating & (total_squares > 0), np.inf, 0.0)
    np.divide(squares_between, squares_within, out=contrasts, where=~is_separating)
    return contrasts
