"""Test the warning about neighbouring rows that are too similar.

If such rows are divided at random, a model is validated on rows like those that it was fitted on,
and its accuracy looks too good. The tested ratio compares the differences of neighbouring rows with
those of random rows of a class. Windows that overlap have a low ratio.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.linear_model import LogisticRegression

from gatewise.errors import GroupsWarning
from gatewise_training import ConfidenceCascade
from gatewise_training.data.neighbouring_rows import (
    MAX_SIMILAR_RATIO,
    MIN_PAIRS,
    neighbour_ratio,
    warn_of_similar_neighbours,
)
from tests.support.shared_data import find_shared_file

#: Number of samples of a window.
WINDOW_SAMPLES = 64
#: Number of signals; all have the same number of windows.
N_SIGNALS = 24


def draw_windows(overlap):
    """Compute statistics of windows of noise. The scale of the noise depends on the state, 0 or 1.

    Neighbouring windows of a signal share `overlap` samples.
    """
    rng = np.random.default_rng(0)
    rows, states = [], []
    for signal_number in range(N_SIGNALS):
        state = signal_number % 2
        signal = rng.normal(size=(1200, 3)) * (1.0 + state)
        for start in range(0, 1200 - WINDOW_SAMPLES, WINDOW_SAMPLES - overlap):
            window = signal[start : start + WINDOW_SAMPLES]
            rows.append([*window.mean(0), *window.std(0), *np.abs(window).max(0)])
            states.append(state)
    return np.array(rows, np.float32), np.array(states)


@pytest.mark.filterwarnings("error")
@given(
    seed=st.integers(0, 2**31),
    n_columns=st.integers(1, 8),
    degrees_of_freedom=st.floats(1.1, 30.0),  # from very many outliers to nearly none
)
def test_shuffled_tables_cause_no_warning(seed, n_columns, degrees_of_freedom):
    rng = np.random.default_rng(seed)
    # of fewer rows there may be too few neighbours of one class for a ratio
    n_rows = rng.integers(110, 400)
    x = rng.standard_t(degrees_of_freedom, size=(n_rows, n_columns)).astype(np.float32)
    x[:, 0] = np.round(x[:, 0])  # ties
    warn_of_similar_neighbours(x, rng.integers(0, 2, len(x)))


@pytest.mark.parametrize("load_table", [load_breast_cancer, load_digits, load_iris, load_wine])
def test_tables_sorted_by_class_have_a_high_ratio(load_table):
    x, y = load_table(return_X_y=True)
    row_order = np.argsort(y, kind="stable")
    # above the limit with a margin, so that a sorted table gives no warning
    assert neighbour_ratio(x[row_order].astype(np.float32), y[row_order]) > MAX_SIMILAR_RATIO + 0.1


# without overlap, windows are independent; with 48 samples they share three quarters
@pytest.mark.parametrize(("overlap", "low", "high"), [(0, 0.9, 1.1), (48, 0.0, 0.4)])
def test_overlapping_windows_have_a_low_ratio(overlap, low, high):
    assert low < neighbour_ratio(*draw_windows(overlap)) < high


def test_too_few_rows_have_no_ratio():
    x, y = draw_windows(48)
    assert neighbour_ratio(x[:MIN_PAIRS], y[:MIN_PAIRS]) is None  # one pair less than rows


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
    signal_of_row = np.arange(len(y)) // (len(y) // N_SIGNALS)
    system.fit(x, y, groups=signal_of_row)
    system.fit(x, y, time=np.arange(len(y)))


@pytest.mark.parametrize(
    ("name", "is_similar"), [("hapt", True), ("letter", False), ("thyroid", False)]
)
def test_only_real_tables_of_overlapping_windows_have_a_low_ratio(name, is_similar):
    with np.load(find_shared_file(f"{name}.npz")) as arrays:
        x, y = arrays["X"][:5000], np.unique(arrays["y"], return_inverse=True)[1][:5000]
    ratio = neighbour_ratio(x.astype(np.float32), y)
    # far from the limit for a warning
    assert ratio < MAX_SIMILAR_RATIO - 0.1 if is_similar else ratio > MAX_SIMILAR_RATIO + 0.3
