"""Codes of columns, growth of trees, prices and stumps; the choice of splits has its own twin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.tree import DecisionTreeClassifier

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_training.forests.grower.binning import Codes, between
from gatewise_training.forests.grower.growth import RowAcquisitions, SplitRule, grow
from gatewise_training.forests.grower.split_search import draw_stumps
from gatewise_training.prune.forest import Forest

pytestmark = pytest.mark.slow  # compiles the growth of trees: half a minute in a new clone

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
def test_codes_keep_the_order_and_their_values(column, most):
    codes = Codes.of_table(column[:, None], max_codes=most)
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


def test_bins_lose_no_rows_to_a_frequent_value():
    column = np.concatenate([np.zeros(500), np.arange(1, 101)]).astype(np.float32)
    codes = Codes.of_table(column[:, None], max_codes=10)
    assert 2 <= codes.n_codes[0] <= 10
    assert (codes.codes[0][:500] == codes.codes[0][0]).all()


def test_a_tree_sends_its_rows_where_it_has_counted_them():
    x, y, drawn = labelled()
    codes = Codes.of_table(x)
    for settings_ in ({"alpha": 0.0}, {"splits": "stumps"}, {"criterion": "entropy"}):
        forest = grow(codes, y, drawn, 2, FeatureCosts.uniform(8), SplitRule(**settings_))
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
        rule = SplitRule(splits=splits)
        grown = [grow(codes, y, drawn, 2, costs, rule, seed=s) for s in (0, 0, 1, 2, 3)]
        return [float(forest.trees.threshold[0]) for forest in grown]

    stumps, exact = roots("stumps"), roots("exact")
    assert stumps[0] == stumps[1]
    assert len(set(stumps)) > 1
    assert len(set(exact)) == 1


def test_acquisitions_of_earlier_trees_are_free():
    x, y, drawn = labelled()
    codes, costs = Codes.of_table(x), FeatureCosts([1.0, 2.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    careful_rule = SplitRule("entropy", mu=0.3)
    plain = grow(codes, y, drawn, 2, costs, SplitRule("entropy"), seed=1)
    paid = RowAcquisitions.none(costs, len(x))
    paid.items[:] = True
    free = grow(codes, y, drawn, 2, costs, careful_rule, acquired=paid, seed=1)
    np.testing.assert_array_equal(plain.trees.feature, free.trees.feature)
    np.testing.assert_array_equal(plain.trees.threshold, free.trees.threshold)
    careful = grow(codes, y, drawn, 2, costs, careful_rule, seed=1)
    assert careful.cost(x, costs).mean() < plain.cost(x, costs).mean()


def test_acquisitions_are_those_of_the_paths_and_their_groups():
    x, y, drawn = labelled()
    costs = FeatureCosts(np.ones(8), group=["a", "a", None, "b", None, None, None, None])
    tree = grow(Codes.of_table(x), y, drawn, 2, costs, SplitRule(max_depth=3))
    acquired = RowAcquisitions.none(costs, len(x))
    acquired.add(tree.trees, x)
    visited = tree.trees.visited(x)
    assert (
        visited.any(axis=0) & ~visited.all(axis=0)
    ).any()  # some rows acquire what others do not
    np.testing.assert_array_equal(acquired.items[:8].T, visited)
    np.testing.assert_array_equal(acquired.items[8], visited[:, :2].any(axis=1))
    np.testing.assert_array_equal(acquired.items[9], visited[:, 3])


def test_a_joined_forest_averages_its_trees():
    x, y, drawn = labelled()
    codes, costs = Codes.of_table(x), FeatureCosts.uniform(8)
    rule = SplitRule(alpha=4.0)
    trees = [grow(codes, y, np.roll(drawn, s), 2, costs, rule) for s in range(5)]
    forest = Forest.join(trees)
    mean = np.mean([tree.proba(x) for tree in trees], axis=0)
    np.testing.assert_allclose(forest.proba(x), mean, atol=1e-6)
    np.testing.assert_array_equal(forest.select([3]).trees.threshold, trees[3].trees.threshold)
    with pytest.raises(InputError, match="one tree"):
        Forest.join([])


def test_without_prices_entropy_grows_scikit_learns_trees():
    """Deep enough to part, and not so deep that two splits gain alike and either may be taken."""
    x, y, _ = labelled(n=2000)
    codes, costs, drawn = Codes.of_table(x), FeatureCosts.uniform(8), np.ones(2000, np.int64)
    ours = grow(codes, y, drawn, 2, costs, SplitRule("entropy", max_depth=4))
    theirs = DecisionTreeClassifier(criterion="entropy", max_depth=4, random_state=0).fit(x, y)
    assert ours.trees.n_nodes == theirs.tree_.node_count
    assert ours.proba(x) == pytest.approx(theirs.predict_proba(x), abs=1e-6)


def test_the_number_of_stumps_depends_on_the_examples():
    """80, 40 and 20 thresholds, uniform over the range of values."""
    values = np.arange(100000, dtype=np.float32) ** 2
    code, allowed = np.arange(len(values), dtype=np.int32), np.empty(len(values), bool)
    for examples, number in ((2001, 80), (2000, 40), (501, 40), (500, 20), (10, 20)):
        draw_stumps(code, values, values, examples, allowed, np.empty(80))
        drawn = np.flatnonzero(allowed[:-1])
        assert number - 2 <= len(drawn) <= number  # two may fall between the same values
        middle = values[drawn].mean() / values[-1]
        assert abs(middle - 0.5) < 6 * (1 / 12 / number) ** 0.5


def test_missing_values_seen_in_training_are_split_off():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 1)).astype(np.float32)
    gone = rng.random(100) < 0.3
    x[gone] = np.nan
    y, drawn = gone.astype(np.int64), np.ones(100, np.int64)
    forest = grow(Codes.of_table(x), y, drawn, 2, FeatureCosts.uniform(1), SplitRule())
    assert forest.trees.n_nodes == 3
    new = np.array([[1e30], [-1e30], [np.nan]], np.float32)
    np.testing.assert_array_equal(forest.proba(new).argmax(axis=1), [0, 0, 1])


def test_missing_values_not_seen_in_training_follow_the_majority():
    x = np.arange(10, dtype=np.float32)[:, None]
    y = (x[:, 0] > 6).astype(np.int64)
    drawn = np.ones(10, np.int64)
    forest = grow(Codes.of_table(x), y, drawn, 2, FeatureCosts.uniform(1), SplitRule())
    assert forest.proba(np.array([[np.nan]], np.float32)).argmax() == 0


def test_sparse_entries_restore_the_table():
    rng = np.random.default_rng(1)
    x = (rng.random((200, 6)) < [0.05, 0.5, 0.1, 0.9, 0.2, 0.0]).astype(np.float32)
    x[rng.random(x.shape) < 0.02] = np.nan
    codes = Codes.of_table(x)
    sparse = codes.sparse
    assert (sparse.common >= 0).tolist() == [True, False, True, True, True, True]
    again = np.repeat(np.where(sparse.common < 0, 0, sparse.common)[:, None], 200, axis=1)
    for i in range(200):
        for e in range(sparse.entry_start[i], sparse.entry_start[i + 1]):
            k = sparse.entry_feature[e]
            again[k, i] = sparse.entry_slot[e] - sparse.offset[k]
    chosen = sparse.common >= 0
    np.testing.assert_array_equal(again[chosen], codes.codes[chosen])
