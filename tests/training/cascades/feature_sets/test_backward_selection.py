"""Test backward elimination of features by usefulness and price."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from gatewise_training import FeatureCosts
from gatewise_training.cascades.feature_sets.backward_selection import backward_sequences
from gatewise_training.cascades.fit_problem import FitProblem
from tests.support.fit_problems import make_problem


def find_backward_sets(problem: FitProblem, **settings: Any) -> list[Any]:
    """Find the nested sets of the first sequence, the smallest first."""
    return backward_sequences(problem, **settings)[0]


@pytest.fixture(scope="module")
def parity_problem() -> FitProblem:
    """Return a problem that columns 2 and 5 solve together; column 0 alone is right for 60 %."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 8))
    y = (x[:, 2] > 0) ^ (x[:, 5] > 0)
    x[:, 0] = np.where(rng.random(1500) < 0.6, y, 1 - y)
    return make_problem(x, y)


def test_sets_are_nested_and_keep_features_that_only_work_together(
    parity_problem: FitProblem,
) -> None:
    sets = find_backward_sets(parity_problem, n_stages=8)
    set_of_two = next(features for features in sets if len(features) == 2)
    assert set_of_two.tolist() == [2, 5]  # whose signs give the label together
    costs = FeatureCosts([1, 2, 3, 1, 2, 3, 1, 2])
    max_set_cost = 0.6 * costs.total
    sets = find_backward_sets(
        replace(parity_problem, costs=costs), n_stages=5, max_set_cost=max_set_cost
    )
    assert 1 <= len(sets) <= 5
    assert all(costs.price(features) <= max_set_cost for features in sets)
    for smaller, larger in pairwise(sets):
        assert set(smaller) < set(larger)


def test_of_two_equal_features_the_costly_one_is_dropped_first() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1000, 3))
    x[:, 1] = x[:, 0]
    sets = find_backward_sets(
        make_problem(x, x[:, 0] > 0, FeatureCosts([5.0, 1.0, 1.0])), n_stages=5
    )
    assert sets[0].tolist() == [1]


def test_groups_with_only_a_shared_price_are_dropped_as_a_whole(parity_problem: FitProblem) -> None:
    costs = FeatureCosts(
        np.zeros(8), group=["a", "a", "b", "b", "c", "c", "d", "d"], shared=dict.fromkeys("abcd", 1)
    )
    sets = find_backward_sets(replace(parity_problem, costs=costs), n_stages=4)
    assert sets
    # each pair of features costs the shared price 1
    assert all(len(features) == 2 * costs.price(features) for features in sets)


def test_free_features_are_never_dropped(parity_problem: FitProblem) -> None:
    sets = find_backward_sets(
        replace(parity_problem, costs=FeatureCosts([0, 1, 1, 0, 1, 1, 1, 1])), n_stages=8
    )
    assert sets[0].tolist() == [0, 3]  # the two features of price 0
    assert (
        find_backward_sets(replace(parity_problem, costs=FeatureCosts(np.zeros(8))), n_stages=8)
        == []
    )


def test_elimination_supports_many_classes_and_missing_values() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(900, 4))
    y = np.digitize(x[:, 3], [-0.5, 0.5])
    x[rng.random(x.shape) < 0.1] = np.nan
    sets = find_backward_sets(make_problem(x, y), n_stages=3)
    assert sets[0].tolist() == [3]  # the only feature with information


@pytest.mark.slow
def test_many_features_get_a_second_sequence_of_cheap_sets() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(800, 200))
    wide_problem = make_problem(x, x.sum(axis=1) > 0)
    sequence, cheap_sequence = backward_sequences(wide_problem, n_stages=6)
    # each feature costs 1, so the cost of a set is its size
    costs = sorted([len(features) for features in [*sequence, *cheap_sequence]])
    assert len(cheap_sequence) >= 2
    assert len(set(costs)) == len(costs)
    # its costliest set is far cheaper than that of the first sequence
    assert len(cheap_sequence[-1]) < len(sequence[-1]) / 4
    for sets in (sequence, cheap_sequence):
        assert all(set(smaller) < set(larger) for smaller, larger in pairwise(sets))
    costs_in_reach = [cost for cost in costs if cost <= len(cheap_sequence[-1])]
    assert max(higher / lower for lower, higher in pairwise(costs_in_reach)) <= 2
    # the path of 60 features is too short for a second sequence
    assert len(backward_sequences(make_problem(x[:, :60], x[:, 0] > 0), n_stages=3)) == 1
