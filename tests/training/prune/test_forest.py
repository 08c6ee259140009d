"""Forests as flat arrays: costs, first uses, counts and prunings, counted again in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

from gatewise.errors import InputError
from gatewise_training import FeatureCosts
from gatewise_training.prune.forest import Forest
from tests.support.prices import price_of
from tests.support.tree_walks import columns_of, paths

WINE = load_wine()
X, Y = WINE.data.astype(np.float32), WINE.target
GROUPED = FeatureCosts(
    np.linspace(0, 2, 13), group=[0] * 4 + [None] * 4 + [1] * 5, shared=[3.0, 0.7]
)


@pytest.fixture(scope="module", params=[RandomForestClassifier, ExtraTreesClassifier])
def grown(request):
    return request.param(8, random_state=0).fit(X, Y)


@pytest.fixture(scope="module")
def forest(grown):
    return Forest.from_sklearn(grown)


def test_forests_answer_as_their_scikit_learn_source(grown, forest):
    np.testing.assert_allclose(forest.proba(X), grown.predict_proba(X), atol=1e-6)
    votes = np.mean([e.predict(X)[:, None] == np.arange(3) for e in grown.estimators_], axis=0)
    leaves = [e.tree_.value[e.apply(X), 0] for e in grown.estimators_]
    clear = np.all([np.ptp(np.sort(v)[:, -2:], axis=1) > 1e-9 for v in leaves], axis=0)
    np.testing.assert_allclose(forest.vote(X)[clear], votes[clear], atol=1e-6)


def test_counts_are_those_of_the_bootstrap_samples(grown, forest):
    assert forest.counts[forest.trees.roots].sum(axis=1) == pytest.approx([len(X)] * 8)
    inner = forest.trees.left >= 0
    children = forest.counts[forest.trees.left[inner]] + forest.counts[forest.trees.right[inner]]
    np.testing.assert_allclose(forest.counts[inner], children, atol=1e-8)
    assert (forest.errors >= 0).all()


def test_summed_counts_are_those_of_the_leaves(forest):
    rows = X[:40].astype(np.float32)
    summed = forest.summed_counts(rows)
    for row, counts in zip(rows, summed, strict=True):
        leaves = [nodes[-1] for nodes in paths(forest.trees, row)]
        np.testing.assert_allclose(counts, forest.counts[leaves].sum(axis=0))


@pytest.mark.parametrize("costs", [FeatureCosts.uniform(13), GROUPED])
def test_cost_and_depth_counted_path_by_path(forest, costs):
    cost, passed = forest.cost(X, costs), forest.trees.splits_passed(X)
    for i, row in enumerate(X):
        assert cost[i] == pytest.approx(price_of(costs, columns_of(forest.trees, row)))
        assert passed[i] == sum(len(nodes) - 1 for nodes in paths(forest.trees, row))


def test_a_pruned_node_answers_with_its_own_counts(forest):
    rng = np.random.default_rng(0)
    keep = rng.random(forest.n_nodes) < 0.6
    pruned = forest.pruned(keep)
    for row, proba in zip(X[:40], pruned.proba(X[:40]), strict=True):
        stops = [
            next(h for h in nodes if not keep[h] or forest.trees.left[h] < 0)
            for nodes in paths(forest.trees, row)
        ]
        shares = [forest.counts[h] / forest.counts[h].sum() for h in stops]
        np.testing.assert_allclose(proba, np.mean(shares, axis=0), atol=1e-6)
    assert pruned.n_nodes < forest.n_nodes
    assert pruned.pruned(np.ones(pruned.n_nodes, bool)).n_nodes == pruned.n_nodes
    assert forest.pruned(np.zeros(forest.n_nodes, bool)).n_nodes == forest.n_trees


def test_counts_must_match(forest):
    with pytest.raises(InputError, match="counts of shape"):
        Forest(forest.trees, forest.counts[:-1])
