"""Test the ranges of training values, from which implausible inputs are recognised."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise.columns import value_ranges
from gatewise.columns.value_ranges import MAX_DEVIATIONS, TrainingRanges, ValueRanges
from gatewise.errors import InputError


@pytest.mark.parametrize("max_values", [7, 1 << 20])  # row by row, and all rows at once
def test_ranges_ignore_missing_values(max_values, monkeypatch):
    monkeypatch.setattr(value_ranges, "MAX_VALUES", max_values)
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(50, 4)) * [1, 1e-3, 1e6, 1] + [0, 1e3, 0, 5]).astype(np.float32)
    x[3, 1] = np.nan
    x[:, 3] = 5.0
    ranges = ValueRanges.of_rows(x)
    np.testing.assert_array_equal(ranges.low, np.nanmin(x, axis=0))
    np.testing.assert_array_equal(ranges.high, np.nanmax(x, axis=0))
    np.testing.assert_allclose(ranges.deviation, np.nanstd(x.astype(float), axis=0), rtol=1e-5)


def test_limits_are_some_deviations_outside_the_range():
    x = np.array([[0.0, 1.0, np.nan], [4.0, 1.0, np.nan]], np.float32)
    lowest, highest = ValueRanges.of_rows(x).limits()
    # the values 0 and 4 have a deviation of 2
    assert (lowest[0], highest[0]) == (-2 * MAX_DEVIATIONS, 4 + 2 * MAX_DEVIATIONS)
    # every value of a constant column or of a column without values is plausible: no value is
    # beyond an infinite limit, and none is below or above NaN
    assert (lowest[1], highest[1]) == (-np.inf, np.inf)
    assert np.isnan([lowest[2], highest[2]]).all()


def test_a_channel_constant_in_one_window_is_not_marked_as_varying():
    windows = np.random.default_rng(0).integers(-9, 9, (6, 20, 3)).astype(np.int16)
    windows[2, :, 1] = 4
    ranges = TrainingRanges.of_rows(np.zeros((6, 2), np.float32), windows)
    assert ranges.is_varying.tolist() == [True, False, True]
    assert ranges.channels.low.tolist() == windows.min(axis=(0, 1)).tolist()


def test_half_precision_and_missing_samples_are_measured():
    x = np.random.default_rng(0).normal(size=(100_000, 2)) * [1, 300]
    deviation = ValueRanges.of_rows(x.astype(np.float16)).deviation
    np.testing.assert_allclose(deviation, x.std(axis=0), rtol=0.01)
    windows = np.zeros((6, 20, 3))
    windows[:, 3, 0] = 1.0
    windows[:, 3, 1] = np.nan
    windows[:, :, 2] = np.nan
    ranges = TrainingRanges.of_rows(np.zeros((6, 2), np.float32), windows)
    assert ranges.is_varying.tolist() == [True, False, False]


def make_arrays(n_channels):
    """Make the arrays of the ranges of two features, and of channels if there are any."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(9, 2)).astype(np.float32)
    windows = rng.normal(size=(9, 5, n_channels)) if n_channels else None
    return TrainingRanges.of_rows(rows, windows).arrays()


@pytest.mark.parametrize("n_channels", [0, 3])
def test_arrays_are_read_back(n_channels):
    arrays = make_arrays(n_channels)
    arrays_read_back = TrainingRanges.from_arrays(arrays, 2, n_channels).arrays()
    assert arrays_read_back.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(arrays_read_back[name], array)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("features", lambda arrays: arrays["features"][:2]),
        ("features", lambda arrays: arrays["features"].astype(float)),
        ("varies", lambda arrays: arrays["varies"][:2]),
        ("varies", lambda arrays: arrays["varies"].astype(int)),
        ("other", lambda arrays: arrays["varies"]),
    ],
)
def test_arrays_of_another_shape_type_or_name_are_refused(name, change):
    arrays = make_arrays(3)
    with pytest.raises(InputError):
        TrainingRanges.from_arrays(arrays | {name: change(arrays)}, 2, 3)
