"""Warning about similar neighbouring rows without groups or times."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from gatewise.errors import GroupsWarning, warn_caller

#: Ratio below which rows are similar beyond chance. Rows in random order have a ratio of 1.
MAX_SIMILAR_RATIO = 0.5

#: Smallest number of pairs of neighbours for a ratio; few pairs may be similar by chance.
MIN_PAIRS = 100

#: Largest number of rows that are compared, the first rows of the table.
MAX_ROWS = 5000

#: Largest number of columns that are compared, evenly spaced.
MAX_COLUMNS = 64


def neighbour_ratio(x: NDArray[np.float32], y: NDArray[np.int64]) -> float | None:
    """Compare the differences of neighbouring rows with the differences of random pairs.

    The result is the median over columns of the mean squared difference of neighbours of a class,
    divided by the same figure of two random rows of the class. Ranks replace values (Bartels,
    1982), because rare large values would dominate the mean. The ratio is 1 for a file sorted by
    class, and 0.2 for windows that overlap by half.

    `x` has shape (n, n_features), and `y` are class indices, (n,). The result is None if there are
    too few pairs.

    >>> walk = np.cumsum(np.random.default_rng(0).normal(size=(500, 4)), axis=0)
    >>> y = np.zeros(500, np.int64)
    >>> neighbour_ratio(walk, y) < 0.1 < 0.9 < neighbour_ratio(walk[np.argsort(walk[:, 0] % 1)], y)
    True
    """
    x = x[:MAX_ROWS]
    y = y[:MAX_ROWS]
    if x.shape[1] > MAX_COLUMNS:
        x = x[:, np.linspace(0, x.shape[1] - 1, MAX_COLUMNS).astype(np.intp)]
    pair_starts = np.flatnonzero(y[1:] == y[:-1])
    if len(pair_starts) < MIN_PAIRS:
        return None
    ranks = stats.rankdata(np.nan_to_num(x, nan=-np.inf), axis=0)
    n_pairs_of_class = np.bincount(y[pair_starts], minlength=int(y.max()) + 1)
    # the mean squared difference of two random rows is twice the variance
    expected_squares = np.zeros(x.shape[1])
    for class_index in np.flatnonzero(n_pairs_of_class):
        expected_squares += (
            n_pairs_of_class[class_index] * 2.0 * ranks[y == class_index].var(axis=0, ddof=1)
        )
    observed_squares = ((ranks[pair_starts + 1] - ranks[pair_starts]) ** 2).sum(axis=0)
    is_varying = expected_squares > 0
    return (
        float(np.median(observed_squares[is_varying] / expected_squares[is_varying]))
        if is_varying.any()
        else None
    )


def neighbour_remark(
    x: NDArray[np.float32], y: NDArray[np.int64], *, option_text: str = "groups= or time="
) -> str | None:
    """Describe similar neighbouring rows; return None if they are not similar.

    `option_text` names the options that give groups or times. The shapes are the same as in
    :func:`neighbour_ratio`.
    """
    ratio = neighbour_ratio(x, y)
    if ratio is None or ratio >= MAX_SIMILAR_RATIO:
        return None
    return (
        f"neighbouring rows differ only {ratio:.2f} times as much as other rows of their class: "
        "windows overlap, or rows come from one subject, machine or recording. If such rows are "
        "shuffled, a model is validated on rows like those it was fitted on, and its accuracy is "
        f"too good; give the groups or the times of the rows ({option_text})"
    )


def warn_of_similar_neighbours(x: NDArray[np.float32], y: NDArray[np.int64]) -> None:
    """Issue the remark of :func:`neighbour_remark`, if any, as a warning."""
    remark = neighbour_remark(x, y)
    if remark is not None:
        warn_caller(remark, GroupsWarning)
