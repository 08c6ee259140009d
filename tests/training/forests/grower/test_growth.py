"""Codes of columns, growth of trees, prices and stumps; `test_splits_twin` checks the splits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.tree import DecisionTreeClassifier

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_training.forests.grower.binning import Codes, threshold_between
from gatewise_training.forests.grower.growth import RowAcquisitions, SplitRule, grow
from gatewise_training.forests.grower.split_search import draw_stumps
from gatewise_training.prune.forest import Forest

pytestmark = pytest.mark.slow  # compiles the growth of trees, which takes half a minute

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
COLUMNS = hnp.arrays(np.float32, st.integers(1, 40), elements=FLOATS)


def noisy_rows(n=600, seed=0):
    """Make eight columns of many values; the labels are noisy, so that trees are deep."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 8)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] * x[:, 2] + rng.normal(size=n) > 0).astype(np.int64)
    return x, y, rng.multinomial(n, np.full(n, 1 / n))


@settings(deadline=None)
@given(COLUMNS, st.integers(1, 12))
def test_codes_keep_the_order_and_the_range_of_values(column, max_codes):
    codes = Codes.of_table(column[:, None], max_codes=max_codes)
    code = codes.codes[0].astype(int)
    order = np.argsort(column, kind="stable")
    assert (np.diff(code[order]) >= 0).all()
    assert len(codes.lower) == len(np.unique(code)) <= max_codes
    np.testing.assert_array_equal(np.unique(code), np.arange(len(codes.lower)))
    for c in range(len(codes.lower)):
        assert codes.lower[c] == column[code == c].min()
        assert codes.upper[c] == column[code == c].max()
    if len(np.unique(column)) <= max_codes:  # each value has its own code
        np.testing.assert_array_equal(codes.lower, codes.upper)


@settings(deadline=None)
@given(FLOATS, FLOATS)
def test_thresholds_lie_between_their_neighbours(a, b):
    low = np.float32(min(a, b))
    high = np.float32(max(a, b))
    if low < high:
        threshold = threshold_between(low, high)
        assert low <= threshold < high


def test_codes_have_the_narrowest_type_that_holds_them():
    values = np.arange(70_000, dtype=np.float32)
    assert Codes.of_table(values[:255, None]).codes.dtype == np.uint8
    assert Codes.of_table(values[:256, None]).codes.dtype == np.uint16
    with_nan = np.append(values[:255], np.float32(np.nan))[:, None]
    assert Codes.of_table(with_nan).codes[0, -1] == 255  # above all others


def test_columns_of_many_values_have_even_bins():
    values = np.append(np.arange(70_000, dtype=np.float32), np.float32(np.nan))
    codes = Codes.of_table(values[:, None])
    assert codes.n_codes[0] <= 65_535
    assert codes.codes[0, -1] == codes.n_codes[0]
    rows_per_bin = np.bincount(codes.codes[0, :-1])
    assert rows_per_bin.max() <= 2


def test_rows_of_a_frequent_value_share_a_bin():
    column = np.concatenate([np.zeros(500), np.arange(1, 101)]).astype(np.float32)
    codes = Codes.of_table(column[:, None], max_codes=10)
    assert 2 <= codes.n_codes[0] <= 10
    assert (codes.codes[0][:500] == codes.codes[0][0]).all()


def test_rows_reach_the_nodes_that_count_them():
    x, y, n_draws = noisy_rows()
    codes = Codes.of_table(x)
    for rule_settings in ({"alpha": 0.0}, {"splits": "stumps"}, {"criterion": "entropy"}):
        forest = grow(codes, y, n_draws, 2, FeatureCosts.uniform(8), SplitRule(**rule_settings))
        leaves = forest.trees.left < 0
        assert (forest.counts[leaves].max(axis=1) == forest.counts[leaves].sum(axis=1)).all()
        in_bag = n_draws > 0
        assert (forest.proba(x[in_bag]).argmax(axis=1) == y[in_bag]).all()
        inner = ~leaves
        children = (
            forest.counts[forest.trees.left[inner]] + forest.counts[forest.trees.right[inner]]
        )
        np.testing.assert_array_equal(children, forest.counts[inner])
        np.testing.assert_array_equal(
            forest.counts[0], np.bincount(y, weights=n_draws, minlength=2)
        )


def test_random_thresholds_depend_on_the_seed():
    x, y, n_draws = noisy_rows()
    codes = Codes.of_table(x)
    costs = FeatureCosts.uniform(8)

    def root_thresholds(splits):
        rule = SplitRule(splits=splits)
        forests = [grow(codes, y, n_draws, 2, costs, rule, seed=seed) for seed in (0, 0, 1, 2, 3)]
        return [float(forest.trees.threshold[0]) for forest in forests]

    stumps = root_thresholds("stumps")
    assert stumps[0] == stumps[1]
    assert len(set(stumps)) > 1
    assert len(set(root_thresholds("exact"))) == 1


