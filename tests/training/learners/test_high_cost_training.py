"""The choice of the high-cost model: by accuracy, and by probabilities where chance decides."""

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


def answers(plan: ValidationSplit, wrong: np.ndarray, sureness: float) -> TrainedModel:
    """A model that is wrong on some of the rows, and equally sure of all its answers."""
    y = plan.y[plan.validation_rows]
    labels = np.where(wrong[plan.validation_rows], 1 - y, y)
    chances = np.full((len(y), 2), 1 - sureness)
    chances[np.arange(len(y)), labels] = sureness
    return TrainedModel(HighCostModel(np.arange(3), 2, "made"), labels, chances)


def test_accuracy_decides_between_models_of_equal_probabilities() -> None:
    plan = plan_of(400)
    rows = np.arange(400)
    few_errors = answers(plan, rows < 10, 0.95)
    many_errors = answers(plan, rows < 60, 0.95)
    assert best_model([many_errors, few_errors], plan) == 1


def test_a_cautious_model_is_as_good_as_one_with_the_right_probabilities() -> None:
    plan = plan_of(400)
    rows = np.arange(400)
    calibrated = answers(plan, rows < 20, 0.95)
    cautious = answers(plan, rows < 19, 0.6)  # one error fewer
    overconfident = answers(plan, rows < 19, 0.999)
    assert best_model([calibrated, cautious], plan) == 1
    assert best_model([calibrated, overconfident], plan) == 1


def test_probabilities_decide_between_models_of_equal_accuracy() -> None:
    plan = plan_of(400)
    wrong = np.arange(400) < 20
    equally_sure = answers(plan, wrong, 0.9)
    doubtful = answers(plan, wrong, 0.9)
    is_wrong = wrong[plan.validation_rows]
    doubtful.probabilities[is_wrong] = 0.5  # in doubt where it errs
    assert best_model([equally_sure, doubtful], plan) == 1


@pytest.mark.slow  # fits all families
def test_plain_boosting_is_tried_and_another_scaler_only_where_an_svm_is_near() -> None:
    plan = plan_of(300)
    tried: list[str] = []
    train_high_cost_model(plan, 2, report=tried.append)
    kinds = [text.removeprefix("high-cost model: ") for text in tried]
    assert kinds[:4] == ["boosting", "plain boosting", "random boosting", "extra-trees"]
    assert kinds[4] == "svm on standard scores"
