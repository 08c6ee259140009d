"""Growth of trees, prices and stumps; `test_splits_twin` checks the splits."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.forests.grower.growth import RowAcquisitions, SplitRule, grow
from gatewise_training.forests.grower.split_search import draw_stumps
from gatewise_training.prune.forest import Forest

pytestmark = pytest.mark.slow  # compiles the growth of trees, which takes half a minute


def draw_noisy_rows(n=600, seed=0):
    """Draw eight columns of many values; the labels are noisy, so that trees are deep."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 8)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] * x[:, 2] + rng.normal(size=n) > 0).astype(np.int64)
    n_draws = rng.multinomial(n, np.full(n, 1 / n))  # of a bootstrap sample
    return x, y, n_draws


def test_rows_reach_the_nodes_that_count_them():
    x, y, n_draws = draw_noisy_rows()
    codes = Codes.of_table(x)
    for rule_settings in ({"alpha": 0.0}, {"splits": "stumps"}, {"criterion": "entropy"}):
        forest = grow(codes, y, n_draws, 2, FeatureCosts.uniform(8), SplitRule(**rule_settings))
        is_leaf = forest.trees.left < 0
        assert (forest.counts[is_leaf].max(axis=1) == forest.counts[is_leaf].sum(axis=1)).all()
        in_bag = n_draws > 0
        assert (forest.proba(x[in_bag]).argmax(axis=1) == y[in_bag]).all()
        is_inner = ~is_leaf
        child_counts = (
            forest.counts[forest.trees.left[is_inner]] + forest.counts[forest.trees.right[is_inner]]
        )
        np.testing.assert_array_equal(child_counts, forest.counts[is_inner])
        np.testing.assert_array_equal(
            forest.counts[0], np.bincount(y, weights=n_draws, minlength=2)
        )


def test_random_thresholds_depend_on_the_seed():
    x, y, n_draws = draw_noisy_rows()
    codes = Codes.of_table(x)
    costs = FeatureCosts.uniform(8)

    def find_root_thresholds(splits):
        rule = SplitRule(splits=splits)
        forests = [grow(codes, y, n_draws, 2, costs, rule, seed=seed) for seed in (0, 0, 1, 2, 3)]
        return [float(forest.trees.threshold[0]) for forest in forests]

    stump_thresholds = find_root_thresholds("stumps")
    assert stump_thresholds[0] == stump_thresholds[1]
    assert len(set(stump_thresholds)) > 1
    assert len(set(find_root_thresholds("exact"))) == 1


def test_acquisitions_include_the_features_of_the_paths_and_their_groups():
    x, y, n_draws = draw_noisy_rows()
    groups = ["a", "a", None, "b", None, None, None, None]
    costs = FeatureCosts(np.ones(8), group=groups, shared={"a": 1.0, "b": 2.0})
    tree = grow(Codes.of_table(x), y, n_draws, 2, costs, SplitRule(max_depth=3))
    acquisitions = RowAcquisitions.empty(costs, len(x))
    acquisitions.add(tree.trees, x)
    visited_features = tree.trees.visited_features(x)
    # some rows acquire features that other rows do not
    assert (visited_features.any(axis=0) & ~visited_features.all(axis=0)).any()
    # the items are the eight features, and then the groups a and b
    np.testing.assert_array_equal(acquisitions.items[:8].T, visited_features)
    np.testing.assert_array_equal(acquisitions.items[8], visited_features[:, :2].any(axis=1))
    np.testing.assert_array_equal(acquisitions.items[9], visited_features[:, 3])


def test_joined_forest_averages_its_trees():
    x, y, n_draws = draw_noisy_rows()
    codes = Codes.of_table(x)
    costs = FeatureCosts.uniform(8)
    rule = SplitRule(alpha=4.0)
    trees = [grow(codes, y, np.roll(n_draws, shift), 2, costs, rule) for shift in range(5)]
    forest = Forest.join(trees)
    mean_probabilities = np.mean([tree.proba(x) for tree in trees], axis=0)
    np.testing.assert_allclose(forest.proba(x), mean_probabilities, atol=1e-6)
    np.testing.assert_array_equal(forest.select([3]).trees.threshold, trees[3].trees.threshold)
    with pytest.raises(InputError, match="one tree"):
        Forest.join([])


def test_number_of_random_thresholds_depends_on_the_examples():
    """The thresholds are uniform over the range of the values."""
    values = np.arange(100000, dtype=np.float32) ** 2
    codes = np.arange(len(values), dtype=np.int32)
    is_allowed = np.empty(len(values), bool)
    # 80 thresholds for more than 2,000 examples, 40 for more than 500, and 20 otherwise
    for n_examples, n_thresholds in ((2001, 80), (2000, 40), (501, 40), (500, 20), (10, 20)):
        draw_stumps(codes, values, values, n_examples, is_allowed, np.empty(80))
        boundaries = np.flatnonzero(is_allowed[:-1])
        # two may fall between the same values
        assert n_thresholds - 2 <= len(boundaries) <= n_thresholds
        # the mean of n uniform numbers has the variance 1 / (12 n); six standard errors
        relative_mean = values[boundaries].mean() / values[-1]
        assert abs(relative_mean - 0.5) < 6 * (1 / 12 / n_thresholds) ** 0.5


def test_splits_separate_missing_values_that_occur_in_training():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 1)).astype(np.float32)
    is_missing = rng.random(100) < 0.3
    x[is_missing] = np.nan
    y = is_missing.astype(np.int64)
    n_draws = np.ones(100, np.int64)
    forest = grow(Codes.of_table(x), y, n_draws, 2, FeatureCosts.uniform(1), SplitRule())
    assert forest.trees.n_nodes == 3  # a root and two leaves
    new_rows = np.array([[1e30], [-1e30], [np.nan]], np.float32)
    np.testing.assert_array_equal(forest.proba(new_rows).argmax(axis=1), [0, 0, 1])


def test_missing_values_that_do_not_occur_in_training_go_to_the_larger_child():
    x = np.arange(10, dtype=np.float32)[:, None]
    y = (x[:, 0] > 6).astype(np.int64)
    n_draws = np.ones(10, np.int64)
    forest = grow(Codes.of_table(x), y, n_draws, 2, FeatureCosts.uniform(1), SplitRule())
    # rows 0 to 6 have class 0, and rows 7 to 9 class 1
    assert forest.proba(np.array([[np.nan]], np.float32)).argmax() == 0
