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
from tests.support.tree_walks import find_tested_columns, find_tree_paths
from tests.support.trees import draw_trees

SILENT_PARAMETERS = {"verbosity": -1, "num_threads": 1, "min_data_in_leaf": 3}


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    X = X.astype(np.float32)
    X[::7, 20] = np.nan
    return X, y


@pytest.mark.parametrize("n_classes", [2, 10])
def test_margins_equal_those_of_lightgbm(digits, n_classes):
    X, y = digits
    objective = (
        {"objective": "binary"} if n_classes == 2 else {"objective": "multiclass", "num_class": 10}
    )
    booster = lgb.train(SILENT_PARAMETERS | objective, lgb.Dataset(X, y % n_classes), 20)
    ensemble = TreeEnsemble.from_lightgbm(booster)
    rows_with_new_nan = X.copy()
    # LightGBM treats NaN as 0 in columns that were complete in training
    rows_with_new_nan[:, 30] = np.nan
    for rows in (X, rows_with_new_nan):
        expected_margins = booster.predict(rows, raw_score=True).reshape(len(rows), -1)
        np.testing.assert_allclose(ensemble.margins(rows), expected_margins, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("forest_class", [RandomForestClassifier, ExtraTreesClassifier])
def test_margins_of_a_forest_are_its_probabilities(digits, forest_class):
    X, y = digits
    model = forest_class(12, random_state=0).fit(X, y)
    margins = TreeEnsemble.from_forest(model).margins(X)
    np.testing.assert_allclose(margins, model.predict_proba(X), atol=1e-6)


def test_trees_have_the_nodes_of_their_source_at_any_size(digits):
    """Trees of absent and of fully learned classes have a single leaf."""
    X, y = digits
    objective = {"objective": "multiclass", "num_class": 11, "min_gain_to_split": 2.0}
    booster = lgb.train(SILENT_PARAMETERS | objective, lgb.Dataset(X, y), 40)
    ensemble = TreeEnsemble.from_lightgbm(booster)
    node_counts = np.diff([*ensemble.roots, ensemble.n_nodes])
    n_leaves = [tree["num_leaves"] for tree in booster.dump_model()["tree_info"]]
    # a binary tree of n leaves has n - 1 inner nodes
    assert node_counts.tolist() == [2 * n_tree_leaves - 1 for n_tree_leaves in n_leaves]
    assert node_counts.min() == 1 < node_counts.max()
    expected_margins = booster.predict(X, raw_score=True)
    np.testing.assert_allclose(ensemble.margins(X), expected_margins, rtol=1e-5, atol=1e-5)


def test_features_may_be_named_as_fields_of_a_model_file(digits):
    """The model file ends with lines such as `threshold=3`, one per feature name."""
    X, y = digits
    names = ["threshold", "leaf_value", "num_leaves", *(f"f{k}" for k in range(61))]
    objective = {"objective": "multiclass", "num_class": 10}
    boosters = [
        lgb.train(
            SILENT_PARAMETERS | objective,
            lgb.Dataset(np.roll(X, 20, axis=1), y, feature_name=feature_names),
            3,
        )
        for feature_names in (names, "auto")
    ]
    named_trees, unnamed_trees = map(TreeEnsemble.from_lightgbm, boosters)
    np.testing.assert_array_equal(named_trees.threshold, unnamed_trees.threshold)
    np.testing.assert_array_equal(named_trees.value, unnamed_trees.value)


def test_a_compact_ensemble_has_the_same_margins(digits):
    X, y = digits
    objective = {"objective": "multiclass", "num_class": 10}
    ensemble = TreeEnsemble.from_lightgbm(
        lgb.train(SILENT_PARAMETERS | objective, lgb.Dataset(X, y), 5)
    )
    compact_ensemble, used_columns = ensemble.compact()
    assert compact_ensemble.n_features == len(used_columns) < X.shape[1]
    np.testing.assert_array_equal(compact_ensemble.margins(X[:, used_columns]), ensemble.margins(X))
    visited_mask = ensemble.visited_features(X)
    np.testing.assert_array_equal(
        compact_ensemble.visited_features(X[:, used_columns]), visited_mask[:, used_columns]
    )
    np.testing.assert_array_equal(np.flatnonzero(visited_mask.any(axis=0)), used_columns)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5}, "rf"),
        ({"zero_as_missing": True}, "zero_as_missing"),
        ({"linear_tree": True}, "linear"),
        ({"categorical_feature": [0]}, "categorical"),
    ],
)
def test_models_without_a_flat_form_are_refused(parameters, message):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 5, (500, 3)).astype(np.float64)
    y = (X[:, 0] % 2 == 0) ^ (X[:, 1] > 2)
    categorical_feature = parameters.pop("categorical_feature", "auto")
    all_parameters = (
        SILENT_PARAMETERS
        | {"objective": "binary", "min_data_per_group": 1, "cat_smooth": 0}
        | parameters
    )
    data_set = lgb.Dataset(X, y, categorical_feature=categorical_feature, params=all_parameters)
    booster = lgb.train(all_parameters, data_set, 3)
    with pytest.raises(InputError, match=message):
        TreeEnsemble.from_lightgbm(booster)


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(width=32, allow_nan=False))
def test_rounded_thresholds_split_float32_values_equally(threshold, value):
    rounded_threshold = float32_below(np.array([threshold]))[0]
    assert (np.float32(value) <= rounded_threshold) == (value <= threshold)


