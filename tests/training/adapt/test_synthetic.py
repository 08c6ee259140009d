"""Synthetic-2 of the Adapt paper (NIPS 2017, section 5, figure 3): joint choice of features.

Four clusters in two dimensions, each feature at price 1. A complex f0 on both is always right,
at cost 2. Feature 1 tells cluster 1 from the others: f1 answers it, and three clusters go to
f0, at a mean cost of 1.75. Feature 2 tells clusters 1 and 2 from 3 and 4, and 3 from 4: f1
answers both, at 1.5. Clusters 1 and 2 have more rows in training, so an L1 penalty chooses
feature 1. Costs are the mean over the four clusters, as in the paper: test rows are balanced.
"""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.svm import SVC

from gatewise_training import AdaptLin, FeatureCosts, L1Cascade

pytestmark = [
    pytest.mark.slow,
    # Rows stand cluster by cluster.
    pytest.mark.filterwarnings("ignore::gatewise.errors.GroupsWarning"),
]

CENTRES = np.array([[-1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, -1.0]])
CLASSES = np.array([1, 0, 1, 0])
COSTS = FeatureCosts.uniform(2)


def draw(sizes, seed):
    """Rows of the four clusters: X, y, and which cluster each is of."""
    cluster = np.repeat(np.arange(4), sizes)
    noise = 0.12 * np.random.default_rng(seed).normal(size=(len(cluster), 2))
    return CENTRES[cluster] + noise, CLASSES[cluster], cluster


TEST = draw([500] * 4, 2)


def solve(method, sizes, validation=None, **settings):
    """Fit at no loss; accuracy and cost on balanced rows, share offloaded of each cluster."""
    X, y, _ = draw(sizes, 0)
    f0 = SVC(C=10.0).fit(X, y)
    system = method(f0, COSTS, max_loss=0.0, random_state=0, **settings)
    system.fit(X, y, validation=validation)
    X, y, cluster = TEST
    assert f0.score(X, y) >= 0.999  # complex, and right
    sent = system.offload(X)
    by_cluster = [sent[cluster == k].mean() for k in range(4)]
    return system, system.score(X, y), system.cost(X).mean(), by_cluster


@pytest.mark.parametrize(
    ("sizes", "validation"),
    [
        ([300, 300, 200, 200], draw([250] * 4, 1)[:2]),
        pytest.param([180, 180, 120, 120], None),
    ],
    ids=["3 to 2", "3 to 2, cross-fitted"],
)
def test_adapt_finds_the_shared_feature_and_l1_does_not(sizes, validation):
    adapt, accuracy, cost, sent = solve(AdaptLin, sizes, validation)
    assert accuracy >= 0.9985
    # thresholds stand at quantiles of the validation rows, in steps of a fortieth at the finest
    assert cost == pytest.approx(1.5, abs=0.04)
    assert adapt.stages_[0].features.tolist() == [1]
    np.testing.assert_allclose(sent, [1, 1, 0, 0], atol=0.15)

    l1, accuracy, cost, sent = solve(L1Cascade, sizes, validation)
    assert accuracy >= 0.9985
    assert cost >= 1.74
    assert l1.stages_[0].features.tolist() == [0]
    np.testing.assert_allclose(sent, [0, 1, 1, 1], atol=0.15)


def test_the_usual_start_alone_ends_where_l1_does():
    sizes, validation = [300, 300, 200, 200], draw([250] * 4, 1)[:2]
    _, accuracy, cost, _ = solve(AdaptLin, sizes, validation, n_starts=0)
    assert accuracy >= 0.9985
    assert cost >= 1.74
