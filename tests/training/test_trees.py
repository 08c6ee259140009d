from __future__ import annotations

import lightgbm as lgb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

from gatewise.errors import InputError
from gatewise.models.tree_sources import float32_below
from gatewise.models.trees import TreeEnsemble

QUIET = {"verbosity": -1, "num_threads": 1, "min_data_in_leaf": 3}


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    X = X.astype(np.float32)
    X[::7, 20] = np.nan
    return X, y


@pytest.mark.parametrize("classes", [2, 10])
def test_lightgbm_margins_are_kept(digits, classes):
    X, y = digits
    goal = {"objective": "binary"} if classes == 2 else {"objective": "multiclass", "num_class": 10}
    booster = lgb.train(QUIET | goal, lgb.Dataset(X, y % classes), 20)
    ensemble = TreeEnsemble.from_lightgbm(booster)
    unseen = X.copy()
    unseen[:, 30] = np.nan  # missing where training had no missing values: NaN acts as 0
    for rows in (X, unseen):
        expected = booster.predict(rows, raw_score=True).reshape(len(rows), -1)
        np.testing.assert_allclose(ensemble.margins(rows), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("forest", [RandomForestClassifier, ExtraTreesClassifier])
def test_forest_averages_leaf_distributions(digits, forest):
    X, y = digits
    model = forest(12, random_state=0).fit(X, y)
    margins = TreeEnsemble.from_forest(model).margins(X)
    np.testing.assert_allclose(margins, model.predict_proba(X), atol=1e-6)


def test_a_single_leaf_is_a_tree(digits):
    X, y = digits
    booster = lgb.train(QUIET | {"objective": "binary"}, lgb.Dataset(X, y < 0), 1)
    ensemble = TreeEnsemble.from_lightgbm(booster)
    assert ensemble.n_nodes == 1
    np.testing.assert_allclose(ensemble.margins(X)[:, 0], booster.predict(X, raw_score=True))


def test_compact_and_parted_ensembles_say_the_same(digits):
    X, y = digits
    goal = {"objective": "multiclass", "num_class": 10}
    ensemble = TreeEnsemble.from_lightgbm(lgb.train(QUIET | goal, lgb.Dataset(X, y), 5))
    small, used = ensemble.compact()
    assert small.n_features == len(used) < X.shape[1]
    whole = ensemble.margins(X)
    np.testing.assert_array_equal(small.margins(X[:, used]), whole)
    np.testing.assert_array_equal(ensemble.select_outputs([7, 2]).margins(X), whole[:, [7, 2]])


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5}, "rf"),
        ({"zero_as_missing": True}, "zero_as_missing"),
        ({"linear_tree": True}, "linear"),
        ({"categorical_feature": [0]}, "categorical"),
    ],
)
def test_forms_without_a_flat_counterpart_are_refused(params, says):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 5, (500, 3)).astype(np.float64)
    y = (X[:, 0] % 2 == 0) ^ (X[:, 1] > 2)
    categorical = params.pop("categorical_feature", "auto")
    settings = QUIET | {"objective": "binary", "min_data_per_group": 1, "cat_smooth": 0} | params
    data = lgb.Dataset(X, y, categorical_feature=categorical, params=settings)
    booster = lgb.train(settings, data, 3)
    with pytest.raises(InputError, match=says):
        TreeEnsemble.from_lightgbm(booster)


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(width=32, allow_nan=False))
def test_rounded_thresholds_ask_the_same_question(threshold, x):
    rounded = float32_below(np.array([threshold]))[0]
    assert (np.float32(x) <= rounded) == (x <= threshold)


@st.composite
def random_ensemble(draw):
    """Trees of any shape over five columns, some of them a single leaf."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    feature, threshold, left, right, nan_left = [], [], [], [], []

    def grow(depth):
        node = len(feature)
        feature.append(-1)
        threshold.append(0.0)
        left.append(-1)
        right.append(-1)
        nan_left.append(bool(rng.random() < 0.5))
        if depth and rng.random() < 0.8:
            feature[node] = int(rng.integers(5))
            threshold[node] = float(rng.integers(-2, 3))
            left[node] = grow(depth - 1)
            right[node] = grow(depth - 1)
        return node

    roots = [grow(4) for _ in range(draw(st.integers(0, 5)))]
    n = len(feature)
    return TreeEnsemble(
        np.array(feature, np.int32), np.array(threshold, np.float32), np.array(left, np.int32),
        np.array(right, np.int32), np.array(nan_left, bool), np.ones((n, 1), np.float32),
        np.array(roots, np.int32), np.zeros(len(roots), np.int32), np.zeros(1, np.float32), 5,
    )  # fmt: skip


def walked(ensemble, row):
    """Columns asked on a row's way through every tree, one step at a time."""
    asked = set()
    for root in ensemble.roots:
        node = root
        while ensemble.feature[node] != -1:
            k = ensemble.feature[node]
            asked.add(int(k))
            goes_left = ensemble.nan_left[node] if np.isnan(row[k]) else (
                row[k] <= ensemble.threshold[node]
            )  # fmt: skip
            node = ensemble.left[node] if goes_left else ensemble.right[node]
    return asked


@settings(deadline=None)  # the first walk compiles a function
@given(random_ensemble(), st.integers(0, 2**32 - 1))
def test_columns_on_the_paths_are_those_of_a_walk(ensemble, seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(-3, 4, (20, 5)).astype(np.float32)  # many values equal a threshold
    x[rng.random(x.shape) < 0.2] = np.nan
    visited = ensemble.visited(x)
    assert visited.shape == (20, 5)
    assert [set(np.flatnonzero(v).tolist()) for v in visited] == [walked(ensemble, r) for r in x]


def test_lightgbm_paths_survive_compacting(digits):
    X, y = digits
    goal = {"objective": "multiclass", "num_class": 10}
    ensemble = TreeEnsemble.from_lightgbm(lgb.train(QUIET | goal, lgb.Dataset(X, y), 5))
    small, used = ensemble.compact()
    whole = ensemble.visited(X)
    np.testing.assert_array_equal(small.visited(X[:, used]), whole[:, used])
    np.testing.assert_array_equal(np.flatnonzero(whole.any(axis=0)), used)
    for row, mask in zip(X[::200], whole[::200], strict=True):
        assert set(np.flatnonzero(mask).tolist()) == walked(ensemble, row)
