"""Test that models of out-of-fold predictions have not seen the rows that they predict."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.data.validation_split import ValidationSplit, cross_fit
from gatewise_training.learners.boosting import fit_boosting


@dataclass(frozen=True)
class RecordedModel:
    """A model that records its rounds and its training rows."""

    rounds: int
    training_rows: frozenset[int]


@pytest.mark.parametrize("has_groups", [True, False])
def test_folds_of_groups_are_predicted_with_the_rounds_of_the_final_model(has_groups) -> None:
    """The best number of rounds of a fold is chosen on the rows that the fold predicts."""
    n_rows = 60
    x, y = np.zeros((n_rows, 1), np.float32), np.arange(n_rows) % 2
    group_of_row = np.arange(n_rows) // 6
    splitter = RowSplitter(n_rows, group_of_row) if has_groups else None
    split = ValidationSplit.choose(
        x, y, np.ones(n_rows), validation=None, seed=0, splitter=splitter
    )
    best_rounds = iter([40, 10, 5, 20, 25])

    def fit_model(rows, unseen_rows, n_rounds):
        return RecordedModel(n_rounds or next(best_rounds), frozenset(rows.tolist()))

    def predict_rounds(model, rows):
        assert not model.training_rows & set(rows.tolist())
        return np.full(len(rows), model.rounds)

    final_model, predicted_rounds = cross_fit(split, fit_model, predict_rounds)
    # 20 is the mean of the best rounds of the folds
    assert (final_model.rounds, len(final_model.training_rows)) == (20, n_rows)
    assert set(predicted_rounds.tolist()) == ({20} if has_groups else {40, 10, 5, 20, 25})


def test_early_stopping_uses_the_class_weights_of_the_fit() -> None:
    """The unweighted loss still decreases while the loss of the rare class increases."""
    rng = np.random.default_rng(0)
    y = (rng.random(1200) < 0.05).astype(np.int64)
    x = (rng.normal(size=(1200, 5)) + 0.8 * y[:, None]).astype(np.float32)
    weight = (1 / np.bincount(y))[y] * 600
    fit_rows, unseen_rows = slice(0, 800), slice(800, None)
    n_rounds_by_weights = {}
    for name, validation_weight in (("equal", np.ones(1200)), ("weighted", weight)):
        validation = (x[unseen_rows], y[unseen_rows], validation_weight[unseen_rows])
        _, n_rounds_by_weights[name] = fit_boosting(
            x[fit_rows],
            y[fit_rows],
            2,
            weight=weight[fit_rows],
            validation=validation,
            params={"num_leaves": 4},
        )
    assert n_rounds_by_weights["weighted"] < n_rounds_by_weights["equal"]


def test_class_weights_can_be_taken_back() -> None:
    y = np.arange(20) % 2
    weight = np.linspace(0.5, 1.5, 20)
    x = np.zeros((20, 1), np.float32)
    split = ValidationSplit.choose(x, y, weight, validation=None, seed=0)
    class_weights = np.array([1.0, 7.0])
    weighted_split = split.with_class_weights(class_weights)
    assert np.average(y, weights=weighted_split.weight) > 0.8
    np.testing.assert_array_equal(weighted_split.without_class_weights().weight, weight)
    np.testing.assert_array_equal(weighted_split.row_weight, weight)
