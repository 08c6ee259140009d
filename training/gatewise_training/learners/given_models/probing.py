"""Comparison of a converted classifier with its source on adversarial rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_training.learners.given_models.packable import ADVICE, Estimator
from gatewise_training.learners.given_models.probe_rows import N_ROWS, ProbeRows, Rows
from gatewise_training.learners.high_cost_model import HighCostModel

Answers = tuple[NDArray[np.int64], NDArray[Any]]
AnswerRows = Callable[[NDArray[Any]], Answers]
"""A function from rows, float32 or float64, to class indices (n,) and probabilities
(n, n_classes)."""

TOLERANCE = 1e-4
"""Largest difference of a probability, for float32 sums and another implementation of `exp`."""
ROUNDING = 1e-6
"""Relative change of a row that may change the answer of a classifier that adds up in float32."""
TIE = 1e-12
"""Largest difference of two equal float64 sums that add the same numbers in another order."""
N_CHANGED_COPIES = 32
"""Number of changed copies of a row to try."""
MAX_SHOWN_VALUES = 8
"""Maximum number of values of a row in an error."""


@dataclass(frozen=True)
class ProbeFigures:
    """Number of rows that a conversion was probed on, in total and of each kind.

    For `undecided` rows the classifier itself gives another answer if it computes in float64, or if
    the row changes by a millionth, or it gives the two answers equal probabilities. They are not
    counted as differences.
    """

    rows: int
    undecided: int
    kinds: dict[str, int]


def probe(
    model: Estimator,
    source: HighCostModel,
    answer_converted: AnswerRows,
    sample: Rows,
    model_name: str,
    *,
    allow_missing: bool = False,
    n_rows: int = N_ROWS,
    advice: str = ADVICE,
) -> ProbeFigures:
    """Compare a classifier `source` with its conversion on adversarial rows.

    The rows are made from `model`, which is the fitted classifier or flat trees. If any row
    differs, an InputError is raised, with the name `model_name` and the remedy `advice`.
    """
    probe_rows = ProbeRows.of_model(
        model, source.labels, sample, allow_missing=allow_missing, n_rows=n_rows
    )
    with np.errstate(all="ignore"):
        try:
            expected = source.answers(probe_rows.x)
        except ValueError:
            probe_rows = probe_rows.without_refused_rows(source.answers)
            expected = source.answers(probe_rows.x)
    converted_answers = answer_converted(probe_rows.x)
    is_different = _mark_differences(expected, converted_answers)
    is_undecided = is_different & _mark_ties(expected, converted_answers)
    is_undecided |= _mark_undecided(
        source.answers, probe_rows.x, expected, is_different & ~is_undecided
    )
    wrong_rows = np.flatnonzero(is_different & ~is_undecided)
    if len(wrong_rows):
        row = int(wrong_rows[0])
        class_index, probabilities = (array[row] for array in converted_answers)
        expected_class, expected_probabilities = (array[row] for array in expected)
        difference = f"as class {class_index}, not {expected_class}, counted from 0"
        if class_index == expected_class:
            largest_error = np.abs(probabilities - expected_probabilities).max()
            difference = f"with probabilities {largest_error:.2g} off"
        raise InputError(
            f"{model_name}: converted, {type(model).__name__} answers {len(wrong_rows)} of "
            f"{len(is_different)} probed rows differently; {_describe(probe_rows, row)} "
            f"{difference}: {advice}"
        )
    return ProbeFigures(len(is_different), int(is_undecided.sum()), probe_rows.kinds)


def _mark_differences(expected: Answers, answers: Answers) -> NDArray[np.bool_]:
    """Mark rows with different labels or probabilities."""
    is_different: NDArray[np.bool_] = (expected[0] != answers[0]) | ~_mark_near(expected, answers)
    return is_different


def _mark_near(expected: Answers, answers: Answers) -> NDArray[np.bool_]:
    """Mark rows with probabilities that differ by at most :data:`TOLERANCE`."""
    with np.errstate(invalid="ignore"):
        is_near: NDArray[np.bool_] = (np.abs(expected[1] - answers[1]) <= TOLERANCE).all(axis=1)
    return is_near


def _mark_ties(expected: Answers, answers: Answers) -> NDArray[np.bool_]:
    """Mark rows with equal probabilities of the two labels in the classifier.

    The order in which a forest adds up its trees decides which of these labels it names.
    """
    rows = np.arange(len(expected[0]))
    lead = expected[1][rows, expected[0]] - expected[1][rows, answers[0]]
    is_tie: NDArray[np.bool_] = (np.abs(lead) <= TIE) & _mark_near(expected, answers)
    return is_tie


def _mark_undecided(
    answer_rows: AnswerRows, x: Rows, expected: Answers, is_different: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Mark the differing rows for which rounding decides the answer of the classifier itself."""
    is_undecided = np.zeros(len(x), np.bool_)
    if not is_different.any():
        return is_undecided
    try:
        rounds_differently = _mark_differences(expected, answer_rows(x.astype(np.float64)))
        if not rounds_differently.any():
            return is_undecided
        rng = np.random.default_rng(0)
        is_undecided = rounds_differently & is_different
        rows = np.flatnonzero(is_different)
        expected_of_rows = expected[0][rows], expected[1][rows]
        for _ in range(N_CHANGED_COPIES):
            factor = 1 + ROUNDING * rng.choice([-1.0, 1.0], (len(rows), x.shape[1]))
            changed_answers = answer_rows(x[rows].astype(np.float64) * factor)
            is_undecided[rows] |= _mark_differences(expected_of_rows, changed_answers)
    except ValueError:  # the classifier refuses some rows in float64
        return is_undecided
    return is_undecided


def _describe(probe_rows: ProbeRows, row: int) -> str:
    """Describe a row by its kind and its first values."""
    kind_stops = np.cumsum(list(probe_rows.kinds.values()))
    kind = list(probe_rows.kinds)[int(np.searchsorted(kind_stops, row, side="right"))]
    values = ", ".join(f"{value:.9g}" for value in probe_rows.x[row, :MAX_SHOWN_VALUES])
    ellipsis = ", ..." if probe_rows.x.shape[1] > MAX_SHOWN_VALUES else ""
    return f"of the kind {kind!r} the row [{values}{ellipsis}]"
