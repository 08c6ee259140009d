"""Test the warning about neighbouring rows that are too similar."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.linear_model import LogisticRegression

from gatewise.errors import GroupsWarning
from gatewise_training import ConfidenceCascade
from gatewise_training.data.neighbouring_rows import neighbour_ratio, warn_of_similar_neighbours
from tests.support.shared_data import find_shared_file


def draw_windows(overlap=32, length=64):
    """Draw statistics of windows of noise whose scale depends on one of two states."""
    rng = np.random.default_rng(0)
    rows, states = [], []
    for state_number in range(24):
        signal = rng.normal(size=(1200, 3)) * (1.0 + state_number % 2)
        for start in range(0, 1200 - length, length - overlap):
            window = signal[start : start + length]
            rows.append([*window.mean(0), *window.std(0), *np.abs(window).max(0)])
            states.append(state_number % 2)
    return np.array(rows, np.float32), np.array(states)


@pytest.mark.filterwarnings("error")
@given(st.integers(0, 2**31), st.integers(1, 8), st.floats(1.1, 30.0))
def test_shuffled_tables_cause_no_warning(seed, n_columns, degrees_of_freedom):
    rng = np.random.default_rng(seed)
    x = rng.standard_t(degrees_of_freedom, size=(rng.integers(110, 400), n_columns)).astype(
        np.float32
    )
    x[:, 0] = np.round(x[:, 0])  # ties
    warn_of_similar_neighbours(x, rng.integers(0, 2, len(x)))


@pytest.mark.parametrize("load_table", [load_breast_cancer, load_digits, load_iris, load_wine])
def test_tables_sorted_by_class_have_a_high_ratio(load_table):
    x, y = load_table(return_X_y=True)
    row_order = np.argsort(y, kind="stable")
    # far above the ratio of overlapping windows, so that a sorted table gives no warning
    assert neighbour_ratio(x[row_order].astype(np.float32), y[row_order]) > 0.6


def test_overlapping_windows_have_a_low_ratio():
    # without overlap, windows are independent; with it they share three quarters of their samples
    for overlap, min_ratio, max_ratio in ((0, 0.9, 1.1), (48, 0.0, 0.4)):
        x, y = draw_windows(overlap)
        assert min_ratio < neighbour_ratio(x, y) < max_ratio
    assert neighbour_ratio(*(values[:50] for values in draw_windows())) is None  # too few rows


def test_fits_warn_once_and_never_if_groups_or_times_are_given():
    x, y = draw_windows(48)
    system = ConfidenceCascade(
        LogisticRegression(), low_cost_model="linear", n_subsets=1, random_state=0
    )
    with pytest.warns(
        GroupsWarning, match="give the groups or the times of the rows"
    ) as warning_list:
        system.fit(x, y)
    assert [warning.filename for warning in warning_list] == [__file__]
    system.fit(x, y, groups=np.arange(len(y)) // (len(y) // 24))  # one group for each signal
    system.fit(x, y, time=np.arange(len(y)))


@pytest.mark.parametrize(
    ("name", "is_similar"), [("hapt", True), ("letter", False), ("thyroid", False)]
)
def test_only_real_tables_of_overlapping_windows_have_a_low_ratio(name, is_similar):
    with np.load(find_shared_file(f"{name}.npz")) as arrays:
        x, y = arrays["X"][:5000], np.unique(arrays["y"], return_inverse=True)[1][:5000]
    ratio = neighbour_ratio(x.astype(np.float32), y)
    # on both sides of the limit for a warning, 0.5
    assert ratio < 0.4 if is_similar else ratio > 0.8
