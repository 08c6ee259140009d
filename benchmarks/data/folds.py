"""Folds of a data set, and the score of a model's answers to their rows.

In a classification, an answer is a label and the score is the accuracy. In a ranking, an answer is
a probability of relevance and the score is AP@5. :class:`Truth` hides this from the methods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise_training.data.metrics import average_precision_at
from gatewise_training.data.validation_split import ValidationSplit

LabelledRows = tuple[NDArray[np.float32], NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Truth:
    """True classes of some rows, and the score of a model's answers.

    Rows with queries are a ranking in which class 1 is relevant.
    """

    y: NDArray[np.int64]  # class indices
    qid: NDArray[Any] | None = None  # query of each document

    def to_answers(self, proba: NDArray[Any], labels: NDArray[Any] | None = None) -> NDArray[Any]:
        """Convert probabilities to labels or, for a ranking, to probabilities of relevance.

        Without `labels`, the label of a row is its most probable class.
        """
        if self.qid is not None:
            return proba[:, 1]
        return proba.argmax(1) if labels is None else labels

    def model_answers(
        self,
        labels: Callable[[NDArray[np.float32]], NDArray[Any]],
        proba: Callable[[NDArray[np.float32]], NDArray[Any]],
        rows: NDArray[np.float32],
    ) -> NDArray[Any]:
        """Answer `rows` with `proba` for a ranking, and else with `labels`."""
        return labels(rows) if self.qid is None else self.to_answers(proba(rows))

    def score(self, answers: NDArray[Any]) -> float:
        """Compute the accuracy of labels or the AP@5 of a ranking; one answer may be for all."""
        if self.qid is None:
            return float(np.mean(answers == self.y))
        return average_precision_at(np.broadcast_to(answers, self.y.shape), self.y == 1, self.qid)

    def __len__(self) -> int:
        """Number of rows, or of queries, that the score is a mean over."""
        return len(self.y if self.qid is None else np.unique(self.qid))


@dataclass(frozen=True, eq=False)
class Fold:
    """Training, validation and test rows.

    Without validation rows, learners use five-fold cross-fitting on `train`.
    """

    train: LabelledRows
    validation: LabelledRows | None
    test: LabelledRows
    queries: tuple[NDArray[Any], NDArray[Any]] | None = None  # of validation and test rows

    @property
    def test_truth(self) -> Truth:
        """True classes of the test rows."""
        return Truth(self.test[1], None if self.queries is None else self.queries[1])

    @property
    def validation_truth(self) -> Truth:
        """True classes of the validation rows or, without them, of the training rows."""
        y = (self.validation or self.train)[1]
        return Truth(y, None if self.queries is None else self.queries[0])

    def truth_of_plan(self, plan: ValidationSplit) -> Truth:
        """Return the true classes of the validation rows, in the order of :func:`cross_fit`."""
        return Truth(plan.y[plan.validation_rows], self.validation_truth.qid)

    def sample(self, max_rows: int) -> Fold:
        """Draw at most `max_rows` rows of each part for a quick run, without splitting queries."""
        validation_queries, test_queries = self.queries or (None, None)
        validation = None
        if self.validation is not None:
            validation, validation_queries = _sample_rows(
                self.validation, max_rows // 2, validation_queries
            )
        test, test_queries = _sample_rows(self.test, max_rows, test_queries)
        queries = None
        if validation_queries is not None and test_queries is not None:
            queries = validation_queries, test_queries
        return Fold(_sample_rows(self.train, max_rows)[0], validation, test, queries)


def select_rows(
    features: NDArray[Any], row_classes: NDArray[Any], rows: NDArray[np.intp] | slice
) -> LabelledRows:
    """Select rows, with the types that all methods expect."""
    return np.ascontiguousarray(features[rows], np.float32), row_classes[rows].astype(np.int64)


def fixed_split(
    features: NDArray[Any], row_classes: NDArray[Any], *parts: Any
) -> Callable[[int], list[Fold]]:
    """Make a function that returns the same training, validation and test rows for every seed."""
    train, validation, test = (
        None if part is None else select_rows(features, row_classes, part) for part in parts
    )
    assert train is not None
    assert test is not None
    return lambda _seed: [Fold(train, validation, test)]


def _sample_rows(
    part: LabelledRows, max_rows: int, queries: NDArray[Any] | None = None
) -> tuple[LabelledRows, NDArray[Any] | None]:
    features, row_classes = part
    if len(row_classes) <= max_rows:
        return part, queries
    rng = np.random.default_rng(0)
    if queries is None:
        rows = rng.permutation(len(row_classes))[:max_rows]
        return (features[rows], row_classes[rows]), None
    distinct_queries, query_numbers, query_sizes = np.unique(
        queries, return_inverse=True, return_counts=True
    )
    query_order = rng.permutation(len(distinct_queries))
    # whole queries in random order, as long as their rows fit
    drawn_queries = query_order[np.cumsum(query_sizes[query_order]) <= max_rows]
    rows = np.flatnonzero(np.isin(query_numbers, drawn_queries))
    return (features[rows], row_classes[rows]), queries[rows]
