"""Codes of columns, random stumps, and what trees have bought; split choice has its own twin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_training.forests.grower.binning import Codes, between
from gatewise_training.forests.grower.growth import RowAcquisitions, grow
from gatewise_training.prune.forest import Forest

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
COLUMNS = hnp.arrays(np.float32, st.integers(1, 40), elements=FLOATS)


def labelled(n=600, seed=0):
    """Eight columns of many values; noisy labels, so that trees are deep."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 8)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] * x[:, 2] + rng.normal(size=n) > 0).astype(np.int64)
    return x, y, rng.multinomial(n, np.full(n, 1 / n))


@settings(deadline=None)
@given(COLUMNS, st.integers(1, 12))
def test_codes_keep_the_order_and_know_their_values(column, most):
    codes = Codes.of_table(column[:, None], most=most)
    code = codes.codes[0].astype(int)
    order = np.argsort(column, kind="stable")
    assert (np.diff(code[order]) >= 0).all()
    assert len(codes.lower) == len(np.unique(code)) <= most
    np.testing.assert_array_equal(np.unique(code), np.arange(len(codes.lower)))
    for c in range(len(codes.lower)):
        assert codes.lower[c] == column[code == c].min()
        assert codes.upper[c] == column[code == c].max()
    if len(np.unique(column)) <= most:  # exact: no two values share a code
        np.testing.assert_array_equal(codes.lower, codes.upper)


@settings(deadline=None)
@given(FLOATS, FLOATS)
def test_thresholds_part_their_neighbours(a, b):
    low, high = np.float32(min(a, b)), np.float32(max(a, b))
    if low < high:
        threshold = between(low, high)
        assert low <= threshold < high


def test_the_narrowest_type_that_holds_the_codes():
    many = np.arange(70_000, dtype=np.float32)
    assert Codes.of_table(many[:255, None]).codes.dtype == np.uint8
    assert Codes.of_table(many[:256, None]).codes.dtype == np.uint16
    missing = np.append(many[:255], np.float32(np.nan))[:, None]
    assert Codes.of_table(missing).codes[0, -1] == 255  # above all others
    most = Codes.of_table(np.append(many, np.float32(np.nan))[:, None])
    assert most.n_codes[0] <= 65_535
    assert most.codes[0, -1] == most.n_codes[0]
    share = np.bincount(most.codes[0, :-1])
    assert share.max() <= 2  # bins of about equally many rows
    for wrong in (0, 65_536):
        with pytest.raises(InputError, match="65535"):
            Codes.of_table(many[:2, None], most=wrong)


def test_bins_lose_no_rows_to_a_frequent_value():
    column = np.concatenate([np.zeros(500), np.arange(1, 101)]).astype(np.float32)
    codes = Codes.of_table(column[:, None], most=10)
    assert 2 <= codes.n_codes[0] <= 10
    assert (codes.codes[0][:500] == codes.codes[0][0]).all()


def test_a_tree_sends_its_rows_where_it_has_counted_them():
    x, y, drawn = labelled()
    codes = Codes.of_table(x)
    for settings_ in ({"alpha": 0.0}, {"splits": "stumps"}, {"criterion": "gini"}):
        forest = grow(codes, y, drawn, 2, FeatureCosts.uniform(8), **settings_)
        leaves = forest.trees.left < 0
        assert (forest.counts[leaves].max(axis=1) == forest.counts[leaves].sum(axis=1)).all()
        in_bag = drawn > 0
        assert (forest.proba(x[in_bag]).argmax(axis=1) == y[in_bag]).all()
        inner = ~leaves
        children = (
            forest.counts[forest.trees.left[inner]] + forest.counts[forest.trees.right[inner]]
        )
        np.testing.assert_array_equal(children, forest.counts[inner])
        np.testing.assert_array_equal(forest.counts[0], np.bincount(y, weights=drawn, minlength=2))


def test_stumps_are_drawn_by_the_seed_and_seldom_the_best():
    x, y, drawn = labelled()
    codes, costs = Codes.of_table(x), FeatureCosts.uniform(8)

    def roots(splits):
        grown = [grow(codes, y, drawn, 2, costs, splits=splits, seed=s) for s in (0, 0, 1, 2, 3)]
        return [float(forest.trees.threshold[0]) for forest in grown]

    stumps, exact = roots("stumps"), roots("exact")
    assert stumps[0] == stumps[1]
    assert len(set(stumps)) > 1
    assert len(set(exact)) == 1


def test_few_features_are_tried_where_few_are_asked_for():
    x, y, drawn = labelled()
    codes, costs = Codes.of_table(x), FeatureCosts.uniform(8)
    grown = [grow(codes, y, drawn, 2, costs, max_features=1, seed=s) for s in range(20)]
    assert len({int(forest.trees.feature[0]) for forest in grown}) > 4
    x[:, 1:] = 0.0  # constant columns do not count as tried
    only = grow(Codes.of_table(x), y, drawn, 2, costs, max_features=1)
    assert only.trees.feature[0] == 0


def test_what_earlier_trees_have_bought_is_free():
    x, y, drawn = labelled()
    codes, costs = Codes.of_table(x), FeatureCosts([1.0, 2.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    rule = {"criterion": "entropy", "seed": 1}
    plain = grow(codes, y, drawn, 2, costs, **rule)
    paid = RowAcquisitions.none(costs, len(x))
    paid.goods[:] = True
    free = grow(codes, y, drawn, 2, costs, mu=0.3, acquired=paid, **rule)
    np.testing.assert_array_equal(plain.trees.feature, free.trees.feature)
    np.testing.assert_array_equal(plain.trees.threshold, free.trees.threshold)
    dear = grow(codes, y, drawn, 2, costs, mu=0.3, **rule)
    assert dear.cost(x, costs).mean() < plain.cost(x, costs).mean()


def test_purchases_are_those_of_the_paths_and_their_groups():
    x, y, drawn = labelled()
    costs = FeatureCosts(np.ones(8), group=["a", "a", None, "b", None, None, None, None])
    tree = grow(Codes.of_table(x), y, drawn, 2, costs, max_depth=3)
    bought = RowAcquisitions.none(costs, len(x))
    bought.add(tree.trees, x)
    visited = tree.trees.visited(x)
    assert (visited.any(axis=0) & ~visited.all(axis=0)).any()  # some rows buy what others do not
    np.testing.assert_array_equal(bought.goods[:8].T, visited)
    np.testing.assert_array_equal(bought.goods[8], visited[:, :2].any(axis=1))
    np.testing.assert_array_equal(bought.goods[9], visited[:, 3])


def test_a_joined_forest_averages_its_trees():
    x, y, drawn = labelled()
    codes, costs = Codes.of_table(x), FeatureCosts.uniform(8)
    trees = [grow(codes, y, np.roll(drawn, s), 2, costs, alpha=4.0) for s in range(5)]
    forest = Forest.join(trees)
    mean = np.mean([tree.proba(x) for tree in trees], axis=0)
    np.testing.assert_allclose(forest.proba(x), mean, atol=1e-6)
    np.testing.assert_array_equal(forest.select([3]).trees.threshold, trees[3].trees.threshold)
    with pytest.raises(InputError, match="one tree"):
        Forest.join([])
