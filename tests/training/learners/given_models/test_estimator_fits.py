"""Fits of clones of a given classifier."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

from gatewise.errors import InputError
from gatewise_training.learners.given_models.estimator_fits import fit_clone

X, Y = load_iris(return_X_y=True)

QUIET_CATBOOST = {"verbose": 0, "allow_writing_files": False}


@pytest.mark.parametrize(
    ("library", "name", "option"),
    [
        ("xgboost", "XGBClassifier", {"early_stopping_rounds": 3}),
        ("lightgbm", "LGBMClassifier", {"early_stopping_round": 3, "verbose": -1}),
    ],
)
def test_early_stopping_without_rows_for_it_is_refused_with_a_remedy(library, name, option):
    classifier = getattr(pytest.importorskip(library), name)(n_estimators=5, **option)
    with pytest.raises(InputError, match=rf"{name} cannot be fitted: .*; leave out early stopping"):
        fit_clone(classifier, X, Y)


def test_refusal_of_missing_values_is_one_line():
    with pytest.raises(InputError, match=r"LogisticRegression cannot be .*NaN") as refusal:
        fit_clone(LogisticRegression(), np.full_like(X, np.nan), Y)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "make_classifier",
    [
        lambda member: VotingClassifier([("a", member)]),
        lambda member: StackingClassifier([("a", member)]),
        lambda member: GridSearchCV(member, {"C": [1.0]}, cv=2),
    ],
    ids=["voting", "stacking", "grid search"],
)
def test_ensembles_and_searches_pass_weights_to_their_members(make_classifier):
    weight = np.where(Y == 2, 20.0, 1.0)
    classifier = make_classifier(LogisticRegression())
    with warnings.catch_warnings(action="error", category=UserWarning):
        fitted_clone = fit_clone(classifier, X[:, :1], Y, weight)
    expected_labels = classifier.fit(X[:, :1], Y, sample_weight=weight).predict(X[:, :1])
    np.testing.assert_array_equal(fitted_clone.predict(X[:, :1]), expected_labels)


def test_a_member_that_refuses_weights_is_fitted_without_them_and_named():
    classifier = VotingClassifier([("a", LinearDiscriminantAnalysis())])
    with pytest.warns(UserWarning, match="VotingClassifier refuses sample_weight .*Linear.*equal"):
        fitted_clone = fit_clone(classifier, X, Y, np.where(Y == 2, 20.0, 1.0))
    np.testing.assert_array_equal(fitted_clone.predict(X), classifier.fit(X, Y).predict(X))


@pytest.mark.parametrize(
    ("library", "name", "options"),
    [
        ("catboost", "CatBoostClassifier", {"use_best_model": True, **QUIET_CATBOOST}),
        ("lightgbm", "LGBMClassifier", {"num_leaves": 1, "verbose": -1}),
    ],
)
def test_errors_of_a_library_are_refusals(library, name, options):
    classifier = getattr(pytest.importorskip(library), name)(n_estimators=2, **options)
    with pytest.raises(InputError, match=f"{name} cannot be fitted"):
        fit_clone(classifier, X, Y)


def test_catboost_with_a_list_or_a_dict_is_cloned():
    catboost = pytest.importorskip("catboost")
    for class_weights in ([1, 2, 5], {0: 1, 1: 2, 2: 5}):
        classifier = catboost.CatBoostClassifier(
            n_estimators=2, class_weights=class_weights, **QUIET_CATBOOST
        )
        fitted_clone = fit_clone(classifier, X, Y)
        np.testing.assert_allclose(
            fitted_clone.predict_proba(X), classifier.fit(X, Y).predict_proba(X)
        )
