"""The choice of the high-cost model by error rates and calibrated Brier scores."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.data.validation_split import ValidationSplit
from gatewise_training.learners.high_cost_model import HighCostModel
from gatewise_training.learners.high_cost_training import (
    TrainedModel,
    best_model,
    train_high_cost_model,
)


def plan_of(n: int, groups: np.ndarray | None = None) -> ValidationSplit:
    y = np.arange(n) % 2
    x = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
    splitter = None if groups is None else RowSplitter.checked(n, groups)
    return ValidationSplit.choose(x, y, np.ones(n), validation=None, seed=0, splitter=splitter)


def made_model(plan: ValidationSplit, is_wrong: np.ndarray, probability: float) -> TrainedModel:
    """Make a model that is wrong on some rows, with equal probabilities of all its labels."""
    y = plan.y[plan.validation_rows]
    labels = np.where(is_wrong[plan.validation_rows], 1 - y, y)
    chances = np.full((len(y), 2), 1 - probability)
    chances[np.arange(len(y)), labels] = probability
    return TrainedModel(HighCostModel(np.arange(3), 2, "made"), labels, chances)


def test_accuracy_decides_between_models_of_equal_probabilities() -> None:
    plan = plan_of(400)
    rows = np.arange(400)
    few_errors = made_model(plan, rows < 10, 0.95)
    many_errors = made_model(plan, rows < 60, 0.95)
    assert best_model([many_errors, few_errors], plan) == 1


def test_calibration_makes_cautious_and_overconfident_models_comparable() -> None:
    plan = plan_of(400)
    rows = np.arange(400)
    calibrated = made_model(plan, rows < 20, 0.95)
    cautious = made_model(plan, rows < 19, 0.6)  # one error fewer
    overconfident = made_model(plan, rows < 19, 0.999)
    assert best_model([calibrated, cautious], plan) == 1
    assert best_model([calibrated, overconfident], plan) == 1


def test_probabilities_decide_between_models_of_equal_accuracy() -> None:
    plan = plan_of(400)
    is_wrong = np.arange(400) < 20
    always_certain = made_model(plan, is_wrong, 0.9)
    uncertain_if_wrong = made_model(plan, is_wrong, 0.9)
    uncertain_if_wrong.probabilities[is_wrong[plan.validation_rows]] = 0.5
    assert best_model([always_certain, uncertain_if_wrong], plan) == 1


@pytest.mark.slow  # fits all kinds
def test_all_kinds_are_fitted_on_few_rows() -> None:
    plan = plan_of(300)
    reports: list[str] = []
    train_high_cost_model(plan, 2, report=reports.append)
    kinds = [text.removeprefix("high-cost model: ") for text in reports]
    assert kinds[:4] == ["boosting", "plain boosting", "random boosting", "extra-trees"]
    assert kinds[4] == "svm on standard scores"
