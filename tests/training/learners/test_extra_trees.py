"""Compiled extra-trees, compared with scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_wine
from sklearn.ensemble import ExtraTreesClassifier

from gatewise_export.packing.converters import convert_to_graph
from gatewise_training.learners.extra_trees import fit_extra_trees
from gatewise_training.learners.high_cost_model import HighCostModel
from tests.support.bundle_files import run_onnx


def split_in_halves(load_table):
    """Split up to 900 rows of a data set into training rows and new rows."""
    x, y = load_table(return_X_y=True)
    row_order = np.random.default_rng(0).permutation(len(y))[:900]
    x, y = x[row_order].astype(np.float32), y[row_order]
    n_half = len(y) // 2
    return x[:n_half], y[:n_half], x[n_half:], y[n_half:]


def compute_log_loss(probabilities, y):
    """Compute the mean log loss, with probabilities of at least 0.001."""
    return -np.log(np.maximum(probabilities[np.arange(len(y)), y], 1e-3)).mean()


@pytest.mark.slow
def test_forests_are_as_good_and_as_large_as_scikit_learns():
    for load_table in (load_wine, load_digits):
        x, y, x_new, y_new = split_in_halves(load_table)
        settings = {"weight": np.ones(len(y)), "n_trees": 150, "min_rows": 2, "seed": 0}
        n_classes = int(y.max()) + 1
        trees = fit_extra_trees(x, y, n_classes, **settings)
        forest = ExtraTreesClassifier(150, min_samples_leaf=2, random_state=0).fit(x, y)
        probabilities = trees.margins(x_new)
        forest_probabilities = forest.predict_proba(x_new)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
        # the forests draw different thresholds, so their figures differ a little
        assert abs(probabilities - forest_probabilities).mean() < 0.03
        expected_loss = compute_log_loss(forest_probabilities, y_new)
        assert compute_log_loss(probabilities, y_new) == pytest.approx(expected_loss, abs=0.05)
        n_nodes = sum(tree.tree_.node_count for tree in forest.estimators_)
        assert 0.85 < trees.n_nodes / n_nodes < 1.15
        np.testing.assert_array_equal(probabilities, trees.run(x_new))
        second_fit = fit_extra_trees(x, y, n_classes, **settings)
        np.testing.assert_array_equal(probabilities, second_fit.margins(x_new))


def test_counts_of_rows_give_the_same_trees_as_sums_of_equal_weights():
    """Weights of 1 in two classes are counted; weights of 2 are added up, without rounding."""
    x, y, _, _ = split_in_halves(load_digits)
    y = y % 2
    counted, summed = (
        fit_extra_trees(x, y, 2, weight=np.full(len(y), weight), n_trees=5, min_rows=2, seed=1)
        for weight in (1.0, 2.0)
    )
    for array in ("feature", "threshold", "left", "right", "value"):
        np.testing.assert_array_equal(getattr(counted, array), getattr(summed, array))


def test_leaf_values_are_the_weighted_class_shares_of_their_rows():
    x, y, _, _ = split_in_halves(load_wine)
    weight = np.random.default_rng(1).uniform(0.2, 3.0, len(y))
    tree = fit_extra_trees(x, y, 4, weight=weight, n_trees=1, min_rows=9, seed=3)
    leaf_of_row, _ = tree.first_visits(x)
    for node in np.unique(leaf_of_row[0]):
        is_in_leaf = leaf_of_row[0] == node
        assert is_in_leaf.sum() >= 9  # the given min_rows
        class_shares = np.bincount(y[is_in_leaf], weight[is_in_leaf], 4) / weight[is_in_leaf].sum()
        np.testing.assert_allclose(tree.value[node], class_shares, atol=1e-6)  # class 3 has no rows
    full_trees = fit_extra_trees(x, y, 3, weight=weight, n_trees=5, seed=3)
    assert (full_trees.margins(x).argmax(axis=1) == y).all()


def test_constant_columns_of_a_node_do_not_count_as_tried():
    """Column 17 is tried at every node, although a node tries only six of 40 columns."""
    x = np.zeros((200, 40), np.float32)
    x[:, 17] = np.arange(200)
    x[:100, 5] = 1.0  # constant within the children of a split on it
    y = np.arange(200) // 20 % 2  # ten intervals of column 17
    for seed in range(10):
        trees = fit_extra_trees(x, y, 2, weight=np.ones(200), n_trees=3, seed=seed)
        # all other columns are constant; -1 marks leaves
        assert set(trees.feature.tolist()) <= {-1, 5, 17}
        assert (trees.margins(x).argmax(axis=1) == y).all()


def test_graph_of_the_forest_as_high_cost_model_gives_the_same_bits():
    x, y, x_new, _ = split_in_halves(load_wine)
    trees = fit_extra_trees(x, y, 3, weight=np.ones(len(y)), n_trees=60, seed=0)
    high_cost_model = HighCostModel(np.arange(x.shape[1]), 3, "extra-trees", trees=trees)
    graph = convert_to_graph(high_cost_model)
    assert (graph.kind, graph.link) == ("margins", "identity")
    (margins,) = run_onnx(graph.content, x_new).values()
    np.testing.assert_array_equal(margins, high_cost_model.predict_proba(x_new))
    np.testing.assert_array_equal(margins.argmax(axis=1), high_cost_model.labels(x_new))
