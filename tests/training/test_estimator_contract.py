"""scikit-learn's own checks, on settings small enough to run them all."""

from __future__ import annotations

import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

from gatewise_training import (
    AdaptGBRT,
    AdaptLin,
    AdaptLstsq,
    ConfidenceCascade,
    GreedyMiser,
    L1Cascade,
    StagedCascade,
)

pytestmark = pytest.mark.slow  # some 420 checks: more than a minute together

SYSTEMS = [
    StagedCascade(LogisticRegression(), n_stages=2, families=("linear",)),
    AdaptLin(
        LogisticRegression(), p_full=(0.3,), penalties=(0.1,), n_starts=1, max_alternations=10
    ),
    AdaptLstsq(
        LogisticRegression(), p_full=(0.3,), penalties=(0.1,), n_starts=1, max_alternations=10
    ),
    AdaptGBRT(LogisticRegression(), p_full=(0.3,), penalties=(0.001,), n_rounds=20, warm_up=5),
    L1Cascade(LogisticRegression(), penalties=(0.1, 0.01)),
    ConfidenceCascade(LogisticRegression(), low_cost_model="linear", n_subsets=2),
    GreedyMiser(penalties=(0.001,), n_rounds=20),
]

RESAMPLED = (
    "rows are dealt out to judge and to fit: repeating a row and weighting it are then not the same"
)


def expected_failures(estimator):
    return {
        "check_sample_weight_equivalence_on_dense_data": RESAMPLED,
        "check_sample_weight_equivalence_on_sparse_data": RESAMPLED,
    }


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(SYSTEMS, expected_failed_checks=expected_failures)
def test_estimator_contract(estimator, check):
    check(estimator)
