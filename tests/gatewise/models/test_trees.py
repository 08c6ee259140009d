"""Flat tree ensembles, compared with their source libraries and with a walk through the trees."""

from __future__ import annotations

from itertools import pairwise

import lightgbm as lgb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

from gatewise.errors import InputError
from gatewise.models.tree_sources import float32_below
from gatewise.models.trees import TreeEnsemble, byte_leaves
from tests.support.tree_walks import columns_of, tree_paths
from tests.support.trees import random_trees

SILENT = {"verbosity": -1, "num_threads": 1, "min_data_in_leaf": 3}


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    X = X.astype(np.float32)
    X[::7, 20] = np.nan
    return X, y


@pytest.mark.parametrize("classes", [2, 10])
def test_margins_equal_those_of_lightgbm(digits, classes):
    X, y = digits
    objective = (
        {"objective": "binary"} if classes == 2 else {"objective": "multiclass", "num_class": 10}
    )
    booster = lgb.train(SILENT | objective, lgb.Dataset(X, y % classes), 20)
    ensemble = TreeEnsemble.from_lightgbm(booster)
    unseen = X.copy()
    unseen[:, 30] = np.nan  # LightGBM treats NaN as 0 in columns that were complete in training
    for rows in (X, unseen):
        expected = booster.predict(rows, raw_score=True).reshape(len(rows), -1)
        np.testing.assert_allclose(ensemble.margins(rows), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("forest", [RandomForestClassifier, ExtraTreesClassifier])
def test_margins_of_a_forest_are_its_probabilities(digits, forest):
    X, y = digits
    model = forest(12, random_state=0).fit(X, y)
    margins = TreeEnsemble.from_forest(model).margins(X)
    np.testing.assert_allclose(margins, model.predict_proba(X), atol=1e-6)


def test_trees_have_the_nodes_of_their_source_at_any_size(digits):
    """Trees of absent and of fully learned classes have a single leaf."""
    X, y = digits
    objective = {"objective": "multiclass", "num_class": 11, "min_gain_to_split": 2.0}
    booster = lgb.train(SILENT | objective, lgb.Dataset(X, y), 40)
    ensemble = TreeEnsemble.from_lightgbm(booster)
    sizes = np.diff([*ensemble.roots, ensemble.n_nodes])
    n_leaves = [tree["num_leaves"] for tree in booster.dump_model()["tree_info"]]
    assert sizes.tolist() == [2 * leaves - 1 for leaves in n_leaves]
    assert sizes.min() == 1 < sizes.max()
    expected = booster.predict(X, raw_score=True)
    np.testing.assert_allclose(ensemble.margins(X), expected, rtol=1e-5, atol=1e-5)


def test_features_may_be_named_as_fields_of_a_model_file(digits):
    """The model file ends with lines such as `threshold=3`, one per feature name."""
    X, y = digits
    names = ["threshold", "leaf_value", "num_leaves", *(f"f{k}" for k in range(61))]
    objective = {"objective": "multiclass", "num_class": 10}
    boosters = [
        lgb.train(
            SILENT | objective,
            lgb.Dataset(np.roll(X, 20, axis=1), y, feature_name=feature_names),
            3,
        )
        for feature_names in (names, "auto")
    ]
    named, unnamed = map(TreeEnsemble.from_lightgbm, boosters)
    np.testing.assert_array_equal(named.threshold, unnamed.threshold)
    np.testing.assert_array_equal(named.value, unnamed.value)


def test_a_compact_ensemble_has_the_same_margins(digits):
    X, y = digits
    objective = {"objective": "multiclass", "num_class": 10}
    ensemble = TreeEnsemble.from_lightgbm(lgb.train(SILENT | objective, lgb.Dataset(X, y), 5))
    compact, used = ensemble.compact()
    assert compact.n_features == len(used) < X.shape[1]
    np.testing.assert_array_equal(compact.margins(X[:, used]), ensemble.margins(X))
    visited = ensemble.visited_features(X)
    np.testing.assert_array_equal(compact.visited_features(X[:, used]), visited[:, used])
    np.testing.assert_array_equal(np.flatnonzero(visited.any(axis=0)), used)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5}, "rf"),
        ({"zero_as_missing": True}, "zero_as_missing"),
        ({"linear_tree": True}, "linear"),
        ({"categorical_feature": [0]}, "categorical"),
    ],
)
def test_models_without_a_flat_form_are_refused(params, message):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 5, (500, 3)).astype(np.float64)
    y = (X[:, 0] % 2 == 0) ^ (X[:, 1] > 2)
    categorical = params.pop("categorical_feature", "auto")
    settings = SILENT | {"objective": "binary", "min_data_per_group": 1, "cat_smooth": 0} | params
    data = lgb.Dataset(X, y, categorical_feature=categorical, params=settings)
    booster = lgb.train(settings, data, 3)
    with pytest.raises(InputError, match=message):
        TreeEnsemble.from_lightgbm(booster)


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(width=32, allow_nan=False))
def test_rounded_thresholds_split_float32_values_equally(threshold, x):
    rounded = float32_below(np.array([threshold]))[0]
    assert (np.float32(x) <= rounded) == (x <= threshold)


