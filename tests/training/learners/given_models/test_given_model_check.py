"""Answers of clones, and the comparison with reference models, for a model that remembers rows."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.data.validation_split import ValidationSplit
from gatewise_training.learners.given_models.given_model_check import (
    can_be_cloned,
    find_suspicious_accuracy,
    unseen_answers,
)

CLASSES = np.array(["no", "yes"])


@pytest.fixture(params=[False, True], ids=["no groups", "groups"])
def split(request):
    """Rows with random labels, which nobody can predict without having seen them."""
    rng = np.random.default_rng(0)
    n_rows = 300
    x = rng.normal(size=(n_rows, 3)).astype(np.float32)
    y = rng.integers(0, 2, n_rows)
    splitter = RowSplitter(n_rows, rng.permutation(n_rows) % 60) if request.param else None
    return ValidationSplit.choose(x, y, np.ones(n_rows), validation=None, seed=0, splitter=splitter)


def test_unseen_answers_are_those_of_models_fitted_without_the_rows(split):
    rng = np.random.default_rng(1)
    model = KNeighborsClassifier(1).fit(split.x, CLASSES[split.y])
    assert (model.predict(split.x) == CLASSES[split.y]).all()
    x_calibration = rng.normal(size=(50, 3)).astype(np.float32)
    labels, probabilities, calibration_labels = unseen_answers(split, model, CLASSES, x_calibration)
    expected_labels = [
        KNeighborsClassifier(1).fit(split.x[rows], split.y[rows]).predict(split.x[unseen_rows])
        for rows, unseen_rows in split.folds
    ]
    np.testing.assert_array_equal(labels, np.concatenate(expected_labels))
    np.testing.assert_array_equal(probabilities.argmax(axis=1), labels)
    fit_rows_model = KNeighborsClassifier(1).fit(split.x[split.fit_rows], split.y[split.fit_rows])
    np.testing.assert_array_equal(calibration_labels, fit_rows_model.predict(x_calibration))


class Changer(KNeighborsClassifier):
    """A classifier that sets another parameter than the given one, which `clone` refuses."""

    def __init__(self, n_neighbors=5):
        super().__init__(n_neighbors + 1)


def test_a_classifier_that_refuses_to_be_cloned_is_known_before_its_fit():
    assert can_be_cloned(KNeighborsClassifier())
    assert not can_be_cloned(Changer())


@pytest.mark.slow
def test_only_a_model_that_has_seen_the_rows_exceeds_the_references(split):
    y = split.y[split.validation_rows]
    accuracy, reference_accuracy = find_suspicious_accuracy(split, y, allow_missing=False, seed=0)
    assert accuracy == 1.0
    assert reference_accuracy < 0.65  # the labels are random, of two classes
    model = KNeighborsClassifier(1)
    labels, _, _ = unseen_answers(split, model.fit(split.x, CLASSES[split.y]), CLASSES, None)
    assert find_suspicious_accuracy(split, labels, allow_missing=False, seed=0) is None
