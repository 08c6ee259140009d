"""Search for penalties that spread the costs of their models."""

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
from gatewise_training.cegb.sweep import MIN_RATIO, spread_penalties

FEATURE_VALUES = st.lists(st.floats(1e-6, 100.0), min_size=1, max_size=6)


@given(FEATURE_VALUES, st.lists(st.floats(0.1, 50.0), min_size=6, max_size=6))
def test_search_reaches_every_set_of_features(feature_values, prices):
    """The model of a penalty uses the features with a value above the penalty."""
    own = np.array(prices[: len(feature_values)])
    value_array = np.array(feature_values)
    fitted_penalties = []

    def measure_cost(penalty):
        fitted_penalties.append(penalty)
        return float(own[value_array > penalty].sum())

    penalties = spread_penalties(measure_cost, FeatureCosts(own), 400)
    assert sorted(penalties) == sorted(set(fitted_penalties))
    assert penalties[-1] == 0.0
    assert penalties == sorted(penalties, reverse=True)
    costs = [measure_cost(penalty) for penalty in penalties]
    assert costs == sorted(costs)
    # The search does not divide intervals of penalties whose ends differ by less than MIN_RATIO.
    sorted_values = np.sort(value_array)
    is_separable = sorted_values[:-1] * MIN_RATIO**2 < sorted_values[1:]
    assert len({cost for cost in costs if cost > 0}) >= 1 + is_separable.sum()


@pytest.mark.parametrize("n_penalties", [1, 2, 3, 8])
def test_search_makes_the_requested_number_of_fits(n_penalties):
    fitted_penalties = []

    def measure_cost(penalty):
        fitted_penalties.append(penalty)
        return float(np.ceil(5 / (1 + 100 * penalty)))  # 5 features without a penalty, then fewer

    penalties = spread_penalties(measure_cost, FeatureCosts.uniform(5), n_penalties)
    assert len(penalties) == len(fitted_penalties) == n_penalties


@pytest.mark.parametrize("n_penalties", [1, 2, 3, 8])
def test_search_ends_after_the_first_penalties_if_features_are_free(n_penalties):
    penalties = spread_penalties(lambda _penalty: 0.0, FeatureCosts(np.zeros(3)), n_penalties)
    # 0 and both FIRST_PENALTIES, which leave no gap between costs
    assert len(penalties) == min(n_penalties, 3)


@pytest.mark.slow
def test_adapt_gbrt_has_stages_of_few_and_of_many_features():
    X, y = load_wine(return_X_y=True)
    high_cost_model = make_pipeline(StandardScaler(), LogisticRegression())
    system = AdaptGBRT(
        high_cost_model, stop="gate", p_full=(0.3,), prefixes=(1.0,), n_rounds=25, random_state=0
    ).fit(X[::2], y[::2], validation=(X[1::2], y[1::2]))
    feature_counts = {len(chain[0].features) for chain in system.chains_}
    assert {1, 2} <= feature_counts
    assert max(feature_counts) >= 6  # of the 13 features
