"""Fits on tables in which some or all features are free and requests have a price."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier

from gatewise.costs import FeatureCosts
from gatewise_training import AdaptGBRT, CloudPrices, ConfidenceCascade, StagedCascade

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("two_folds")]  # many fits

FOREST = RandomForestClassifier(10, random_state=0)
SYSTEMS = [
    StagedCascade(FOREST, n_stages=2, families=("boosting",), effort="low", random_state=0),
    AdaptGBRT(FOREST, penalties=(0.001,), n_rounds=10, random_state=0),
    ConfidenceCascade(FOREST, low_cost_model="linear", n_subsets=3, random_state=0),
]
HALF_FREE_PRICES = np.repeat([0.0, 1.0], 5)
COSTS_BY_FREE_FEATURES = {
    "all": np.zeros(10),
    "some": HALF_FREE_PRICES,
    "group": FeatureCosts(HALF_FREE_PRICES, group=["a"] * 3 + [None] * 7, shared={"a": 0.0}),
}


@pytest.mark.parametrize("costs", COSTS_BY_FREE_FEATURES.values(), ids=COSTS_BY_FREE_FEATURES)
@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: type(system).__name__)
def test_fits_end_and_points_pay_for_requests(system, costs):
    X, y = load_breast_cancer(return_X_y=True)
    system.set_params(feature_costs=costs, cloud_prices=CloudPrices(request=1.0))
    system.fit(X[:400, :10], y[:400])
    points = system.frontier_.points
    # with free features, a point with requests costs its offload rate at least
    assert sum(point.cost == 0 for point in points) <= 1
    assert all(point.offload_rate <= point.cost for point in points)
    # the more frequent class has 63 % of the rows
    assert system.score(X[400:, :10], y[400:]) > 0.85
