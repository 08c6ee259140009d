"""Costs, class counts and prunings of flat forests, compared with counts in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

from gatewise.errors import InputError
from gatewise_training import FeatureCosts
from gatewise_training.prune.forest import Forest
from tests.support.prices import sum_prices
from tests.support.tree_walks import find_tested_columns, find_tree_paths

WINE = load_wine()
X, Y = WINE.data.astype(np.float32), WINE.target
GROUPED_COSTS = FeatureCosts(
    np.linspace(0, 2, 13), group=[0] * 4 + [None] * 4 + [1] * 5, shared=[3.0, 0.7]
)


@pytest.fixture(scope="module", params=[RandomForestClassifier, ExtraTreesClassifier])
def sklearn_forest(request):
    return request.param(8, random_state=0).fit(X, Y)


@pytest.fixture(scope="module")
def forest(sklearn_forest):
    return Forest.from_sklearn(sklearn_forest)


def test_predictions_equal_those_of_the_scikit_learn_forest(sklearn_forest, forest):
    np.testing.assert_allclose(forest.proba(X), sklearn_forest.predict_proba(X), atol=1e-6)
    votes = np.mean(
        [tree.predict(X)[:, None] == np.arange(3) for tree in sklearn_forest.estimators_], axis=0
    )
    leaf_values = [tree.tree_.value[tree.apply(X), 0] for tree in sklearn_forest.estimators_]
    # the vote of a leaf with two most frequent classes is arbitrary
    has_no_tie = np.all(
        [np.ptp(np.sort(values)[:, -2:], axis=1) > 1e-9 for values in leaf_values], axis=0
    )
    np.testing.assert_allclose(forest.vote_shares(X)[has_no_tie], votes[has_no_tie], atol=1e-6)


def test_node_counts_add_up_to_the_bootstrap_samples(forest):
    assert forest.counts[forest.trees.roots].sum(axis=1) == pytest.approx([len(X)] * 8)  # 8 trees
    is_inner = forest.trees.left >= 0
    child_counts = (
        forest.counts[forest.trees.left[is_inner]] + forest.counts[forest.trees.right[is_inner]]
    )
    np.testing.assert_allclose(forest.counts[is_inner], child_counts, atol=1e-8)
    assert (forest.node_errors >= 0).all()


def test_nodes_without_rows_have_shares_of_zero(forest):
    counts = forest.counts.copy()
    counts[-1] = 0.0
    shares = Forest(forest.trees, counts).node_shares("mean")
    np.testing.assert_allclose(shares.sum(axis=1), [1.0] * (len(counts) - 1) + [0.0])


def test_summed_counts_add_the_counts_of_the_leaves_of_a_row(forest):
    rows = X[:40].astype(np.float32)
    summed_counts = forest.summed_counts(rows)
    for row, counts in zip(rows, summed_counts, strict=True):
        leaves = [nodes[-1] for nodes in find_tree_paths(forest.trees, row)]
        np.testing.assert_allclose(counts, forest.counts[leaves].sum(axis=0))


@pytest.mark.parametrize("costs", [FeatureCosts.uniform(13), GROUPED_COSTS])
def test_cost_and_number_of_splits_follow_the_paths_of_a_row(forest, costs):
    row_costs = forest.cost(X, costs)
    n_splits = forest.trees.splits_passed(X)
    for row, row_cost, n_row_splits in zip(X, row_costs, n_splits, strict=True):
        columns = find_tested_columns(forest.trees, row)
        assert row_cost == pytest.approx(sum_prices(costs, columns))
        assert n_row_splits == sum(len(nodes) - 1 for nodes in find_tree_paths(forest.trees, row))


def test_pruned_nodes_predict_from_their_own_counts(forest):
    rng = np.random.default_rng(0)
    is_kept = rng.random(forest.n_nodes) < 0.6
    pruned_forest = forest.pruned(is_kept)
    for row, probabilities in zip(X[:40], pruned_forest.proba(X[:40]), strict=True):
        leaves = [
            next(h for h in nodes if not is_kept[h] or forest.trees.left[h] < 0)
            for nodes in find_tree_paths(forest.trees, row)
        ]
        shares = [forest.counts[h] / forest.counts[h].sum() for h in leaves]
        np.testing.assert_allclose(probabilities, np.mean(shares, axis=0), atol=1e-6)
    assert pruned_forest.n_nodes < forest.n_nodes
    unchanged_forest = pruned_forest.pruned(np.ones(pruned_forest.n_nodes, bool))
    assert unchanged_forest.n_nodes == pruned_forest.n_nodes
    assert forest.pruned(np.zeros(forest.n_nodes, bool)).n_nodes == forest.n_trees


def test_counts_of_another_number_of_nodes_are_refused(forest):
    with pytest.raises(InputError, match="counts of shape"):
        Forest(forest.trees, forest.counts[:-1])
