"""Backward elimination keeps what only works together, and drops by what a price brings."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from gatewise_training import FeatureCosts
from gatewise_training.data.validation_split import ValidationSplit
from gatewise_training.feature_selection.backward import backward_sets


def plan_of(x: np.ndarray, y: np.ndarray) -> ValidationSplit:
    return ValidationSplit.choose(
        x.astype(np.float32), y.astype(np.int64), np.ones(len(y)), validation=None, seed=0
    )


@pytest.fixture(scope="module")
def parity() -> ValidationSplit:
    """Columns 2 and 5 decide together; column 0 alone is right in 60 %."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 8))
    y = (x[:, 2] > 0) ^ (x[:, 5] > 0)
    x[:, 0] = np.where(rng.random(1500) < 0.6, y, 1 - y)
    return plan_of(x, y)


def test_features_that_only_work_together_stay(parity: ValidationSplit) -> None:
    sets = backward_sets(parity, FeatureCosts.uniform(8), 2, n_stages=8)
    pair = next(chosen for chosen in sets if len(chosen) == 2)
    assert pair.tolist() == [2, 5]


def test_sets_are_nested_and_within_the_largest_share(parity: ValidationSplit) -> None:
    costs = FeatureCosts([1, 2, 3, 1, 2, 3, 1, 2])
    sets = backward_sets(parity, costs, 2, n_stages=5, largest=0.6)
    assert 1 <= len(sets) <= 5
    assert all(costs.price(chosen) <= 0.6 * costs.total for chosen in sets)
    for smaller, larger in pairwise(sets):
        assert set(smaller) < set(larger)


def test_a_costly_feature_goes_before_a_cheap_equal_one() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1000, 3))
    x[:, 1] = x[:, 0]
    sets = backward_sets(plan_of(x, x[:, 0] > 0), FeatureCosts([5.0, 1.0, 1.0]), 2, n_stages=5)
    assert sets[0].tolist() == [1]


def test_groups_whose_members_are_free_go_as_a_whole(parity: ValidationSplit) -> None:
    costs = FeatureCosts(
        np.zeros(8), group=["a", "a", "b", "b", "c", "c", "d", "d"], shared=dict.fromkeys("abcd", 1)
    )
    for chosen in backward_sets(parity, costs, 2, n_stages=4):
        assert len(chosen) == 2 * costs.price(chosen)


def test_many_classes_and_missing_values() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(900, 4))
    y = np.digitize(x[:, 3], [-0.5, 0.5])
    x[rng.random(x.shape) < 0.1] = np.nan
    sets = backward_sets(plan_of(x, y), FeatureCosts.uniform(4), 3, n_stages=3)
    assert sets[0].tolist() == [3]
