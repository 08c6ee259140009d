"""Stages on device, gateway and cloud: who pays what, counted row by row from the definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise.acquisition import exit_costs
from gatewise.prices import request_bytes
from gatewise.tiers import TIERS, cascade_costs
from gatewise_training import CloudPrices, FeatureCosts
from tests.support.prices import price_of

K = 8
PRICES = CloudPrices(request=1.5, byte=0.01, evaluation=30.0, gateway=0.25)
COSTS = FeatureCosts(
    [1, 2, 0.5, 1, 3, 1, 0.25, 4],
    group=["a", "a", "a", "b", "b", None, None, None],
    shared={"a": 2.0, "b": 1.0},
)


def cost_step_by_step(exit_, sets, tiers, cloud, accounting):
    """Count what one instance pays, step by step."""
    acquired, extra, gone = set(), 0.0, False
    carried = set(cloud).union(*(s for s, t in zip(sets, tiers, strict=True) if t != "device"))
    message = PRICES.request + PRICES.byte * request_bytes(len(carried))
    for s in range(min(exit_, len(sets) - 1) + 1):
        if tiers[s] == "device":
            acquired |= sets[s]
        elif not gone:
            gone, acquired, extra = True, acquired | carried, message
            extra += PRICES.gateway if "gateway" in tiers else 0.0
    if exit_ == len(sets):
        if not gone:
            acquired, extra = acquired | carried, message
        extra += PRICES.evaluation
        if accounting == "paper":
            acquired = set(cloud)
    return price_of(COSTS, acquired) + extra


feature_sets = st.sets(st.integers(0, K - 1))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(feature_sets, st.sampled_from(range(3))), min_size=1, max_size=5),
    feature_sets,
    st.booleans(),
)
def test_costs_are_those_counted_step_by_step(stages, cloud, union):
    sets = [s for s, _ in stages]
    ranks = sorted(rank for _, rank in stages)
    tiers = ["device", *(TIERS[rank] for rank in ranks[1:])]
    masks = [COSTS.mask(np.array(sorted(s), int)) for s in sets]
    asked = COSTS.mask(np.array(sorted(cloud), int))
    got = cascade_costs(COSTS, masks, asked, PRICES, tiers, union=union)
    accounting = "union" if union else "paper"
    expected = [cost_step_by_step(e, sets, tiers, cloud, accounting) for e in range(len(sets) + 1)]
    assert got.tolist() == pytest.approx(expected, abs=1e-12)


def test_all_on_the_device_is_as_without_tiers():
    rng = np.random.default_rng(0)
    acquired = [rng.random((50, K)) < 0.3, rng.random((50, K)) < 0.6]
    asked = COSTS.mask([0, 5, 7])
    plain = exit_costs(COSTS, acquired, asked, request=PRICES.of_offload(3))
    for tiers in ((), ("device", "device")):
        assert np.array_equal(cascade_costs(COSTS, acquired, asked, PRICES, tiers), plain)
