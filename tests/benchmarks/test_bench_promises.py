"""Tests of splits, recipes and means of the benchmark of promises."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import bench_promises
from benchmarks.bench_promises import Mean, Table
from benchmarks.comparison import recipes
from benchmarks.comparison.recipes import Split
from gatewise.costs import FeatureCosts


def make_table(n_rows: int) -> Table:
    """Make a table whose first two of five features depend on the class."""
    rng = np.random.default_rng(0)
    y = np.arange(n_rows, dtype=np.int64) % 2
    X = rng.normal(size=(n_rows, 5)).astype(np.float32)
    X[:, 0] += 2 * y
    X[:, 1] += y
    return Table("made", X, y, FeatureCosts([1.0, 2.0, 3.0, 4.0, 10.0]))


@pytest.mark.parametrize("n_rows", [300, 2600, 9000])
def test_splits_have_disjoint_test_rows(n_rows: int) -> None:
    test_rows: list[int] = []
    for train, test in bench_promises.splits(make_table(n_rows)):
        assert not set(train.tolist()) & set(test.tolist())
        assert len(train) <= bench_promises.MAX_TRAINING_ROWS
        test_rows += test.tolist()
    assert len(test_rows) == len(set(test_rows))


def test_recipes_stay_within_their_budget() -> None:
    table = make_table(600)
    split = Split(table.x[:300], table.y[:300], table.x[300:], table.y[300:], table.costs, seed=0)
    features = recipes.select_important_features(split, 3.0)
    assert features == [0, 1]  # the features with the highest gain that a budget of 3 pays for
    answers, cost = recipes.few_features(split, 3.0)
    assert cost == 3.0
    # class means two standard deviations apart give 0.84
    assert split.hits(answers).mean() > 0.75
    answers, cost = recipes.small_and_big(split, 6.0)
    assert 3.0 <= cost < 9.0  # half for the small model, the rest for offloads
    assert split.hits(answers).mean() > 0.75
    answers, cost = recipes.few_features(split, 0.5)
    assert set(answers.tolist()) == {0}  # the most frequent class
    assert cost == 0.0


def test_differences_are_in_points_with_a_standard_error() -> None:
    mean = Mean.of_rows(np.array([1.0, 0.0, -1.0, 0.0]))
    # the root of the mean square 1 / 2, over the root of 4 rows
    assert mean == Mean(0.0, pytest.approx(0.5**0.5 / 2))
    assert Mean(0.0123, 0.004).text() == "+1.23 ± 0.40"