def test_acquisitions_of_earlier_trees_are_free():
    x, y, n_draws = noisy_rows()
    codes = Codes.of_table(x)
    costs = FeatureCosts([1.0, 2.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    priced_rule = SplitRule("entropy", mu=0.3)
    tree_without_price = grow(codes, y, n_draws, 2, costs, SplitRule("entropy"), seed=1)
    all_acquired = RowAcquisitions.empty(costs, len(x))
    all_acquired.items[:] = True
    tree_with_free_features = grow(
        codes, y, n_draws, 2, costs, priced_rule, acquired=all_acquired, seed=1
    )
    np.testing.assert_array_equal(
        tree_without_price.trees.feature, tree_with_free_features.trees.feature
    )
    np.testing.assert_array_equal(
        tree_without_price.trees.threshold, tree_with_free_features.trees.threshold
    )
    tree_with_price = grow(codes, y, n_draws, 2, costs, priced_rule, seed=1)
    assert tree_with_price.cost(x, costs).mean() < tree_without_price.cost(x, costs).mean()


def test_acquisitions_include_the_features_of_the_paths_and_their_groups():
    x, y, n_draws = noisy_rows()
    costs = FeatureCosts(np.ones(8), group=["a", "a", None, "b", None, None, None, None])
    tree = grow(Codes.of_table(x), y, n_draws, 2, costs, SplitRule(max_depth=3))
    acquired = RowAcquisitions.empty(costs, len(x))
    acquired.add(tree.trees, x)
    visited = tree.trees.visited_features(x)
    # some rows acquire features that other rows do not
    assert (visited.any(axis=0) & ~visited.all(axis=0)).any()
    np.testing.assert_array_equal(acquired.items[:8].T, visited)
    np.testing.assert_array_equal(acquired.items[8], visited[:, :2].any(axis=1))
    np.testing.assert_array_equal(acquired.items[9], visited[:, 3])


def test_joined_forest_averages_its_trees():
    x, y, n_draws = noisy_rows()
    codes = Codes.of_table(x)
    costs = FeatureCosts.uniform(8)
    rule = SplitRule(alpha=4.0)
    trees = [grow(codes, y, np.roll(n_draws, shift), 2, costs, rule) for shift in range(5)]
    forest = Forest.join(trees)
    mean_proba = np.mean([tree.proba(x) for tree in trees], axis=0)
    np.testing.assert_allclose(forest.proba(x), mean_proba, atol=1e-6)
    np.testing.assert_array_equal(forest.select([3]).trees.threshold, trees[3].trees.threshold)
    with pytest.raises(InputError, match="one tree"):
        Forest.join([])


def test_entropy_without_prices_grows_the_trees_of_scikit_learn():
    """At greater depths two splits may have equal gains, and either may be chosen."""
    x, y, _ = noisy_rows(n=2000)
    codes = Codes.of_table(x)
    costs = FeatureCosts.uniform(8)
    n_draws = np.ones(2000, np.int64)
    forest = grow(codes, y, n_draws, 2, costs, SplitRule("entropy", max_depth=4))
    tree = DecisionTreeClassifier(criterion="entropy", max_depth=4, random_state=0).fit(x, y)
    assert forest.trees.n_nodes == tree.tree_.node_count
    assert forest.proba(x) == pytest.approx(tree.predict_proba(x), abs=1e-6)


def test_number_of_random_thresholds_depends_on_the_examples():
    """The thresholds are uniform over the range of the values."""
    values = np.arange(100000, dtype=np.float32) ** 2
    code = np.arange(len(values), dtype=np.int32)
    is_allowed = np.empty(len(values), bool)
    for n_examples, n_draws in ((2001, 80), (2000, 40), (501, 40), (500, 20), (10, 20)):
        draw_stumps(code, values, values, n_examples, is_allowed, np.empty(80))
        boundaries = np.flatnonzero(is_allowed[:-1])
        assert n_draws - 2 <= len(boundaries) <= n_draws  # two may fall between the same values
        relative_mean = values[boundaries].mean() / values[-1]
        assert abs(relative_mean - 0.5) < 6 * (1 / 12 / n_draws) ** 0.5


def test_splits_separate_missing_values_that_occur_in_training():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 1)).astype(np.float32)
    is_missing = rng.random(100) < 0.3
    x[is_missing] = np.nan
    y = is_missing.astype(np.int64)
    n_draws = np.ones(100, np.int64)
    forest = grow(Codes.of_table(x), y, n_draws, 2, FeatureCosts.uniform(1), SplitRule())
    assert forest.trees.n_nodes == 3
    new_rows = np.array([[1e30], [-1e30], [np.nan]], np.float32)
    np.testing.assert_array_equal(forest.proba(new_rows).argmax(axis=1), [0, 0, 1])


def test_missing_values_that_do_not_occur_in_training_go_to_the_larger_child():
    x = np.arange(10, dtype=np.float32)[:, None]
    y = (x[:, 0] > 6).astype(np.int64)
    n_draws = np.ones(10, np.int64)
    forest = grow(Codes.of_table(x), y, n_draws, 2, FeatureCosts.uniform(1), SplitRule())
    assert forest.proba(np.array([[np.nan]], np.float32)).argmax() == 0


def test_sparse_entries_and_prevailing_codes_give_the_table():
    rng = np.random.default_rng(1)
    x = (rng.random((200, 6)) < [0.05, 0.5, 0.1, 0.9, 0.2, 0.0]).astype(np.float32)
    x[rng.random(x.shape) < 0.02] = np.nan
    codes = Codes.of_table(x)
    sparse = codes.sparse
    assert (sparse.common >= 0).tolist() == [True, False, True, True, True, True]
    restored_codes = np.repeat(np.where(sparse.common < 0, 0, sparse.common)[:, None], 200, axis=1)
    for i in range(200):
        for entry in range(sparse.entry_start[i], sparse.entry_start[i + 1]):
            k = sparse.entry_feature[entry]
            restored_codes[k, i] = sparse.entry_slot[entry] - sparse.offset[k]
    is_sparse = sparse.common >= 0
    np.testing.assert_array_equal(restored_codes[is_sparse], codes.codes[is_sparse])
