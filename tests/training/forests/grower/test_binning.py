"""Codes of columns, and thresholds between their values."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gatewise_training.forests.grower.binning import Codes, threshold_between

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
COLUMNS = hnp.arrays(np.float32, st.integers(1, 40), elements=FLOATS)


@settings(deadline=None)
@given(COLUMNS, st.integers(1, 12))
def test_codes_keep_the_order_and_the_range_of_values(column, max_codes):
    codes = Codes.of_table(column[:, None], max_codes=max_codes)
    row_codes = codes.codes[0].astype(int)
    row_order = np.argsort(column, kind="stable")
    assert (np.diff(row_codes[row_order]) >= 0).all()
    assert len(codes.lower) == len(np.unique(row_codes)) <= max_codes
    np.testing.assert_array_equal(np.unique(row_codes), np.arange(len(codes.lower)))
    for code in range(len(codes.lower)):
        assert codes.lower[code] == column[row_codes == code].min()
        assert codes.upper[code] == column[row_codes == code].max()
    if len(np.unique(column)) <= max_codes:  # each value has its own code
        np.testing.assert_array_equal(codes.lower, codes.upper)


@settings(deadline=None)
@given(FLOATS, FLOATS)
def test_thresholds_lie_between_their_neighbours(value, other_value):
    low = np.float32(min(value, other_value))
    high = np.float32(max(value, other_value))
    if low < high:
        threshold = threshold_between(low, high)
        assert low <= threshold < high


def test_codes_have_the_narrowest_type_that_holds_them():
    values = np.arange(70_000, dtype=np.float32)
    # the last code of each type stands for NaN
    assert Codes.of_table(values[:255, None]).codes.dtype == np.uint8
    assert Codes.of_table(values[:256, None]).codes.dtype == np.uint16
    column_with_nan = np.append(values[:255], np.float32(np.nan))[:, None]
    assert Codes.of_table(column_with_nan).codes[0, -1] == 255  # above all others


def test_columns_of_many_values_have_even_bins():
    values = np.append(np.arange(70_000, dtype=np.float32), np.float32(np.nan))
    codes = Codes.of_table(values[:, None])
    assert codes.n_codes[0] <= 65_535  # uint16, with one code for NaN
    assert codes.codes[0, -1] == codes.n_codes[0]
    rows_per_bin = np.bincount(codes.codes[0, :-1])
    assert rows_per_bin.max() <= 2  # 70,000 rows in up to 65,535 bins


def test_rows_of_a_frequent_value_share_a_bin():
    column = np.concatenate([np.zeros(500), np.arange(1, 101)]).astype(np.float32)
    codes = Codes.of_table(column[:, None], max_codes=10)
    assert 2 <= codes.n_codes[0] <= 10  # a code for the frequent value, and others
    assert (codes.codes[0][:500] == codes.codes[0][0]).all()


def test_sparse_entries_and_prevailing_codes_give_the_table():
    rng = np.random.default_rng(1)
    x = (rng.random((200, 6)) < [0.05, 0.5, 0.1, 0.9, 0.2, 0.0]).astype(np.float32)
    x[rng.random(x.shape) < 0.02] = np.nan
    codes = Codes.of_table(x)
    sparse = codes.sparse
    # only in column 1 no value prevails
    assert (sparse.common >= 0).tolist() == [True, False, True, True, True, True]
    restored_codes = np.repeat(np.where(sparse.common < 0, 0, sparse.common)[:, None], 200, axis=1)
    for row in range(200):
        for entry in range(sparse.entry_start[row], sparse.entry_start[row + 1]):
            k = sparse.entry_feature[entry]
            restored_codes[k, row] = sparse.entry_slot[entry] - sparse.offset[k]
    is_sparse = sparse.common >= 0
    np.testing.assert_array_equal(restored_codes[is_sparse], codes.codes[is_sparse])
