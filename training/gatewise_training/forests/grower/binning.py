"""Columns as small integer codes, which the grower sorts and counts instead of floats.

Each distinct value has a code, so that no split is lost, up to 65,535 codes. Columns with more
values are cut into bins of about equally many rows. A threshold lies midway between the largest
value on its left and the smallest on its right.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

MAX_CODES = 65535
"""Largest number of codes of a column; uint16 has room for one more, NaN's."""

MAX_SPARSE_CODES = 15
"""Largest number of codes of a sparse column."""

SPARSE_SHARE = 0.75
"""Smallest share of rows with the prevailing code at which a column counts as sparse."""


class Sparse(NamedTuple):
    """The entries of sparse columns that differ from the column's prevailing code, row by row.

    A node counts all sparse columns in one walk over its rows' few entries. Each column has a slot
    for each of its codes.
    """

    common: NDArray[np.int32]  # (n_features,): prevailing code; -1 for a column that is not sparse
    offset: NDArray[np.int32]  # (n_features + 1,): first slot of each column; NaN's is its last
    entry_start: NDArray[np.int64]  # (n + 1,): first entry of each row
    entry_slot: NDArray[np.int32]  # (n_entries,): slot of each entry's code
    entry_feature: NDArray[np.int32]  # (n_entries,): column of each entry


class Codes(NamedTuple):
    """The columns of a table as codes that keep the order of the values.

    >>> x = np.array([[5.0], [2.0], [np.nan], [5.0]], np.float32)
    >>> codes = Codes.of_table(x)
    >>> codes.codes
    array([[1, 0, 2, 1]], dtype=uint8)
    >>> codes.lower
    array([2., 5.], dtype=float32)
    """

    # (n_features, n): uint8 where no column has more than 255 codes; NaN's code, ``n_codes[k]``, is
    # above all others
    codes: NDArray[Any]
    lower: NDArray[np.float32]  # (n_codes.sum(),): smallest value of each code, column by column
    upper: NDArray[np.float32]  # (n_codes.sum(),): largest value of each code
    start: NDArray[np.int64]  # (n_features + 1,): first place of each column in `lower`, `upper`
    sparse: Sparse

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return len(self.codes)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.codes.shape[1])

    @property
    def n_codes(self) -> NDArray[np.int64]:
        """Codes of each column without NaN's, shape (n_features,)."""
        return np.diff(self.start)

    @classmethod
    def of_table(cls, x: NDArray[np.float32], *, max_codes: int = MAX_CODES) -> Codes:
        """Code the columns of a table, (n, n_features)."""
        columns = [_code(np.ascontiguousarray(x[:, k]), max_codes) for k in range(x.shape[1])]
        widest = max((len(lower) for _, lower, _ in columns), default=0)
        codes = np.empty((x.shape[1], len(x)), np.uint8 if widest <= 255 else np.uint16)
        for k, (code, _, _) in enumerate(columns):
            codes[k] = code
        no_values = [np.zeros(0, np.float32)]
        start = np.cumsum([0, *(len(lower) for _, lower, _ in columns)]).astype(np.int64)
        return cls(
            codes=codes,
            lower=np.concatenate([lower for _, lower, _ in columns] or no_values),
            upper=np.concatenate([upper for _, _, upper in columns] or no_values),
            start=start,
            sparse=_sparse_entries(codes, np.diff(start)),
        )

    def take(self, rows: NDArray[np.intp]) -> Codes:
        """Take some of the rows under the same codes."""
        codes = np.ascontiguousarray(self.codes[:, rows])
        return self._replace(codes=codes, sparse=_sparse_entries(codes, self.n_codes))


def _sparse_entries(codes: NDArray[Any], n_codes: NDArray[np.int64]) -> Sparse:
    """Find the sparse columns; shapes: `codes` (n_features, n), `n_codes` (n_features,)."""
    n_features, n_rows = codes.shape
    common = np.full(n_features, -1, np.int32)
    for k in np.flatnonzero(n_codes <= MAX_SPARSE_CODES):
        counts = np.bincount(codes[k], minlength=1)
        if counts.max() >= SPARSE_SHARE * n_rows:
            common[k] = counts.argmax()
    columns = np.flatnonzero(common >= 0)
    slots = np.where(common >= 0, n_codes + 1, 0)
    offset = np.concatenate([[0], np.cumsum(slots)]).astype(np.int32)
    row, column = np.nonzero((codes[columns] != common[columns, None]).T)
    feature = columns[column].astype(np.int32)
    slot = offset[feature] + codes[feature, row].astype(np.int32)
    return Sparse(
        common=common,
        offset=offset,
        entry_start=np.searchsorted(row, np.arange(n_rows + 1)).astype(np.int64),
        entry_slot=slot.astype(np.int32),
        entry_feature=feature,
    )


def _code(
    column: NDArray[np.float32], max_codes: int
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    """Codes of one column, and the smallest and largest value of each."""
    is_number = ~np.isnan(column)
    values = np.unique(column[is_number])
    value_index = np.searchsorted(values, column[is_number])
    if len(values) > max_codes:
        # rows below the middle of each value, in units of a bin's rows; a frequent value skips bins
        counts = np.bincount(value_index)
        rows_below = np.cumsum(counts) - counts / 2
        step = (rows_below * (max_codes / counts.sum())).astype(np.int64)
        _, bins = np.unique(np.minimum(step, max_codes - 1), return_inverse=True)
    else:
        bins = np.arange(len(values))
    lowest = np.flatnonzero(np.diff(bins, prepend=-1))
    highest = np.append(lowest[1:], len(values))[: len(lowest)] - 1
    code = np.full(len(column), len(lowest), np.int64)
    code[is_number] = bins[value_index]
    return code, values[lowest], values[highest]


@numba.njit(cache=True, nogil=True)
def between(low: float, high: float) -> Any:
    """Get the float32 threshold between two float32 values: midway, in ``[low, high)``."""
    middle = np.float32(0.5 * (np.float64(low) + np.float64(high)))
    if middle >= np.float32(high):
        return np.float32(low)
    return middle
