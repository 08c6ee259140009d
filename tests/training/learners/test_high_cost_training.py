"""Tests of the choice of the high-cost model by error rates and calibrated Brier scores."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from gatewise_training.data.validation_split import ValidationSplit
from gatewise_training.learners.high_cost_model import HighCostModel
from gatewise_training.learners.high_cost_training import (
    TrainedModel,
    index_of_best,
    train_high_cost_model,
)


def make_split(n: int) -> ValidationSplit:
    y = np.arange(n) % 2
    x = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
    return ValidationSplit.choose(x, y, np.ones(n), validation=None, seed=0)


def make_model(split: ValidationSplit, is_wrong: np.ndarray, probability: float) -> TrainedModel:
    """Make a model that errs on some rows and gives each of its labels the same probability."""
    y = split.y[split.validation_rows]
    labels = np.where(is_wrong[split.validation_rows], 1 - y, y)
    probabilities = np.full((len(y), 2), 1 - probability)
    probabilities[np.arange(len(y)), labels] = probability
    return TrainedModel(HighCostModel(np.arange(3), 2, "made"), labels, probabilities)


def test_accuracy_decides_between_models_of_equal_probabilities() -> None:
    split = make_split(400)
    rows = np.arange(400)
    few_errors = make_model(split, rows < 10, 0.95)
    many_errors = make_model(split, rows < 60, 0.95)
    assert index_of_best([many_errors, few_errors], split) == 1  # the position in the list


def test_calibration_makes_cautious_and_overconfident_models_comparable() -> None:
    split = make_split(400)
    rows = np.arange(400)
    calibrated_model = make_model(split, rows < 20, 0.95)
    cautious_model = make_model(split, rows < 19, 0.6)  # one error fewer
    overconfident_model = make_model(split, rows < 19, 0.999)
    assert index_of_best([calibrated_model, cautious_model], split) == 1
    assert index_of_best([calibrated_model, overconfident_model], split) == 1


def test_probabilities_decide_between_models_of_equal_accuracy() -> None:
    split = make_split(400)
    is_wrong = np.arange(400) < 20
    always_certain = make_model(split, is_wrong, 0.9)
    uncertain_if_wrong = make_model(split, is_wrong, 0.9)
    uncertain_if_wrong.probabilities[is_wrong[split.validation_rows]] = 0.5
    assert index_of_best([always_certain, uncertain_if_wrong], split) == 1


@pytest.mark.parametrize(
    ("labels", "class_weight"),
    [(["fault", "ok"], {"fault": 30, "ok": 1}), ([1, 2], {1: 30}), ([False, True], {False: 30})],
)
def test_a_template_weighs_the_classes_that_its_class_weight_names(labels, class_weight) -> None:
    split = make_split(300)
    classes = np.array(labels)
    template = LogisticRegression(class_weight=class_weight)
    model = train_high_cost_model(split, 2, template=template, classes=classes).model
    own_labels = template.fit(split.x, classes[split.y]).predict(split.x)
    assert (own_labels == classes[0]).all()
    np.testing.assert_array_equal(classes[model.labels(split.x)], own_labels)


@pytest.mark.parametrize("takes_indices", [False, True])
def test_templates_are_fitted_on_labels_unless_they_take_indices(takes_indices) -> None:
    split = make_split(300)
    template = LogisticRegression()
    if takes_indices:
        template = pytest.importorskip("xgboost").XGBClassifier(n_estimators=2)
    model = train_high_cost_model(split, 2, template=template, classes=np.array(["a", "b"])).model
    own_classes = model.estimator.classes_.tolist()
    assert own_classes == ([0, 1] if takes_indices else ["a", "b"])
    assert set(model.labels(split.x)) <= {0, 1}


@pytest.mark.slow  # fits all kinds
def test_all_kinds_are_fitted_on_few_rows() -> None:
    split = make_split(300)
    reports: list[str] = []
    train_high_cost_model(split, 2, report_step=reports.append)
    kinds = [report.removeprefix("high-cost model: ") for report in reports]
    assert kinds[:4] == ["boosting", "plain boosting", "random boosting", "extra-trees"]
    assert kinds[4] == "svm on standard scores"
