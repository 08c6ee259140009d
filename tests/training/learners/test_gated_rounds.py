"""The compiled rounds of Adapt-GBRT, compared with the rounds on LightGBM."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise_training import FeatureCosts
from gatewise_training.adapt import gated_trees
from gatewise_training.adapt.gated_trees import grow_gated_trees
from gatewise_training.adapt.sample import Sample
from gatewise_training.learners.growth_settings import Growth

GROUPED_COSTS = FeatureCosts(
    [1.0, 0.5, 2.0, 1.0, 0.2], group=["a", "a", None, "b", "b"], shared={"a": 2.0, "b": 0.5}
)


def make_sample(n_classes, costs=None, n=900):
    """Make columns of few values, so that both engines have the same bins, and unequal weights."""
    rng = np.random.default_rng(3)
    x = rng.integers(0, 20, (n, 5)).astype(np.float32)
    scores = x[:, 0] + x[:, 1] * (x[:, 2] > 9) + rng.normal(0, 4, n)
    y = np.digitize(scores, np.quantile(scores, np.arange(1, n_classes) / n_classes))
    weight = rng.uniform(0.5, 1.5, n)
    f0_loss = rng.exponential(0.2, n)
    return Sample(
        x, y, weight / weight.mean(), f0_loss, n_classes, costs or FeatureCosts.uniform(5)
    )


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("newton", [True, False])
@pytest.mark.parametrize(("n_leaves", "max_depth"), [(8, None), (31, 3)])
def test_compiled_trees_equal_those_of_lightgbm(
    n_classes, newton, n_leaves, max_depth, monkeypatch
):
    sample = make_sample(n_classes)
    growth = Growth(n_rounds=5, num_leaves=n_leaves, max_depth=max_depth, newton=newton)
    settings = {"p_full": 0.4, "warm_up": 2, "seed": 0}
    compiled_trees = grow_gated_trees(sample, growth, 0.0, **settings)
    monkeypatch.setattr(gated_trees, "MAX_SMALL_ROWS", 0)  # larger samples are left to LightGBM
    lightgbm_trees = grow_gated_trees(sample, growth, 0.0, **settings)
    assert compiled_trees.n_trees == 5 * (lightgbm_trees.n_outputs - 1) + 3
    differences = compiled_trees.margins(sample.x) - lightgbm_trees.margins(sample.x)
    # a few rows differ, because LightGBM estimates the rows of a leaf from its hessian
    assert (np.abs(differences).max(axis=1) < 1e-3).mean() > 0.99


@pytest.mark.parametrize("costs", [None, GROUPED_COSTS], ids=["uniform", "grouped"])
def test_fewer_features_are_used_at_higher_prices(costs, monkeypatch):
    sample = make_sample(2, costs)
    growth = Growth(n_rounds=20, num_leaves=8)
    feature_sets = [
        set(
            grow_gated_trees(sample, growth, gamma, p_full=0.3, warm_up=5, seed=0)
            .used_features()
            .tolist()
        )
        for gamma in (1.0, 0.05, 0.01, 0.0)
    ]
    assert feature_sets[0] == set()
    assert set() < feature_sets[1] <= feature_sets[2] <= feature_sets[3] == set(range(5))
    if costs is not None:  # on LightGBM several trees of one round may pay for the same group
        return
    monkeypatch.setattr(gated_trees, "MAX_SMALL_ROWS", 0)
    lightgbm_trees = grow_gated_trees(sample, growth, 0.05, p_full=0.3, warm_up=5, seed=0)
    assert set(lightgbm_trees.used_features().tolist()) == feature_sets[1]


def test_missing_values_go_to_the_child_with_the_larger_gain():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 2)).astype(np.float32)
    x[rng.random(600) < 0.3, 0] = np.nan
    y = (np.isnan(x[:, 0]) | (x[:, 0] > 1)).astype(np.int64)
    sample = Sample(x, y, np.ones(600), np.full(600, 0.1), 2, FeatureCosts.uniform(2))
    trees = grow_gated_trees(sample, Growth(n_rounds=40, num_leaves=4), 0.0, p_full=None, seed=0)
    # missing values go to the side of the high values, which have their class
    assert ((trees.margins(x)[:, 0] > 0) == y).mean() > 0.98
    np.testing.assert_array_equal(trees.margins(x), trees.run(x))
