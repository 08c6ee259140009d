from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from gatewise_training import FeatureCosts
from gatewise_training.cascades.forward_selection import acquisition_units, forward_sets
from gatewise_training.cascades.penalised_selection import nested_sets
from tests.support.fit_problems import problem_of
from tests.training.cascades.test_backward_selection import backward_sets


@pytest.fixture(scope="module")
def problem():
    """Feature 0 tells nearly all; 1 and 2 the rest; 3 is noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 4))
    y = (X[:, 0] + 0.3 * X[:, 1] + 0.3 * X[:, 2] > 0).astype(np.int64)
    return problem_of(X, y)


def test_informative_features_come_first_and_noise_never(problem):
    sets = forward_sets(problem, n_stages=8)
    assert sets[0].tolist() == [0]
    assert all(set(a) < set(b) for a, b in pairwise(sets))
    assert set(sets[2].tolist()) == {0, 1, 2}
    assert len(forward_sets(problem, n_stages=8, limit=2.0)[-1]) == 2


@pytest.mark.parametrize("find", [nested_sets, forward_sets, backward_sets])
def test_no_set_exceeds_a_limit(problem, find):
    costs = FeatureCosts([3, 2, 2, 1])
    sets = find(replace(problem, costs=costs), n_stages=5, limit=5.5)
    assert max(costs.price(chosen) for chosen in sets) == 5


def test_forward_selection_takes_costly_features_late(problem):
    sets = forward_sets(replace(problem, costs=FeatureCosts([100, 1, 1, 1])), n_stages=8)
    assert 0 not in sets[0]


def test_groups_are_acquired_whole(problem):
    costs = FeatureCosts(np.zeros(4), group=["a", "a", "b", "b"], shared={"a": 1.0, "b": 1.0})
    assert [p.tolist() for p in acquisition_units(costs)] == [[0, 1], [2, 3]]
    sets = forward_sets(replace(problem, costs=costs), n_stages=8)
    assert [s.tolist() for s in sets] == [[0, 1], [0, 1, 2, 3]]


def test_lazy_greedy_finds_what_greedy_finds():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(600, 20))
    strength = np.array([2.0, 1.5, 1.2, 1.0, *np.zeros(16)])
    y = (X @ strength + 0.3 * rng.normal(size=600) > 0).astype(np.int64)
    sets = forward_sets(problem_of(X, y), n_stages=20)
    assert sets[3].tolist() == [0, 1, 2, 3]
