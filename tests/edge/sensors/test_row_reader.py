"""Instances of JSON values and arrays are matched by name or order, and errors name the value."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_edge.sensors.row_reader import read_arrays, read_row

COLUMN_NAMES = ("a", "b")


@pytest.mark.parametrize(
    ("row", "expected_values"),
    [
        ({"b": 2, "x": "ignored", "a": 1.5}, [1.5, 2.0]),
        ({"b": 2}, [np.nan, 2.0]),
        ([1, 2], [1.0, 2.0]),
        ([None, np.nan], [np.nan, np.nan]),
        ([[10**400], [-(10**400)]], [np.inf, -np.inf]),  # too large for a float
    ],
)
def test_rows_of_json_are_read_by_name_or_order(row, expected_values):
    np.testing.assert_array_equal(read_row(row, COLUMN_NAMES), expected_values)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"x": 1}, "none of the features, such as 'a'"),
        ([1], "an array of 2 numbers"),
        (3, "an array of 2 numbers"),
        ("ab", "an array of 2 numbers"),
        ([1, "2"], "feature 'b' is '2', not a number"),
        ([1, True], "feature 'b' is 'True', not a number"),
        ([1, [2]], "not a number"),
    ],
)
def test_malformed_row_is_refused(row, message):
    with pytest.raises(InputError, match=message):
        read_row(row, COLUMN_NAMES)


def test_arrays_are_read_flat(tmp_path):
    names = [f"instance[{i}]" for i in range(6)]
    X = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    np.save(tmp_path / "a.npy", X)
    np.savez(tmp_path / "a.npz", X=X)
    np.savez(tmp_path / "b.npz", Y=X)
    for name in ("a.npy", "a.npz"):
        assert read_arrays(tmp_path / name, names).tolist() == X.reshape(2, 6).tolist()
    assert read_row(X[1].tolist(), names).tolist() == X[1].ravel().tolist()
    for name, n_names, message in (
        ("b.npz", 6, "no array 'X'"),
        ("c.npy", 6, "does not exist"),
        ("a.npy", 5, "an instance must have 5 values"),
    ):
        with pytest.raises(InputError, match=message):
            read_arrays(tmp_path / name, names[:n_names])