@settings(deadline=None)  # the first call compiles a function
@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([0, 1, 255, 256, 257, 1000]))
def test_all_evaluations_agree_with_a_walk_through_the_trees(seed, has_mixed_outputs, n_rows):
    trees, x = draw_trees(seed, has_mixed_outputs=has_mixed_outputs)
    visited_mask = trees.visited_features(x)
    node_paths = [find_tree_paths(trees, row) for row in x]
    assert [set(np.flatnonzero(mask).tolist()) for mask in visited_mask] == [
        find_tested_columns(trees, row) for row in x
    ]
    leaf_of_row, first_visits = trees.first_visits(x)
    assert leaf_of_row.T.tolist() == [
        [nodes[-1] for nodes in nodes_of_path] for nodes_of_path in node_paths
    ]
    np.testing.assert_array_equal(first_visits < trees.n_trees, visited_mask)
    assert trees.splits_passed(x).tolist() == [
        sum(map(len, nodes_of_path)) - trees.n_trees for nodes_of_path in node_paths
    ]
    # the kernel evaluates rows in blocks of some hundreds
    x = np.resize(x, (n_rows, trees.n_features))
    visited_mask = trees.visited_features(x)
    margins, mask_of_one_pass = trees.run_and_visit(x)
    np.testing.assert_array_equal(margins.view(np.uint32), trees.margins(x).view(np.uint32))
    np.testing.assert_array_equal(mask_of_one_pass, visited_mask)


@given(st.integers(0, 2**31), st.booleans())
def test_centred_trees_give_the_same_margins_from_smaller_leaves(seed, has_mixed_outputs):
    trees, x = draw_trees(seed, has_mixed_outputs=has_mixed_outputs)
    centred_trees = trees.with_centred_leaves()
    tolerance = 1e-6 * trees.n_trees * float(np.abs(trees.value).max() + np.abs(trees.base).max())
    np.testing.assert_allclose(centred_trees.margins(x), trees.margins(x), rtol=0, atol=tolerance)
    for tree, (first_node, next_root) in enumerate(
        pairwise([*trees.roots.tolist(), trees.n_nodes])
    ):
        is_leaf = trees.feature[first_node:next_root] < 0
        leaves_before, leaves_after = (
            ensemble.value[first_node:next_root][is_leaf] for ensemble in (trees, centred_trees)
        )
        if trees.output[tree] < 0:
            np.testing.assert_array_equal(leaves_after, leaves_before)
        else:
            assert np.isclose(leaves_after[:, 0].max(), -leaves_after[:, 0].min(), atol=tolerance)
            assert np.isclose(
                np.ptp(leaves_after[:, 0]), np.ptp(leaves_before[:, 0]), atol=tolerance
            )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.booleans())
def test_byte_leaves_are_close_and_can_be_packed(seed, has_mixed_outputs):
    trees, _ = draw_trees(seed, has_mixed_outputs=has_mixed_outputs)
    is_leaf = trees.feature < 0
    rounded_trees = trees.with_byte_leaves()
    leaves_before, leaves_after = trees.value[is_leaf], rounded_trees.value[is_leaf]
    largest_value = np.abs(leaves_before).max()
    # A leaf changes by half a step, the largest by a step of at most 1/64 of its value.
    assert np.abs(leaves_after - leaves_before).max() <= largest_value / 64
    is_not_largest = np.abs(leaves_before) < 0.97 * largest_value
    changes = np.abs(leaves_after - leaves_before)[is_not_largest]
    assert changes.max(initial=0) <= largest_value / 128
    step_counts, step = byte_leaves(leaves_after)
    np.testing.assert_array_equal(step_counts.astype(np.float32) * step, leaves_after)
    trees_rounded_twice = rounded_trees.with_byte_leaves()
    np.testing.assert_array_equal(trees_rounded_twice.value[is_leaf], leaves_after)
    assert leaves_after.dtype == np.float32
    for unfit_value in (np.nan, np.inf, 1 / 3 + 100):
        assert byte_leaves(np.array([1.0, 0.5, unfit_value], np.float32)) is None
    step_counts, step = byte_leaves(np.zeros(3, np.float32))
    assert (step_counts.tolist(), step) == ([0, 0, 0], 1)
