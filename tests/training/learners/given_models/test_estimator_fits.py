"""Fits of clones of a given classifier."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from gatewise.errors import InputError
from gatewise_training.learners.given_models.estimator_fits import fit_clone

X, Y = load_iris(return_X_y=True)


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
