"""Test the candidates of StagedCascade on a table of few rows."""

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.tree import DecisionTreeClassifier

from gatewise_training import ConfidenceCascade, StagedCascade

pytestmark = pytest.mark.usefixtures("two_folds")


@pytest.fixture(scope="module")
def wine_rows():
    X, y = load_wine(return_X_y=True)
    row_order = np.random.default_rng(0).permutation(len(y))
    return X[row_order, :6], y[row_order]


@pytest.mark.slow
def test_points_are_as_good_as_those_of_confidence_cascade_on_few_rows(wine_rows):
    tree = DecisionTreeClassifier(random_state=0)  # training a model takes longer
    staged_cascade = StagedCascade(tree, random_state=0).fit(*wine_rows)
    confidence_cascade = ConfidenceCascade(tree, random_state=0).fit(*wine_rows)
    for point in confidence_cascade.frontier_.points:
        best_point = staged_cascade.frontier_.at(budget=point.cost)
        assert best_point.accuracy >= point.accuracy - 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"effort": "low"}, {"families": ("linear",)}])
def test_candidates_exclude_single_models_at_low_effort_and_without_boosting(wine_rows, settings):
    tree = DecisionTreeClassifier(random_state=0)
    staged_cascade = StagedCascade(tree, random_state=0, n_stages=2, **settings).fit(*wine_rows)
    # three ways to select features give a sequence of at most two sets each, and single models,
    # which have further sets, are not among the candidates
    feature_sets = {tuple(stage.features) for stages in staged_cascade.chains_ for stage in stages}
    assert len(feature_sets) <= 6
