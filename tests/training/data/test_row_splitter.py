"""Test the splits of rows by groups and times and the errors of means of groups."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise.errors import InputError
from gatewise_training.data.row_splitter import RowSplitter, _make_splitter


@pytest.mark.slow
@given(
    group_sizes=st.lists(st.integers(1, 9), min_size=2, max_size=30),
    seed=st.integers(0, 2**31 - 2),
    has_times=st.booleans(),
)
def test_no_group_is_on_both_sides_of_any_split(group_sizes, seed, has_times):
    rng = np.random.default_rng(seed)
    groups = np.repeat(rng.permutation(len(group_sizes)), group_sizes)
    row_order = rng.permutation(len(groups))
    y = rng.integers(0, 3, len(groups))
    splitter = RowSplitter.from_arrays(
        len(groups), groups[row_order], groups[row_order] if has_times else None
    )
    splits = [
        *splitter.folds(y, 5, seed),
        *splitter.folds(None, 5, seed),
        splitter.hold_out(y, 5, seed),
    ]
    splits.append(splitter.cut(splitter.order(np.random.RandomState(0)), 1, 2))
    for fit_rows, unseen_rows in splits:
        assert len(fit_rows)
        assert len(unseen_rows)
        assert not set(splitter.groups[fit_rows]) & set(splitter.groups[unseen_rows])
        if has_times:
            assert splitter.time[fit_rows].max() < splitter.time[unseen_rows].min()
    fold_of_row = splitter.inner_folds(seed)
    assert all(np.ptp(fold_of_row[splitter.groups == group]) == 0 for group in set(groups.tolist()))
    if not has_times:  # every row is unseen once
        unseen_rows = np.concatenate(
            [unseen_rows_of_fold for _, unseen_rows_of_fold in splitter.folds(y, 5, seed)]
        )
        assert sorted(unseen_rows) == list(range(len(groups)))


def test_classes_of_several_groups_are_in_the_fit_rows_of_all_folds():
    groups = np.repeat(np.arange(12), 10)
    y = np.zeros(120, int)
    y[[3, 113]] = 1  # a rare class in two groups
    for seed in range(30):
        for fit_rows, _ in RowSplitter.from_arrays(120, groups).folds(y, 5, seed):
            assert set(y[fit_rows]) == {0, 1}


def test_rows_of_one_time_are_never_split():
    days = pd.Series(pd.to_datetime(["2024-01-02", "2024-01-01", "2024-01-03"] * 4))
    splitter = RowSplitter.from_arrays(12, time=days)
    early_rows, late_rows = splitter.hold_out(np.zeros(12, int), 5, 0)
    assert set(days[early_rows].dt.day) == {1, 2}
    # a fifth of 12 rows would split a day, so that the last day is held out
    assert set(days[late_rows].dt.day) == {3}
    assert np.all(np.diff(splitter.time[splitter.order(None)]) >= 0)


def test_the_error_of_a_mean_is_computed_from_groups():
    """For groups of equal size, the error is the standard error of the group means."""
    rng = np.random.default_rng(0)
    groups, group_shifts = np.repeat(np.arange(30), 20), rng.normal(size=30)
    values = group_shifts[groups] + rng.normal(size=600)
    splitter = RowSplitter.from_arrays(600, groups)
    group_means = splitter.group_means(values)
    row_error = values.std() / 600**0.5
    group_error = splitter.clustered_error((values - values.mean()) / 600)
    # the factor of t with 29 degrees of freedom is 1.02
    assert group_error == pytest.approx(group_means.std(ddof=1) / 30**0.5, rel=0.03)
    # the variance is 1 between groups and 1 within, so that the ratio is near sqrt(20 / 2)
    assert group_error > 2.5 * row_error
    splitter_of_three_groups = RowSplitter.from_arrays(600, groups % 3)
    standard_error = splitter_of_three_groups.group_means(values).std(ddof=1) / 3**0.5
    # t with 2 degrees of freedom increases the error
    assert (
        splitter_of_three_groups.clustered_error((values - values.mean()) / 600)
        > 1.3 * standard_error
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": [1, 2]}, r"one value for each of the 3 rows, not shape \(2,\)"),
        ({"groups": ["a", "a", "a"]}, r"groups has one value only \('a'\)"),
        ({"groups": ["a", None, "b"]}, r"groups is missing in row 1 \(1 row in all\)"),
        ({"groups": pd.array(["a", pd.NA, "b"])}, "groups is missing in row 1"),
        ({"time": [1.0, np.nan, 2.0]}, "time is missing in row 1"),
        ({"time": ["10", "9", "8"]}, "time must hold numbers or dates, not text"),
        ({"time": [5, 5, 5]}, r"time has one value only \(5\)"),
    ],
)
def test_invalid_groups_and_times_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        RowSplitter.from_arrays(3, **options)


def test_groups_that_overlap_in_time_are_refused():
    splitter = RowSplitter.from_arrays(6, groups=[0, 1, 0, 1, 0, 1], time=[1, 2, 3, 4, 5, 6])
    with pytest.raises(InputError, match="give groups or time, not both"):
        splitter.hold_out(np.zeros(6, int), 5, 0)


def test_groups_in_training_and_validation_rows_are_found_in_any_type():
    training_groups = np.array(["1", "2", "A7", "2"], object)
    validation = np.zeros((3, 1)), [0, 1, 0], np.array([1, 2, 1])
    with pytest.raises(InputError, match=r"group '1' has training and validation rows \(2 such"):
        _make_splitter(4, training_groups, None, validation)
