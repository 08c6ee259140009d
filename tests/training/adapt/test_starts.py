"""Test the starts of the alternation: a feature, and the side of its values that is offloaded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gatewise_training import FeatureCosts
from gatewise_training.adapt.alternation import (
    Start,
    best_starts,
)
from gatewise_training.adapt.sample import Sample


def test_starts_offload_the_given_share_of_weight():
    """Rows that the start offloads get the probability 0.98, others 0.02."""
    column = np.array([3.0, 1.0, 2.0, 0.0])
    weight = np.array([1.0, 1.0, 2.0, 4.0])  # the two largest values have 3/8 of the weight
    np.testing.assert_allclose(
        Start(0, is_upper=True).offload(column, weight, 3 / 8), [0.98, 0.02, 0.98, 0.02]
    )
    np.testing.assert_allclose(
        Start(0, is_upper=False).offload(column, weight, 0.5), [0.02, 0.02, 0.02, 0.98]
    )


def test_starts_rank_the_feature_of_gate_and_answer_first():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 4)).astype(np.float32)
    # rows with feature 2 above -0.5 can be answered by a linear model on that feature
    y = np.where(x[:, 2] > -0.5, x[:, 2] > 0.5, rng.random(1000) < 0.5).astype(np.int64)
    costs = FeatureCosts([1.0, 1.0, 1.0, 0.0])
    training_sample = Sample(x, y, np.ones(1000), np.zeros(1000), 2, costs)
    starts = best_starts(training_sample, p_full=0.3, n_starts=3)
    assert starts[0] == Start(2, is_upper=False)
    assert {start.feature for start in starts} == {0, 1, 2}  # every model has the free feature
    # the best start becomes the last if its feature has a very high price
    costly_sample = replace(training_sample, costs=FeatureCosts([1.0, 1.0, 1e6, 0.0]))
    assert best_starts(costly_sample, p_full=0.3, n_starts=3)[-1] == Start(2, is_upper=False)
    assert best_starts(training_sample, p_full=0.3, n_starts=0) == []
