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
    """A model that is wrong on some of the rows, and as sure of all its answers."""
    y = plan.y[plan.validation_rows]
    labels = np.where(wrong[plan.validation_rows], 1 - y, y)
    chances = np.full((len(y), 2), 1 - sureness)
    chances[np.arange(len(y)), labels] = sureness
    return TrainedModel(HighCostModel(np.arange(3), 2, "made"), labels, chances)


def test_probabilities_decide_between_models_that_chance_tells_apart() -> None:
    plan = plan_of(400)
    rows = np.arange(400)
    sure = answers(plan, rows < 10, 0.95)
    vague = answers(plan, (rows >= 10) & (rows < 19), 0.6)  # one row better
    worse = answers(plan, rows < 60, 1.0)  # 50 rows worse
    assert best_model([vague, sure, worse], plan) == 1
    assert best_model([worse, vague], plan) == 1


def test_groups_say_what_chance_is() -> None:
    """Ten rows of one group are one event, of ten groups they are ten."""
    groups = np.arange(400) // 20
    rows = np.arange(400)
    for wrong, number in ((rows < 12, 1), (rows % 20 == 1, 0)):
        plan = plan_of(400, groups)
        accurate = answers(plan, np.zeros(400, bool), 0.6)
        sure = answers(plan, wrong, 0.99)
        assert best_model([accurate, sure], plan) == number


@pytest.mark.slow  # fits all families
def test_plain_boosting_is_tried_and_another_scaler_only_where_an_svm_is_near() -> None:
    plan = plan_of(300)
    tried: list[str] = []
    train_high_cost_model(plan, 2, report=tried.append)
    kinds = [text.removeprefix("high-cost model: ") for text in tried]
    assert kinds[:4] == ["boosting", "plain boosting", "random boosting", "extra-trees"]
    assert kinds[4] == "svm on standard scores"
