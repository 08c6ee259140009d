"""Test high-cost models that the user supplies: how they are fitted, measured and refused."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    BaggingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer, StandardScaler
from sklearn.svm import LinearSVC

from gatewise.errors import InputError
from gatewise_training import AdaptLin, ConfidenceCascade, L1Cascade, StagedCascade
from gatewise_training.data.input_checks import FitArguments, check_training
from gatewise_training.learners.given_models.packable import needs_backend

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("two_folds")]  # many fits

QUICK_SETTINGS = {"n_stages": 2, "families": ("linear",), "effort": "low", "random_state": 0}


@cache
def split_table():
    X, y = load_breast_cancer(return_X_y=True)
    return train_test_split(X[:, :10].astype(np.float32), y, test_size=0.5, random_state=0)


@cache
def fit_forest():
    X, _, y, _ = split_table()
    return RandomForestClassifier(25, random_state=0).fit(X, y)


def test_clones_of_a_fitted_classifier_are_measured_and_the_original_is_deployed():
    X, X_test, y, y_test = split_table()
    forest = fit_forest()
    system = StagedCascade(forest, **QUICK_SETTINGS).fit(X, y)
    assert forest.score(X, y) > 0.99  # it has memorised its training rows
    # the standard error of the difference of two accuracies of 0.94 on as many rows each
    standard_error = np.sqrt(0.06 * 0.94 * 2 / len(y_test))
    for validation_accuracy, model in (
        (system.frontier_.reference_accuracy, forest),
        (system.operating_point_.accuracy, system),
    ):
        assert abs(validation_accuracy - model.score(X_test, y_test)) < 2 * standard_error
    assert system.high_cost_model_.estimator is forest
    np.testing.assert_array_equal(system.high_cost_model_.labels(X_test), forest.predict(X_test))


def test_unfitted_pipelines_select_columns_by_name_or_number():
    X, _, y, _ = split_table()
    named_table = pd.DataFrame(X, columns=[f"c {k}" for k in range(X.shape[1])])
    for columns in (["c 1", "c 3"], [1, 3], slice("c 1", "c 3")):
        transformer = make_column_transformer((StandardScaler(), columns))
        pipeline = make_pipeline(transformer, LogisticRegression())
        labels = (
            StagedCascade(pipeline, **QUICK_SETTINGS).fit(named_table, y).high_cost_model_.labels(X)
        )
        np.testing.assert_array_equal(labels, pipeline.fit(named_table, y).predict(named_table))


def test_constraints_name_the_columns_of_an_unfitted_booster():
    X, _, y, _ = split_table()
    named_table = pd.DataFrame(X, columns=[f"c {k}" for k in range(X.shape[1])])
    booster = HistGradientBoostingClassifier(max_iter=3, monotonic_cst={"c 1": 1})
    system = StagedCascade(booster, **QUICK_SETTINGS).fit(named_table, y)
    labels = system.high_cost_model_.labels(X)
    np.testing.assert_array_equal(labels, booster.fit(named_table, y).predict(named_table))


class WeightRecorder(LogisticRegression):
    """A classifier that records the weights of its last fit."""

    def fit(self, X, y, sample_weight=None):
        self.weights_ = sample_weight
        return super().fit(X, y, sample_weight)


def test_pipelines_pass_weights_to_their_last_step():
    X, _, y, _ = split_table()
    weights = np.where(y == 0, 5.0, 1.0)
    pipeline = make_pipeline(StandardScaler(), make_pipeline(StandardScaler(), WeightRecorder()))
    system = StagedCascade(pipeline, class_weight={0: 5.0, 1: 1.0}, **QUICK_SETTINGS).fit(X, y)
    fit_weights = system.high_cost_model_.estimator[-1][-1].weights_
    np.testing.assert_allclose(fit_weights / fit_weights.min(), weights)


def test_a_warning_names_a_classifier_that_takes_no_weights():
    X, _, y, _ = split_table()
    system = StagedCascade(LinearDiscriminantAnalysis(), **QUICK_SETTINGS)
    with pytest.warns(UserWarning, match="LinearDiscriminantAnalysis takes no sample_weight"):
        system.fit(X, y, sample_weight=np.where(y == 0, 5.0, 1.0))


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (StagedCascade, QUICK_SETTINGS),
        (AdaptLin, {"penalties": (0.1,), "p_full": (0.3,), "n_starts": 0, "random_state": 0}),
        (L1Cascade, {"penalties": (0.1,), "random_state": 0}),
        (ConfidenceCascade, {"low_cost_model": "linear", "n_subsets": 1, "random_state": 0}),
    ],
)
def test_given_out_of_fold_probabilities_replace_clones(method, settings):
    X, _, y, _ = split_table()
    probabilities = np.eye(2)[1 - y] * 0.98 + 0.01  # the model is always wrong
    system = method(FrozenEstimator(fit_forest()), **settings)
    system.fit(X, y, high_cost_predictions=probabilities)
    assert system.frontier_.reference_accuracy == 0.0
    assert system.operating_point_.offload_rate == 0.0


@pytest.mark.parametrize(
    "make_model", [lambda: FrozenEstimator(fit_forest()), lambda: fit_forest().predict_proba]
)
def test_a_warning_names_remedies_if_a_given_model_may_have_seen_the_rows(make_model):
    X, _, y, _ = split_table()
    with pytest.warns(UserWarning, match=r"it may remember them.*validation=\(X_val, y_val\)"):
        StagedCascade(make_model(), **QUICK_SETTINGS).fit(X, y)


def test_frozen_models_are_measured_without_a_warning_on_unseen_rows():
    X, X_val, y, y_val = split_table()
    frozen_model = FrozenEstimator(fit_forest())
    system = StagedCascade(frozen_model, **QUICK_SETTINGS).fit(X, y, validation=(X_val, y_val))
    assert system.frontier_.reference_accuracy == frozen_model.score(X_val, y_val)
    # The figures are of thresholds that are tuned by cross-fitting on these rows. The final
    # thresholds offload some rows more or less, which changes the cost more than the accuracy.
    point = system.operating_point_
    assert point.accuracy == pytest.approx(system.score(X_val, y_val), abs=0.03)
    assert point.cost == pytest.approx(system.cost(X_val).mean(), rel=0.3)


def test_frozen_models_that_have_seen_other_rows_are_measured_on_all_rows():
    X, _, y, _ = split_table()
    n_half = len(X) // 2
    frozen_model = FrozenEstimator(LogisticRegression(max_iter=5000).fit(X[:n_half], y[:n_half]))
    system = StagedCascade(frozen_model, **QUICK_SETTINGS).fit(X[n_half:], y[n_half:])
    assert system.frontier_.reference_accuracy == frozen_model.score(X[n_half:], y[n_half:])


GUARANTEE_SETTINGS = QUICK_SETTINGS | {"guarantee": 0.9}


def test_a_guaranteed_loss_is_refused_if_the_model_may_have_seen_the_rows():
    X, _, y, _ = split_table()
    with pytest.raises(InputError, match="may have seen the rows"):
        StagedCascade(fit_forest(), **GUARANTEE_SETTINGS).fit(X, y)


def test_a_guaranteed_budget_is_certified_even_if_the_model_may_have_seen_the_rows():
    """Costs do not depend on memorised rows, but losses do."""
    X, _, y, _ = split_table()
    system = StagedCascade(fit_forest(), budget=8.0, **GUARANTEE_SETTINGS).fit(X, y)
    assert system.operating_point_.guarantee["kind"] == "budget"
    assert system.operating_point_.accuracy < 0.99
    with pytest.raises(InputError, match="give the model unfitted"):
        system.at(max_loss=0.1)


def test_a_loss_is_guaranteed_on_rows_that_the_model_has_not_seen():
    X, X_val, y, y_val = split_table()
    system = StagedCascade(fit_forest(), max_loss=0.1, **GUARANTEE_SETTINGS)
    system.fit(X, y, validation=(X_val, y_val))
    assert system.operating_point_.guarantee["kind"] == "max_loss"


@pytest.mark.parametrize(
    ("make_probabilities", "message"),
    [
        (lambda n_rows: np.ones((n_rows - 1, 2)), "must have shape"),
        (lambda n_rows: np.full((n_rows, 2), 0.6), "row 0 holds no probabilities"),
        (lambda n_rows: np.full((n_rows, 2), np.nan), "row 0 holds no probabilities"),
        (lambda _: "no", "must be a matrix"),
    ],
)
def test_out_of_fold_probabilities_are_checked(make_probabilities, message):
    X, _, y, _ = split_table()
    system = StagedCascade(fit_forest(), **QUICK_SETTINGS)
    with pytest.raises(InputError, match=message):
        system.fit(X, y, high_cost_predictions=make_probabilities(len(X)))


def test_out_of_fold_probabilities_need_the_model():
    X, _, y, _ = split_table()
    with pytest.raises(InputError, match="give it as well"):
        StagedCascade(**QUICK_SETTINGS).fit(X, y, high_cost_predictions=np.full((len(X), 2), 0.5))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_probabilities_that_are_nan_are_refused():
    X, y = np.ones((60, 3), np.float32), np.arange(60) % 2
    # the first of two folds is measured first
    with pytest.raises(InputError, match=r"gives no probabilities \(NaN\) for 30 of 30 rows"):
        AdaptLin(GaussianNB(), p_full=(0.3,), penalties=(0.1,), n_starts=0).fit(X, y)


def test_probabilities_of_rows_without_weight_are_dropped():
    X, _, y, _ = split_table()
    probabilities = np.column_stack([np.linspace(0, 1, len(y)), np.linspace(1, 0, len(y))])
    weights = np.arange(len(y)) % 2
    checked_table = check_training(
        StagedCascade(), FitArguments(X, y, weights, high_cost_predictions=probabilities)
    )
    np.testing.assert_array_equal(checked_table.high_cost_probabilities, probabilities[1::2])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            make_pipeline(SplineTransformer(), LogisticRegression()),
            r"SplineTransformer \(in Pipeline\): it has no form",
        ),
        (BaggingClassifier(LinearSVC()), "its estimator gives no probabilities"),
        (RandomForestClassifier, "give an instance"),
        (3, "give a classifier"),
    ],
)
def test_models_that_cannot_be_packed_are_refused_before_the_fit(model, message, monkeypatch):
    X, _, y, _ = split_table()
    monkeypatch.setattr(
        StagedCascade, "_fit_candidates", lambda *_: pytest.fail("a model was fitted")
    )
    with pytest.raises(InputError, match=message) as raised:
        StagedCascade(model, **QUICK_SETTINGS).fit(X, y)
    assert "\n" not in str(raised.value)


class ThresholdRule(ClassifierMixin, BaseEstimator):
    """A classifier that belongs to no known library."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        self.n_features_in_ = X.shape[1]
        self.median_ = np.median(X[:, 0])
        return self

    def predict_proba(self, X):
        probabilities = 1 / (1 + np.exp(np.asarray(X)[:, 0] - self.median_))
        return np.column_stack([1 - probabilities, probabilities])


