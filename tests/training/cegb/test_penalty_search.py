"""Penalties spread by what their models cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gatewise.costs import FeatureCosts
from gatewise_training import AdaptGBRT
from gatewise_training.cegb.penalty_search import CLOSE, spread_penalties

WORTH = st.lists(st.floats(1e-6, 100.0), min_size=1, max_size=6)


@given(WORTH, st.lists(st.floats(0.1, 50.0), min_size=6, max_size=6))
def test_every_set_of_features_is_found(worth, prices):
    """Of a model that uses the features worth the penalty, the search meets each such set."""
    own, worth = np.array(prices[: len(worth)]), np.array(worth)
    tried = []

    def cost_at(penalty):
        tried.append(penalty)
        return float(own[worth > penalty].sum())

    found = spread_penalties(cost_at, FeatureCosts(own), 400)
    assert sorted(found) == sorted(set(tried))
    assert found[-1] == 0.0
    assert found == sorted(found, reverse=True)
    costs = [cost_at(p) for p in found]
    assert costs == sorted(costs)
    apart = np.sort(worth)[:-1] * CLOSE**2 < np.sort(worth)[1:]
    assert len({c for c in costs if c > 0}) >= 1 + apart.sum()


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_searches_make_at_most_the_requested_fits(n):
    calls = []
    found = spread_penalties(
        lambda p: calls.append(p) or float(np.ceil(5 / (1 + 100 * p))), FeatureCosts.uniform(5), n
    )
    assert len(found) == len(calls) == n
    # without a price there is nothing to spread
    assert len(spread_penalties(lambda p: 0.0, FeatureCosts(np.zeros(3)), n)) == min(n, 3)


@pytest.mark.slow
def test_adapt_has_stages_of_few_features_and_of_many():
    X, y = load_wine(return_X_y=True)
    f0 = make_pipeline(StandardScaler(), LogisticRegression())
    system = AdaptGBRT(
        f0, stop="gate", p_full=(0.3,), prefixes=(1.0,), n_rounds=40, random_state=0
    ).fit(X, y)
    sizes = {len(chain[0].features) for chain in system.chains_}
    assert {1, 2} <= sizes
    assert max(sizes) >= 6
