"""Compiled extra-trees beside scikit-learn's."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits, load_wine
from sklearn.ensemble import ExtraTreesClassifier

from gatewise_export.packing.converters import high_cost_graph
from gatewise_training.learners.extra_trees import fit_extra_trees
from gatewise_training.learners.high_cost_model import HighCostModel
from tests.support.bundle_files import run_onnx


def halves(load):
    x, y = load(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))[:900]
    x, y = x[order].astype(np.float32), y[order]
    half = len(y) // 2
    return x[:half], y[:half], x[half:], y[half:]


def log_loss(chances, y):
    return -np.log(np.maximum(chances[np.arange(len(y)), y], 1e-3)).mean()


def test_a_forest_is_as_good_and_as_large_as_scikit_learns():
    for load in (load_wine, load_digits):
        x, y, x_new, y_new = halves(load)
        ones, n_classes = np.ones(len(y)), int(y.max()) + 1
        ours = fit_extra_trees(x, y, n_classes, weight=ones, n_trees=150, min_rows=2, seed=0)
        theirs = ExtraTreesClassifier(150, min_samples_leaf=2, random_state=0).fit(x, y)
        chances, expected = ours.margins(x_new), theirs.predict_proba(x_new)
        np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-5)
        assert abs(chances - expected).mean() < 0.03
        assert abs(log_loss(chances, y_new) - log_loss(expected, y_new)) < 0.05
        size = sum(tree.tree_.node_count for tree in theirs.estimators_)
        assert 0.85 < ours.n_nodes / size < 1.15
        np.testing.assert_array_equal(chances, ours.run(x_new))
        again = fit_extra_trees(x, y, n_classes, weight=ones, n_trees=150, min_rows=2, seed=0)
        np.testing.assert_array_equal(chances, again.margins(x_new))


def test_leaves_hold_the_weighted_shares_of_their_rows():
    x, y, _, _ = halves(load_wine)
    weight = np.random.default_rng(1).uniform(0.2, 3.0, len(y))
    tree = fit_extra_trees(x, y, 4, weight=weight, n_trees=1, min_rows=9, seed=3)
    leaf, _ = tree.first_visits(x)
    for node in np.unique(leaf[0]):
        rows = leaf[0] == node
        assert rows.sum() >= 9
        shares = np.bincount(y[rows], weight[rows], 4) / weight[rows].sum()
        np.testing.assert_allclose(tree.value[node], shares, atol=1e-6)  # class 3 has no rows
    whole = fit_extra_trees(x, y, 3, weight=weight, n_trees=5, seed=3)
    assert (whole.margins(x).argmax(axis=1) == y).all()


def test_columns_that_do_not_vary_within_a_node_are_neither_split_on_nor_counted():
    """One column of many decides: with each draw it is tried, though two are tried at a node."""
    x = np.zeros((200, 40), np.float32)
    x[:, 17] = np.arange(200)
    x[:100, 5] = 1.0  # varies at the root alone
    y = np.arange(200) // 20 % 2
    for seed in range(10):
        trees = fit_extra_trees(x, y, 2, weight=np.ones(200), n_trees=3, seed=seed)
        assert set(trees.feature.tolist()) <= {-1, 5, 17}
        assert (trees.margins(x).argmax(axis=1) == y).all()


def test_as_a_high_cost_model_its_graph_answers_as_it_does():
    x, y, x_new, _ = halves(load_wine)
    trees = fit_extra_trees(x, y, 3, weight=np.ones(len(y)), n_trees=60, seed=0)
    f0 = HighCostModel(np.arange(x.shape[1]), 3, "extra-trees", trees=trees)
    graph = high_cost_graph(f0)
    assert (graph.kind, graph.link) == ("margins", "identity")
    (margins,) = run_onnx(graph.content, x_new).values()
    np.testing.assert_array_equal(margins, f0.predict_proba(x_new))
    np.testing.assert_array_equal(margins.argmax(axis=1), f0.labels(x_new))