@pytest.mark.parametrize("is_fitted", [True, False])
def test_classifiers_of_unknown_libraries_become_backends(is_fitted):
    X, X_test, y, _ = split_table()
    rule = ThresholdRule().fit(X, y) if is_fitted else ThresholdRule()
    assert needs_backend(rule)
    system = StagedCascade(rule, **QUICK_SETTINGS).fit(X, y)
    high_cost_model = system.high_cost_model_
    assert high_cost_model.backend == f"python:{ThresholdRule.__module__}:ThresholdRule"
    labels, probabilities = high_cost_model.answers(X_test)
    np.testing.assert_array_equal(labels, probabilities.argmax(axis=1))
    np.testing.assert_allclose(probabilities, ThresholdRule().fit(X, y).predict_proba(X_test))


class PlainRule:
    """A classifier that does not extend scikit-learn's BaseEstimator."""

    fit = ThresholdRule.fit
    predict_proba = ThresholdRule.predict_proba

    def predict(self, X):
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


def test_classifiers_without_parameters_must_be_fitted():
    X, X_test, y, _ = split_table()
    with pytest.raises(InputError, match="PlainRule cannot be fitted: Cannot clone object"):
        StagedCascade(PlainRule(), **QUICK_SETTINGS).fit(X, y)
    rule = PlainRule().fit(X, y)
    system = StagedCascade(rule, **QUICK_SETTINGS).fit(X, y)
    labels = system.high_cost_model_.labels(X_test)
    np.testing.assert_array_equal(system.classes_[labels], rule.predict(X_test))
