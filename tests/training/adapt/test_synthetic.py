"""Test the joint choice of features on Synthetic-2 of the Adapt paper.

The data is described in section 5 and figure 3 of the paper (NIPS 2017).

It has four clusters in two dimensions. Each feature costs 1. The high-cost model f0 reads both
features and is always right at a cost of 2. The low-cost model f1 reads one feature: feature 1 or 2
is column 0 or 1 of the rows. Feature 1 separates cluster 1 from the others, so f1 answers one
cluster and f0 three, at a mean cost of 1.75. Feature 2 separates clusters 3 and 4 from each
other and from clusters 1 and 2, so f1 answers two clusters, at a mean cost of 1.5. Clusters 1
and 2 have more training rows, so an L1 penalty chooses feature 1. Test rows are balanced
because the paper reports the mean cost over the four clusters.
"""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.svm import SVC

from gatewise_training import AdaptLin, FeatureCosts, L1Cascade

pytestmark = [
    pytest.mark.slow,
    # Rows are sorted by cluster.
    pytest.mark.filterwarnings("ignore::gatewise.errors.GroupsWarning"),
]

CLUSTER_CENTRES = np.array([[-1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, -1.0]])
CLUSTER_CLASSES = np.array([1, 0, 1, 0])
COSTS = FeatureCosts.uniform(2)


def draw_rows(sizes, seed):
    """Draw X, y and the cluster of each row, with a noise that leaves the clusters apart."""
    clusters = np.repeat(np.arange(4), sizes)
    noise = 0.12 * np.random.default_rng(seed).normal(size=(len(clusters), 2))
    return CLUSTER_CENTRES[clusters] + noise, CLUSTER_CLASSES[clusters], clusters


VALIDATION_ROWS = draw_rows([250] * 4, 1)
TEST_ROWS = draw_rows([500] * 4, 2)


def fit_and_measure(method_class, **settings):
    """Fit a system without loss and measure it on balanced rows.

    Return the system, its accuracy, its mean cost and the share offloaded of each cluster.
    """
    X, y, _ = draw_rows([300, 300, 200, 200], 0)
    high_cost_model = SVC(C=10.0).fit(X, y)
    system = method_class(high_cost_model, COSTS, max_loss=0.0, random_state=0, **settings)
    system.fit(X, y, validation=VALIDATION_ROWS[:2])
    X, y, clusters = TEST_ROWS
    assert high_cost_model.score(X, y) >= 0.999  # f0 of the paper is always right
    is_offloaded = system.offload(X)
    offload_shares = [is_offloaded[clusters == cluster].mean() for cluster in range(4)]
    return system, system.score(X, y), system.cost(X).mean(), offload_shares


def test_adapt_finds_the_shared_feature_and_l1_does_not():
    adapt_system, accuracy, cost, offload_shares = fit_and_measure(AdaptLin)
    assert accuracy >= 0.9985  # 3 errors of 2,000 test rows
    # thresholds are quantiles of the validation rows in steps of at least 1/40
    assert cost == pytest.approx(1.5, abs=0.04)
    assert adapt_system.stages_[0].features.tolist() == [1]
    np.testing.assert_allclose(offload_shares, [1, 1, 0, 0], atol=0.15)

    l1_system, accuracy, cost, offload_shares = fit_and_measure(L1Cascade)
    assert accuracy >= 0.9985
    assert cost >= 1.74  # about the 1.75 of feature 1
    assert l1_system.stages_[0].features.tolist() == [0]
    np.testing.assert_allclose(offload_shares, [0, 1, 1, 1], atol=0.15)


def test_adapt_without_further_starts_is_as_costly_as_l1():
    _, accuracy, cost, _ = fit_and_measure(AdaptLin, n_starts=0)
    assert accuracy >= 0.9985
    assert cost >= 1.74
