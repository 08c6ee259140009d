"""Columns as small integer codes, which the grower sorts and counts instead of floats.

Columns of up to 65,535 distinct values have one code per value and lose no split. Columns with
more values are divided into bins with about equal numbers of rows. A threshold lies midway
between the largest value on its left and the smallest value on its right.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

#: Maximum number of codes of a column; uint16 has room for one more, the code of NaN.
MAX_CODES = 65535

#: Maximum number of codes of a sparse column; all of them are scanned at each node.
MAX_SPARSE_CODES = 15

#: Smallest share of rows with the prevailing code at which a column counts as sparse. At most a
#: quarter of the rows then have entries.
MIN_SPARSE_SHARE = 0.75


class Sparse(NamedTuple):
    """Entries of sparse columns that differ from the column's prevailing code, row by row.

    All sparse columns are counted at a node in one pass over the few entries of its rows. Each
    column has a slot for each of its codes.
    """

    common: NDArray[np.int32]  # (n_features,): prevailing code; -1 for a column that is not sparse
    # (n_features + 1,): first slot of each column; the last slot of a column is for NaN
    offset: NDArray[np.int32]
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

    # (n_features, n): uint8 if all columns have at most 255 codes, else uint16; the code of NaN is
    # ``n_codes[k]``, above all others
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
        """Number of codes of each column, without the code of NaN, shape (n_features,)."""
        return np.diff(self.start)

    @classmethod
    def of_table(cls, x: NDArray[np.float32], *, max_codes: int = MAX_CODES) -> Codes:
        """Code the columns of a table, (n, n_features)."""
        columns = [_code_column(np.ascontiguousarray(column), max_codes) for column in x.T]
        n_codes = np.array([len(column.lower) for column in columns], np.int64)
        code_type = np.uint8 if n_codes.max(initial=0) <= 255 else np.uint16
        codes = np.empty((x.shape[1], len(x)), code_type)
        for k, column in enumerate(columns):
            codes[k] = column.codes
        no_values = [np.zeros(0, np.float32)]
        return cls(
            codes=codes,
            lower=np.concatenate([column.lower for column in columns] or no_values),
            upper=np.concatenate([column.upper for column in columns] or no_values),
            start=np.append(0, np.cumsum(n_codes)),
            sparse=_find_sparse_columns(codes, n_codes),
        )

    def take(self, rows: NDArray[np.intp]) -> Codes:
        """Select rows, which keep their codes."""
        codes = np.ascontiguousarray(self.codes[:, rows])
        return self._replace(codes=codes, sparse=_find_sparse_columns(codes, self.n_codes))


def _find_sparse_columns(codes: NDArray[Any], n_codes: NDArray[np.int64]) -> Sparse:
    """Find the sparse columns; shapes: `codes` (n_features, n), `n_codes` (n_features,)."""
    n_features, n_rows = codes.shape
    common_code = np.full(n_features, -1, np.int32)
    for k in np.flatnonzero(n_codes <= MAX_SPARSE_CODES):
        counts = np.bincount(codes[k], minlength=1)
        if counts.max() >= MIN_SPARSE_SHARE * n_rows:
            common_code[k] = counts.argmax()
    columns = np.flatnonzero(common_code >= 0)
    n_slots = np.where(common_code >= 0, n_codes + 1, 0)
    offset = np.concatenate([[0], np.cumsum(n_slots)]).astype(np.int32)
    entry_rows, entry_columns = np.nonzero((codes[columns] != common_code[columns, None]).T)
    entry_feature = columns[entry_columns].astype(np.int32)
    entry_slot = offset[entry_feature] + codes[entry_feature, entry_rows].astype(np.int32)
    return Sparse(
        common=common_code,
        offset=offset,
        entry_start=np.searchsorted(entry_rows, np.arange(n_rows + 1)).astype(np.int64),
        entry_slot=entry_slot.astype(np.int32),
        entry_feature=entry_feature,
    )


class _CodedColumn(NamedTuple):
    """One column as codes, with the smallest and the largest value of each code."""

    codes: NDArray[np.int64]  # (n,)
    lower: NDArray[np.float32]  # (n_codes,)
    upper: NDArray[np.float32]  # (n_codes,)


def _code_column(column: NDArray[np.float32], max_codes: int) -> _CodedColumn:
    """Give each value its own code or, if there are too many, each code equally many rows."""
    is_number = ~np.isnan(column)
    values = np.unique(column[is_number])
    value_index = np.searchsorted(values, column[is_number])
    if len(values) > max_codes:
        # a value's bin follows from the number of rows below the middle of its rows; bins that a
        # frequent value skips are removed
        row_counts = np.bincount(value_index)
        n_below = np.cumsum(row_counts) - row_counts / 2
        even_bins = (n_below * (max_codes / row_counts.sum())).astype(np.int64)
        _, bin_of_value = np.unique(np.minimum(even_bins, max_codes - 1), return_inverse=True)
    else:
        bin_of_value = np.arange(len(values))
    lowest_index = np.flatnonzero(np.diff(bin_of_value, prepend=-1))
    highest_index = np.append(lowest_index[1:], len(values))[: len(lowest_index)] - 1
    codes = np.full(len(column), len(lowest_index), np.int64)
    codes[is_number] = bin_of_value[value_index]
    return _CodedColumn(codes, values[lowest_index], values[highest_index])


@numba.njit(cache=True, nogil=True)
def threshold_between(low: float, high: float) -> Any:
    """Compute the float32 threshold midway between two float32 values, in ``[low, high)``."""
    midpoint = np.float32(0.5 * (np.float64(low) + np.float64(high)))
    if midpoint >= np.float32(high):
        return np.float32(low)
    return midpoint
