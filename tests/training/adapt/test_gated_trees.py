"""Test trees with a gate: GreedyMiser as a special case, leaves, and shared prices.

f0 and f1 are the high-cost and the low-cost model; `p_full` bounds the share of offloaded rows.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from gatewise_training import FeatureCosts
from gatewise_training.adapt.gated_trees import grow_gated_trees
from gatewise_training.adapt.sample import Sample
from gatewise_training.learners.growth_settings import Growth
from tests.support.adapt_samples import PRICES, draw_sample

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("newton", [False, True], ids=["first-order", "newton"])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("costs", [FeatureCosts.uniform(6), PRICES], ids=["uniform", "groups"])
def test_adapt_without_offloading_grows_the_trees_of_greedy_miser(costs, n_classes, newton):
    training_sample = draw_sample(n_classes, costs, n=500)
    growth = Growth(n_rounds=12, num_leaves=8, learning_rate=0.3, newton=newton)
    # with p_full=0 no row may be offloaded; p_full=None grows trees without a gate
    adapt_trees = grow_gated_trees(training_sample, growth, 0.004, p_full=0.0, warm_up=4, seed=0)
    miser_trees = grow_gated_trees(training_sample, growth, 0.004, p_full=None, seed=0)
    n_margins = 1 if n_classes == 2 else n_classes
    assert (adapt_trees.n_outputs, miser_trees.n_outputs) == (n_margins + 1, n_margins)
    f1_trees, _ = adapt_trees.select_trees(np.flatnonzero(adapt_trees.output < n_margins).tolist())
    assert 0 < f1_trees.n_trees <= 12 * n_margins  # trees without a split are left out
    assert (miser_trees.feature >= 0).any()
    for name in ("feature", "threshold", "left", "right", "value", "roots", "output"):
        np.testing.assert_array_equal(getattr(f1_trees, name), getattr(miser_trees, name))
    # the gate stays at 0
    np.testing.assert_array_equal(adapt_trees.margins(training_sample.x)[:, -1], 0)


def test_first_order_trees_fit_the_gradient_by_least_squares():
    training_sample = draw_sample(n=400, costs=FeatureCosts.uniform(6))
    growth = Growth(n_rounds=1, num_leaves=2, learning_rate=1.0, newton=False)
    model = grow_gated_trees(training_sample, growth, 0.0, p_full=None, seed=0)
    base_margin = float(model.base[0])
    margin_changes = model.margins(training_sample.x)[:, 0] - base_margin
    smaller_change, larger_change = np.unique(margin_changes)
    for change in (smaller_change, larger_change):
        rows = margin_changes == change
        # a leaf's value is the mean of the weighted negative gradients of its rows
        residuals = training_sample.weight[rows] * (training_sample.y[rows] - expit(base_margin))
        assert change == pytest.approx(residuals.mean(), rel=1e-5)  # float32 leaves


@pytest.mark.parametrize("p_full", [None, 0.3])
def test_the_first_use_of_a_group_pays_its_shared_price_once(p_full):
    # the first feature is worth the shared price; the second is worth only its own price
    rng = np.random.default_rng(0)
    x = rng.normal(size=(800, 3)).astype(np.float32)
    y = (2.0 * x[:, 0] + x[:, 1] + 0.3 * rng.normal(size=800) > 0).astype(np.int64)
    growth = Growth(n_rounds=30, num_leaves=8, learning_rate=0.3)

    def find_used_features(costs, nats):
        training_sample = Sample(x, y, np.ones(800), np.full(800, 0.02), 2, costs)
        gamma = nats * costs.total / costs.n_features  # per unit of cost, not per mean feature cost
        trees = grow_gated_trees(training_sample, growth, gamma, p_full=p_full, warm_up=10, seed=0)
        used_features = set(trees.feature[trees.feature >= 0].tolist())
        return tuple(sorted(used_features - {2}))  # feature 2 is noise, which cheap splits may use

    # the first use of either feature costs 2.1 with both tables of prices
    group_price = FeatureCosts([0.1, 0.1, 0.1], group=["g", "g", None], shared={"g": 2.0})
    own_prices = FeatureCosts([2.1, 2.1, 0.1])
    pairs_of_feature_sets = {
        (find_used_features(own_prices, nats), find_used_features(group_price, nats))
        for nats in np.geomspace(0.02, 0.5, 12)
    }
    assert ((0,), (0, 1)) in pairs_of_feature_sets
    assert pairs_of_feature_sets <= {((0, 1), (0, 1)), ((0,), (0, 1)), ((0,), (0,)), ((), ())}
