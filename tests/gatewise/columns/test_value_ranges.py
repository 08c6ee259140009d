"""Value ranges of rows, and limits of plausible values."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise.columns import value_ranges
from gatewise.columns.value_ranges import MAX_DEVIATIONS, TrainingRanges, ValueRanges
from gatewise.errors import InputError

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("max_values", [7, 1 << 20])  # row by row, and all rows at once
def test_ranges_ignore_missing_values(max_values, monkeypatch):
    monkeypatch.setattr(value_ranges, "MAX_VALUES", max_values)
    x = (RNG.normal(size=(50, 4)) * [1, 1e-3, 1e6, 1] + [0, 1e3, 0, 5]).astype(np.float32)
    x[3, 1] = np.nan
    x[:, 3] = 5.0
    ranges = ValueRanges.of_rows(x)
    np.testing.assert_array_equal(ranges.low, np.nanmin(x, axis=0))
    np.testing.assert_array_equal(ranges.high, np.nanmax(x, axis=0))
    np.testing.assert_allclose(ranges.deviation, np.nanstd(x.astype(float), axis=0), rtol=1e-5)


def test_limits_are_three_deviations_outside():
    x = np.array([[0.0, 1.0, np.nan], [4.0, 1.0, np.nan]], np.float32)
    lowest, highest = ValueRanges.of_rows(x).limits()
    # the values 0 and 4 have a deviation of 2
    assert (lowest[0], highest[0]) == (-2 * MAX_DEVIATIONS, 4 + 2 * MAX_DEVIATIONS)
    # of a constant column, and of one without values, every value is plausible
    assert (lowest[1], highest[1]) == (-np.inf, np.inf)
    assert np.isnan([lowest[2], highest[2]]).all()


def test_a_channel_constant_in_one_window_is_not_marked_as_varying():
    windows = RNG.integers(-9, 9, (6, 20, 3)).astype(np.int16)
    windows[2, :, 1] = 4
    ranges = TrainingRanges.of_rows(np.zeros((6, 2), np.float32), windows)
    assert ranges.is_varying.tolist() == [True, False, True]
    assert ranges.channels.low.tolist() == windows.min(axis=(0, 1)).tolist()


def test_arrays_are_read_back_or_refused():
    rows = RNG.normal(size=(9, 2)).astype(np.float32)
    windows = RNG.normal(size=(9, 5, 3))
    for features, n_channels in ((rows, 0), (rows, 3)):
        arrays = TrainingRanges.of_rows(features, windows if n_channels else None).arrays()
        arrays_read_back = TrainingRanges.from_arrays(arrays, 2, n_channels).arrays()
        assert all(np.array_equal(arrays_read_back[name], array) for name, array in arrays.items())
    for invalid_arrays in (
        {"features": arrays["features"][:2]},
        {"features": arrays["features"].astype(float)},
        {"varies": arrays["varies"][:2]},
        {"varies": arrays["varies"].astype(int)},
        {"other": arrays["varies"]},
    ):
        with pytest.raises(InputError):
            TrainingRanges.from_arrays(arrays | invalid_arrays, 2, 3)
