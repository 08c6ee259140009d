"""Test forward selection of features by usefulness and price."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from gatewise_training import FeatureCosts
from gatewise_training.cascades.feature_sets.forward_selection import (
    forward_sets,
    units_of_acquisition,
)
from gatewise_training.cascades.feature_sets.penalised_selection import nested_sets
from tests.support.fit_problems import make_problem
from tests.training.cascades.feature_sets.test_backward_selection import find_backward_sets


@pytest.fixture(scope="module")
def linear_problem():
    """Return a problem that features 0 to 2 solve, mostly feature 0; feature 3 is noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 4))
    y = (X[:, 0] + 0.3 * X[:, 1] + 0.3 * X[:, 2] > 0).astype(np.int64)
    return make_problem(X, y)


@pytest.mark.slow
def test_informative_features_are_selected_first(linear_problem):
    sets = forward_sets(linear_problem, n_stages=8)
    assert sets[0].tolist() == [0]
    assert all(set(smaller) < set(larger) for smaller, larger in pairwise(sets))
    assert set(sets[2].tolist()) == {0, 1, 2}
    assert len(forward_sets(linear_problem, n_stages=8, max_set_cost=2.0)[-1]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("find_sets", [nested_sets, forward_sets, find_backward_sets])
def test_no_set_exceeds_a_limit(linear_problem, find_sets):
    costs = FeatureCosts([3, 2, 2, 1])
    sets = find_sets(replace(linear_problem, costs=costs), n_stages=5, max_set_cost=5.5)
    assert max(costs.price(features) for features in sets) == 5  # the prices 3 and 2


def test_forward_selection_takes_costly_features_late(linear_problem):
    sets = forward_sets(replace(linear_problem, costs=FeatureCosts([100, 1, 1, 1])), n_stages=8)
    assert 0 not in sets[0]


@pytest.mark.slow
def test_features_with_only_a_shared_price_are_selected_together(linear_problem):
    costs = FeatureCosts(np.zeros(4), group=["a", "a", "b", "b"], shared={"a": 1.0, "b": 1.0})
    assert [unit.tolist() for unit in units_of_acquisition(costs)] == [[0, 1], [2, 3]]
    sets = forward_sets(replace(linear_problem, costs=costs), n_stages=8)
    assert [features.tolist() for features in sets] == [[0, 1], [0, 1, 2, 3]]


@pytest.mark.slow
def test_lazy_greedy_selection_finds_the_useful_features_in_order():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(600, 20))
    feature_effects = np.array([2.0, 1.5, 1.2, 1.0, *np.zeros(16)])
    y = (X @ feature_effects + 0.3 * rng.normal(size=600) > 0).astype(np.int64)
    sets = forward_sets(make_problem(X, y), n_stages=20)
    assert sets[3].tolist() == [0, 1, 2, 3]  # the four features with an effect