@settings(deadline=None)  # the first call compiles a function
@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([0, 1, 255, 256, 257, 1000]))
def test_all_evaluations_agree_with_a_walk_through_the_trees(seed, mixed, n):
    trees, x = random_trees(seed, has_mixed_outputs=mixed)
    visited = trees.visited_features(x)
    walks = [tree_paths(trees, row) for row in x]
    assert [set(np.flatnonzero(mask).tolist()) for mask in visited] == [
        columns_of(trees, row) for row in x
    ]
    leaf, first = trees.first_visits(x)
    assert leaf.T.tolist() == [[nodes[-1] for nodes in walk] for walk in walks]
    np.testing.assert_array_equal(first < trees.n_trees, visited)
    assert trees.splits_passed(x).tolist() == [
        sum(map(len, walk)) - trees.n_trees for walk in walks
    ]
    x = np.resize(x, (n, trees.n_features))  # the kernel evaluates rows in blocks of some hundreds
    visited = trees.visited_features(x)
    margins, repeated = trees.run_and_visit(x)
    np.testing.assert_array_equal(margins.view(np.uint32), trees.margins(x).view(np.uint32))
    np.testing.assert_array_equal(repeated, visited)


@given(st.integers(0, 2**31), st.booleans())
def test_centred_trees_give_the_same_margins_from_smaller_leaves(seed, mixed):
    trees, x = random_trees(seed, has_mixed_outputs=mixed)
    centred = trees.with_centred_leaves()
    tolerance = 1e-6 * trees.n_trees * float(np.abs(trees.value).max() + np.abs(trees.base).max())
    np.testing.assert_allclose(centred.margins(x), trees.margins(x), rtol=0, atol=tolerance)
    for tree, (begin, end) in enumerate(pairwise([*trees.roots.tolist(), trees.n_nodes])):
        leaf = trees.feature[begin:end] < 0
        before, after = (ensemble.value[begin:end][leaf] for ensemble in (trees, centred))
        if trees.output[tree] < 0:
            np.testing.assert_array_equal(after, before)
        else:
            assert np.isclose(after[:, 0].max(), -after[:, 0].min(), atol=tolerance)
            assert np.isclose(np.ptp(after[:, 0]), np.ptp(before[:, 0]), atol=tolerance)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.booleans())
def test_byte_leaves_are_close_and_can_be_packed(seed, mixed):
    trees, _ = random_trees(seed, has_mixed_outputs=mixed)
    leaf = trees.feature < 0
    rounded = trees.with_byte_leaves()
    before, after = trees.value[leaf], rounded.value[leaf]
    largest = np.abs(before).max()
    # A leaf changes by half a step, the largest by a step of at most 1/64 of its value.
    assert np.abs(after - before).max() <= largest / 64
    assert np.abs(after - before)[np.abs(before) < largest * 0.97].max(initial=0) <= largest / 128
    number, step = byte_leaves(after)
    np.testing.assert_array_equal(number.astype(np.float32) * step, after)
    repeated = rounded.with_byte_leaves()
    np.testing.assert_array_equal(repeated.value[leaf], after)
    assert after.dtype == np.float32
    for inexact in (np.nan, np.inf, 1 / 3 + 100):
        assert byte_leaves(np.array([1.0, 0.5, inexact], np.float32)) is None
    number, step = byte_leaves(np.zeros(3, np.float32))
    assert (number.tolist(), step) == ([0, 0, 0], 1)
