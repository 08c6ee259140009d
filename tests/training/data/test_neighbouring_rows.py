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
from tests.support.shared_data import shared_data


def windows(overlap=32, length=64):
    """Statistics of windows of a noise that two states colour, 12 stretches of each."""
    rng = np.random.default_rng(0)
    rows, labels = [], []
    for stretch in range(24):
        signal = rng.normal(size=(1200, 3)) * (1.0 + stretch % 2)
        for start in range(0, 1200 - length, length - overlap):
            part = signal[start : start + length]
            rows.append([*part.mean(0), *part.std(0), *np.abs(part).max(0)])
            labels.append(stretch % 2)
    return np.array(rows, np.float32), np.array(labels)


@pytest.mark.filterwarnings("error")
@given(st.integers(0, 2**31), st.integers(1, 8), st.floats(1.1, 30.0))
def test_no_shuffled_table_is_suspected(seed, k, freedom):
    rng = np.random.default_rng(seed)
    x = rng.standard_t(freedom, size=(rng.integers(110, 400), k)).astype(np.float32)
    x[:, 0] = np.round(x[:, 0])  # ties
    warn_of_similar_neighbours(x, rng.integers(0, 2, len(x)))


@pytest.mark.parametrize("load", [load_breast_cancer, load_digits, load_iris, load_wine])
def test_files_sorted_by_class_are_not_suspected(load):
    x, y = load(return_X_y=True)
    order = np.argsort(y, kind="stable")
    assert neighbour_ratio(x[order].astype(np.float32), y[order]) > 0.6


def test_windows_that_overlap_are_told_from_those_that_do_not():
    for overlap, least, most in ((0, 0.9, 1.1), (48, 0.0, 0.4)):
        x, y = windows(overlap)
        assert least < neighbour_ratio(x, y) < most
    assert neighbour_ratio(*(part[:50] for part in windows())) is None  # too few to tell


def test_a_fit_warns_once_and_not_with_groups():
    x, y = windows(48)
    system = ConfidenceCascade(
        LogisticRegression(), low_cost_model="linear", n_subsets=1, random_state=0
    )
    with pytest.warns(GroupsWarning, match="give the groups or the times of the rows") as found:
        system.fit(x, y)
    assert [w.filename for w in found] == [__file__]
    system.fit(x, y, groups=np.arange(len(y)) // (len(y) // 24))
    system.fit(x, y, time=np.arange(len(y)))


@pytest.mark.parametrize(("name", "alike"), [("hapt", True), ("letter", False), ("thyroid", False)])
def test_real_files_are_told_apart(name, alike):
    with np.load(shared_data(f"{name}.npz")) as data:
        x, y = data["X"][:5000], np.unique(data["y"], return_inverse=True)[1][:5000]
    ratio = neighbour_ratio(x.astype(np.float32), y)
    assert ratio < 0.4 if alike else ratio > 0.8
