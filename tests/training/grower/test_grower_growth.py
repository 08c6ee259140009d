"""Trees by gain against scikit-learn's; prices, groups, stumps, missing values, sparse columns."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.tree import DecisionTreeClassifier

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.forests.grower.growth import RowAcquisitions, grow
from gatewise_training.forests.grower.split_search import draw_stumps


def sample(seed=0, n=300, width=6):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, width)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] * x[:, 2] + 0.5 * rng.normal(size=n) > 0).astype(np.int64)
    return x, y, rng.multinomial(n, np.full(n, 1 / n))


@pytest.mark.parametrize("criterion", ["entropy", "gini"])
def test_without_prices_the_gain_rules_grow_scikit_learns_trees(criterion):
    """Deep enough to part, and not so deep that two splits gain alike and either may be taken."""
    x, y, _ = sample(n=2000)
    codes, costs, drawn = Codes.of_table(x), FeatureCosts.uniform(6), np.ones(2000, np.int64)
    ours = grow(codes, y, drawn, 2, costs, criterion=criterion, max_depth=4)
    theirs = DecisionTreeClassifier(criterion=criterion, max_depth=4, random_state=0).fit(x, y)
    assert ours.trees.n_nodes == theirs.tree_.node_count
    assert ours.proba(x) == pytest.approx(theirs.predict_proba(x), abs=1e-6)


def test_a_dear_feature_is_left_to_those_that_need_it():
    x, y, drawn = sample()
    cheap = np.ones(6)
    cheap[0] = 50.0
    asked = []
    for costs in (FeatureCosts.uniform(6), FeatureCosts(cheap)):
        forest = grow(Codes.of_table(x), y, drawn, 2, costs)
        asked.append(forest.trees.visited(x)[:, 0].mean())
    assert asked[1] < asked[0]


def test_a_bought_group_stays_bought():
    """Two equal columns; whoever has paid for the group takes its member, not the outsider."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 50)
    x = np.stack([y, y], axis=1).astype(np.float32)
    costs = FeatureCosts([1.0, 0.5], group=[None, "g"], shared={"g": 2.0})
    codes, drawn = Codes.of_table(x), np.ones(50, np.int64)
    first = grow(codes, y, drawn, 2, costs, criterion="entropy", mu=0.1)
    assert first.trees.feature[0] == 0
    bought = RowAcquisitions.none(costs, 50)
    bought.goods[2] = True
    second = grow(codes, y, drawn, 2, costs, criterion="entropy", mu=0.1, acquired=bought)
    assert second.trees.feature[0] == 1


def test_the_number_of_stumps_depends_on_the_examples():
    """80, 40 and 20 thresholds, uniform over the range of values."""
    values = np.arange(100000, dtype=np.float32) ** 2
    code, allowed = np.arange(len(values), dtype=np.int32), np.empty(len(values), bool)
    for examples, number in ((2001, 80), (2000, 40), (501, 40), (500, 20), (10, 20)):
        draw_stumps(code, len(values), values, values, examples, allowed, np.empty(80))
        drawn = np.flatnonzero(allowed[:-1])
        assert number - 2 <= len(drawn) <= number  # two may fall between the same values
        middle = values[drawn].mean() / values[-1]
        assert abs(middle - 0.5) < 6 * (1 / 12 / number) ** 0.5


def test_a_missing_value_goes_its_own_way():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 1)).astype(np.float32)
    gone = rng.random(100) < 0.3
    x[gone] = np.nan
    y, drawn = gone.astype(np.int64), np.ones(100, np.int64)
    forest = grow(Codes.of_table(x), y, drawn, 2, FeatureCosts.uniform(1))
    assert forest.trees.n_nodes == 3
    new = np.array([[1e30], [-1e30], [np.nan]], np.float32)
    np.testing.assert_array_equal(forest.proba(new).argmax(axis=1), [0, 0, 1])


def test_a_missing_value_not_seen_goes_with_the_many():
    x = np.arange(10, dtype=np.float32)[:, None]
    y = (x[:, 0] > 6).astype(np.int64)
    forest = grow(Codes.of_table(x), y, np.ones(10, np.int64), 2, FeatureCosts.uniform(1))
    assert forest.proba(np.array([[np.nan]], np.float32)).argmax() == 0


def test_sparse_columns_are_the_table_again():
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


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"criterion": "error"}, "criterion must be"),
        ({"splits": "some"}, "splits must be"),
        ({"alpha": -1.0}, "alpha must be"),
        ({"mu": float("nan")}, "mu must be"),
        ({"mu": 0.1}, "threshold-Pairs has the prices in its own rule"),
        ({"max_features": 0}, "max_features"),
    ],
)
def test_what_is_refused(settings, words):
    x, y, drawn = sample(n=20)
    with pytest.raises(InputError, match=words):
        grow(Codes.of_table(x), y, drawn, 2, FeatureCosts.uniform(6), **settings)
