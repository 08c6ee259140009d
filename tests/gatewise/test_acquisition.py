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

#: Prices of five features: two groups of two, of which b has a free member, and one without group.
COSTS = FeatureCosts(
    [1.0, 2.0, 0.0, 0.5, 4.0], group=["a", "a", "b", "b", None], shared={"a": 3.0, "b": 0.25}
)

#: A binary fraction, so that sums with it are exact.
REQUEST_PRICE = 0.125


@given(st.integers(0, 2**32 - 1), st.booleans(), st.booleans())
def test_rows_pay_for_unions_and_for_each_group_once(seed, pays_for_stages, has_cloud):
    rng = np.random.default_rng(seed)
    n_rows, n_stages, n_features = 6, 3, COSTS.n_features
    # stages acquire the same features for all rows, or features that depend on the row
    acquired_masks = [
        rng.random(n_features if rng.random() < 0.4 else (n_rows, n_features)) < 0.3
        for _ in range(n_stages)
    ]
    offload_mask = rng.random(n_features) < 0.6 if has_cloud else None
    costs_by_exit = exit_costs(
        COSTS,
        acquired_masks,
        offload_mask,
        request_price=REQUEST_PRICE if has_cloud else 0.0,
        pays_for_stages=pays_for_stages,
    )
    n_exits = n_stages + 1  # the last one is the offload
    depends_on_row = any(mask.ndim == 2 for mask in acquired_masks)
    assert costs_by_exit.shape == ((n_exits, n_rows) if depends_on_row else (n_exits,))
    exits = rng.integers(0, n_exits, n_rows)
    costs = select_exit_costs(costs_by_exit, exits)
    for row in range(n_rows):
        paid_features = set()
        # the stages up to the exit; before the offload there are all of them
        for mask in acquired_masks[: exits[row] + 1]:
            row_mask = np.broadcast_to(mask, (n_rows, n_features))[row]
            paid_features |= set(np.flatnonzero(row_mask).tolist())
        request_price = 0.0
        if exits[row] == n_stages and has_cloud:
            request_features = set(np.flatnonzero(offload_mask).tolist())
            paid_features = request_features | (paid_features if pays_for_stages else set())
            request_price = REQUEST_PRICE
        expected_cost = sum_prices(COSTS, paid_features) + request_price
        assert costs[row] == pytest.approx(expected_cost, abs=1e-12)  # sums in another order


def test_only_trees_acquire_node_by_node():
    ones = np.ones(2, np.float32)
    weights, bias = np.ones((2, 1), np.float32), np.zeros(1, np.float32)
    model = LinearModel(ones, ones, weights, bias)
    stage = Stage(model, np.array([3, 0]), "sigmoid")
    acquired_mask = stage.acquired(np.zeros((4, 5), np.float32))
    # one mask for all rows
    assert np.flatnonzero(acquired_mask).tolist() == [0, 3]
    with pytest.raises(InputError, match="only a stage of trees"):
        Stage(model, np.array([3, 0]), "sigmoid", acquisition="node")


@pytest.mark.parametrize(
    ("max_cost", "expected_exit"),
    # -1: no exit is affordable; of the two exits that cost 3 the last one counts
    [(0.9, -1), (1.0, 0), (2.9, 0), (3.0, 2), (6.9, 2), (7.0, 3), (99.0, 3)],
)
def test_last_exit_within_finds_the_last_affordable_exit(max_cost, expected_exit):
    assert last_exit_within(np.array([1.0, 3.0, 3.0, 7.0]), max_cost) == expected_exit


def test_a_request_without_a_price_is_free():
    costs = FeatureCosts([1.0, 2.0])
    stage_mask, offload_mask = np.array([True, False]), np.array([True, True])
    assert exit_costs(costs, [stage_mask], offload_mask).tolist() == [1.0, 3.0]
    costs_with_price = exit_costs(costs, [stage_mask], offload_mask, request_price=0.5)
    assert costs_with_price.tolist() == [1.0, 3.5]
    # without a cloud, the last entry repeats the cost of the last stage
    assert exit_costs(costs, [stage_mask]).tolist() == [1.0, 1.0]
