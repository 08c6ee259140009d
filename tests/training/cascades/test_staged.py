"""Test the candidates of StagedCascade on a table of few rows."""

import numpy as np
import pytest
from sklearn.datasets import load_wine

from gatewise_training import ConfidenceCascade, StagedCascade


@pytest.fixture(scope="module")
def wine():
    x, y = load_wine(return_X_y=True)
    rows = np.random.default_rng(0).permutation(len(y))
    return x[rows, :8], y[rows]


@pytest.mark.slow
def test_points_are_as_good_as_those_of_confidence_cascade_on_few_rows(wine):
    staged_cascade = StagedCascade(random_state=0).fit(*wine)
    confidence_cascade = ConfidenceCascade(random_state=0).fit(*wine)
    for point in confidence_cascade.frontier_.points:
        best_point = staged_cascade.frontier_.at(budget=point.cost)
        assert best_point.accuracy >= point.accuracy - 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"effort": "low"}, {"families": ("linear",)}])
def test_candidates_exclude_single_models_at_low_effort_and_without_boosting(wine, settings):
    staged_cascade = StagedCascade(random_state=0, n_stages=2, **settings).fit(*wine)
    # three ways to select features give a sequence of at most two sets each, and single models,
    # which have further sets, are not among the candidates
    feature_sets = {tuple(stage.features) for stages in staged_cascade.chains_ for stage in stages}
    assert len(feature_sets) <= 6
