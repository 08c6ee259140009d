"""Samples for fits of the Adapt family, with prices of features and groups."""

from __future__ import annotations

import numpy as np

from gatewise_training import FeatureCosts
from gatewise_training.adapt.sample import Sample

PRICES = FeatureCosts(
    [1.0, 0.5, 2.0, 0.0, 1.0, 0.0],
    group=["a", "a", None, "b", "b", None],
    shared={"a": 1.5, "b": 0.7},
)


def draw_sample(n_classes=2, costs=PRICES, n=300, seed=0, has_equal_weights=False):
    """Draw correlated features, noisy linear labels, and small losses of the high-cost model."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, costs.n_features)) @ rng.normal(size=2 * (costs.n_features,))
    margins = x @ rng.normal(size=(costs.n_features, n_classes))
    y = (margins + 2.0 * rng.normal(size=margins.shape)).argmax(axis=1)
    weight = np.ones(n) if has_equal_weights else rng.uniform(0.5, 1.5, n)
    f0_loss = rng.exponential(0.1, n)
    return Sample(x.astype(np.float32), y, weight / weight.mean(), f0_loss, n_classes, costs)
