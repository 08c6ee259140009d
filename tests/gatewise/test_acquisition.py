"""Costs of exits, compared with the prices of the features that each row acquires."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise.acquisition import exit_costs, last_exit_within, select_exit_costs
from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise.models.linear import LinearModel
from gatewise.models.stage import Stage
from tests.support.prices import sum_prices

COSTS = FeatureCosts(
    [1.0, 2.0, 0.0, 0.5, 4.0], group=["a", "a", "b", "b", None], shared={"a": 3.0, "b": 0.25}
)


@given(st.integers(0, 2**32 - 1), st.booleans(), st.booleans())
def test_rows_pay_for_unions_and_for_each_group_once(seed, pays_for_stages, has_cloud):
    rng = np.random.default_rng(seed)
    # stages acquire the same features for all rows, or features that depend on the row
    n_rows, n_stages = 6, 3
    acquired_masks = [
        rng.random(5) < 0.3 if rng.random() < 0.4 else rng.random((n_rows, 5)) < 0.3
        for _ in range(n_stages)
    ]
    cloud_mask = rng.random(5) < 0.6 if has_cloud else None
    costs_by_exit = exit_costs(
        COSTS,
        acquired_masks,
        cloud_mask,
        request_price=0.125 if has_cloud else 0.0,
        pays_for_stages=pays_for_stages,
    )
    assert costs_by_exit.shape == (
        (4, n_rows) if any(mask.ndim == 2 for mask in acquired_masks) else (4,)
    )
    exits = rng.integers(0, 4, n_rows)
    costs = select_exit_costs(costs_by_exit, exits)
    for row in range(n_rows):
        acquired_set = set()
        for stage_number in range(min(exits[row] + 1, n_stages)):
            mask = np.broadcast_to(acquired_masks[stage_number], (n_rows, 5))[row]
            acquired_set |= set(np.flatnonzero(mask).tolist())
        expected_cost = sum_prices(COSTS, acquired_set)
        if exits[row] == n_stages and has_cloud:
            request_set = set(np.flatnonzero(cloud_mask).tolist())
            paid_set = request_set | acquired_set if pays_for_stages else request_set
            expected_cost = sum_prices(COSTS, paid_set) + 0.125  # and the price of the request
        assert costs[row] == pytest.approx(expected_cost, abs=1e-12)


def test_only_trees_acquire_node_by_node():
    ones = np.ones(2, np.float32)
    model = LinearModel(ones, ones, np.ones((2, 1), np.float32), np.zeros(1, np.float32))
    stage = Stage(model, np.array([3, 0]), "sigmoid")
    acquired_mask = stage.acquired(np.zeros((4, 5), np.float32))
    assert np.flatnonzero(acquired_mask).tolist() == [0, 3]
    with pytest.raises(InputError, match="only a stage of trees"):
        Stage(model, np.array([3, 0]), "sigmoid", acquisition="node")


@pytest.mark.parametrize(
    ("max_cost", "exit_number"),
    [(0.9, -1), (1.0, 0), (2.9, 0), (3.0, 2), (6.9, 2), (7.0, 3), (99.0, 3)],
)
def test_last_exit_within_finds_the_last_affordable_exit(max_cost, exit_number):
    assert last_exit_within(np.array([1.0, 3.0, 3.0, 7.0]), max_cost) == exit_number


def test_a_request_without_a_price_is_free():
    costs = FeatureCosts([1.0, 2.0])
    first_feature, both_features = np.array([True, False]), np.array([True, True])
    assert exit_costs(costs, [first_feature], both_features).tolist() == [1.0, 3.0]
    costs_with_request = exit_costs(costs, [first_feature], both_features, request_price=0.5)
    assert costs_with_request.tolist() == [1.0, 3.5]
    assert exit_costs(costs, [first_feature]).tolist() == [1.0, 1.0]
