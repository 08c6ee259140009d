"""Comparison of a converted classifier with its source on adversarial rows.

Packing and fits call :func:`probe` before they trust a conversion to trees, to an ONNX graph or to
the file of a library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_training.learners.given_models.packable import ADVICE, Estimator
from gatewise_training.learners.given_models.probe_rows import N_ROWS, FlatRows, ProbeRows
from gatewise_training.learners.high_cost_model import HighCostModel

#: Class indices (n,), and probabilities (n, n_classes) of the same rows.
Answers = tuple[NDArray[np.int64], NDArray[Any]]
#: A function from rows, float32 or float64, to their answers.
AnswerRows = Callable[[NDArray[Any]], Answers]

#: Largest difference of a probability, for float32 sums and another implementation of `exp`.
PROBABILITY_TOLERANCE = 1e-4
#: Relative change of a row that may change the answer of a classifier that adds up in float32. It
#: is some ten times the resolution of float32.
ROUNDING = 1e-6
#: Largest difference of two equal float64 sums that add the same numbers in another order.
TIE_TOLERANCE = 1e-12
#: Number of randomly changed copies of a row to try, so that some of them cross the boundary
#: between two answers if the row is next to it.
N_CHANGED_COPIES = 32
#: Maximum number of values of a row in an error, so that it fits on a line or two.
MAX_SHOWN_VALUES = 8


@dataclass(frozen=True)
class ProbeFigures:
    """Number of rows that a conversion was probed on, in total and of each kind.

    A row is `undecided` if the answers differ, but rounding decides the answer of the classifier
    itself: it gives the two labels equal probabilities, or another answer in float64 or after a
    change of the row by a millionth. Undecided rows are not counted as differences.
    """

    rows: int
    undecided: int
    kinds: dict[str, int]


def probe(
    model: Estimator,
    source: HighCostModel,
    answer_converted: AnswerRows,
    sample: FlatRows,
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
    with np.errstate(all="ignore"):  # rows with extreme values may overflow
        try:
            expected_answers = source.answers(probe_rows.x)
        except ValueError:  # the classifier refuses some rows, such as those that overflow
            probe_rows = probe_rows.without_refused_rows(source.answers)
            expected_answers = source.answers(probe_rows.x)
    converted_answers = answer_converted(probe_rows.x)
    is_different = _mark_differences(expected_answers, converted_answers)
    is_undecided = is_different & _mark_ties(expected_answers, converted_answers)
    is_undecided |= _mark_undecided(
        source.answers, probe_rows.x, expected_answers, is_different & ~is_undecided
    )
    wrong_rows = np.flatnonzero(is_different & ~is_undecided)
    if len(wrong_rows):
        row = int(wrong_rows[0])
        class_index, probabilities = (array[row] for array in converted_answers)
        expected_class, expected_probabilities = (array[row] for array in expected_answers)
        difference = f"as class {class_index} instead of {expected_class} (counted from 0)"
        if class_index == expected_class:
            largest_error = np.abs(probabilities - expected_probabilities).max()
            difference = f"with probabilities {largest_error:.2g} off"
        raise InputError(
            f"{model_name}: the conversion of {type(model).__name__} answers {len(wrong_rows)} of "
            f"{len(is_different)} probed rows differently; {_describe(probe_rows, row)} "
            f"{difference}: {advice}"
        )
    return ProbeFigures(len(is_different), int(is_undecided.sum()), probe_rows.kinds)


def _mark_differences(expected_answers: Answers, answers: Answers) -> NDArray[np.bool_]:
    """Mark rows with different labels or probabilities."""
    expected_classes, expected_probabilities = expected_answers
    classes, probabilities = answers
    is_different: NDArray[np.bool_] = expected_classes != classes
    return is_different | ~_mark_near(expected_probabilities, probabilities)


def _mark_near(
    expected_probabilities: NDArray[Any], probabilities: NDArray[Any]
) -> NDArray[np.bool_]:
    """Mark rows with probabilities that differ by at most :data:`PROBABILITY_TOLERANCE`.

    A row with NaN is not marked.
    """
    with np.errstate(invalid="ignore"):
        errors = np.abs(expected_probabilities - probabilities)
        is_near: NDArray[np.bool_] = (errors <= PROBABILITY_TOLERANCE).all(axis=1)
    return is_near


def _mark_ties(expected_answers: Answers, answers: Answers) -> NDArray[np.bool_]:
    """Mark rows for which the classifier gives both answers' labels equal probabilities.

    The order in which a forest adds up its trees decides which of these labels it names.
    """
    expected_classes, expected_probabilities = expected_answers
    classes, probabilities = answers
    rows = np.arange(len(expected_classes))
    lead = expected_probabilities[rows, expected_classes] - expected_probabilities[rows, classes]
    is_tie: NDArray[np.bool_] = np.abs(lead) <= TIE_TOLERANCE
    return is_tie & _mark_near(expected_probabilities, probabilities)


def _mark_undecided(
    answer_rows: AnswerRows, x: FlatRows, expected_answers: Answers, is_different: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Mark the differing rows for which rounding decides the answer of the classifier itself.

    Only a classifier that computes in the type of its rows can have such rows. It gives another
    answer in float64 to at least one of the rows.
    """
    is_undecided = np.zeros(len(x), np.bool_)
    if not is_different.any():
        return is_undecided
    try:
        float64_answers = answer_rows(x.astype(np.float64))
    except ValueError:  # the classifier refuses rows in float64, so all remain differences
        return is_undecided
    rounds_differently = _mark_differences(expected_answers, float64_answers)
    if not rounds_differently.any():
        return is_undecided
    rng = np.random.default_rng(0)
    is_undecided = rounds_differently & is_different
    rows = np.flatnonzero(is_different)
    expected_classes, expected_probabilities = expected_answers
    expected_of_rows = expected_classes[rows], expected_probabilities[rows]
    for _ in range(N_CHANGED_COPIES):
        factors = 1 + ROUNDING * rng.choice([-1.0, 1.0], (len(rows), x.shape[1]))
        try:
            changed_answers = answer_rows(x[rows].astype(np.float64) * factors)
        except ValueError:  # the classifier refuses a changed row
            continue
        is_undecided[rows] |= _mark_differences(expected_of_rows, changed_answers)
    return is_undecided


def _describe(probe_rows: ProbeRows, row: int) -> str:
    """Describe a row by its kind and its first values; the rows are in the order of the kinds."""
    kind_stops = np.cumsum(list(probe_rows.kinds.values()))
    kind = list(probe_rows.kinds)[int(np.searchsorted(kind_stops, row, side="right"))]
    values = ", ".join(f"{value:.9g}" for value in probe_rows.x[row, :MAX_SHOWN_VALUES])
    ellipsis = ", ..." if probe_rows.x.shape[1] > MAX_SHOWN_VALUES else ""
    return f"of the kind {kind!r} the row [{values}{ellipsis}]"
