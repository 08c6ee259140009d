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
Answering = Callable[[NDArray[Any]], Answers]
"""Class indices (n,) and probabilities (n, n_classes) of rows, float32 or float64."""

TOLERANCE = 1e-4
"""Largest difference of a probability, which float32 sums and another `exp` cause."""
ROUNDING = 1e-6
"""Relative change of a row, after which a classifier that adds up in float32 may differ."""
N_CHANGED_COPIES = 32
MOST_SHOWN = 8


@dataclass(frozen=True)
class ProbeFigures:
    """Rows that a conversion was probed on, and their number of each kind.

    The classifier itself answers `undecided` rows differently if it computes in float64, or if
    the row changes by a millionth. They do not count as differences of the conversion.
    """

    rows: int
    undecided: int
    kinds: dict[str, int]


def probe(
    model: Estimator,
    source: HighCostModel,
    converted: Answering,
    sample: Rows,
    what: str,
    *,
    missing: bool = False,
    n_rows: int = N_ROWS,
    advice: str = ADVICE,
) -> ProbeFigures:
    """Compare two forms of a classifier on adversarial rows, close calls included.

    The rows are made from `model`, the fitted classifier or flat trees. `what` is its name in the
    InputError that is raised if any row differs, and `advice` says what to do.
    """
    probed = ProbeRows.of_model(model, source.labels, sample, missing=missing, n_rows=n_rows)
    with np.errstate(all="ignore"):
        try:
            expected = source.answers(probed.x)
        except ValueError:
            probed = probed.without_refused_rows(source.answers)
            expected = source.answers(probed.x)
    answers = converted(probed.x)
    differs = _differ(expected, answers)
    own_rounding = _decided_by_rounding(source.answers, probed.x, expected, differs)
    wrong = np.flatnonzero(differs & ~own_rounding)
    if len(wrong):
        row = int(wrong[0])
        if answers[0][row] == expected[0][row]:
            change = (
                f"with probabilities {np.abs(answers[1][row] - expected[1][row]).max():.2g} off"
            )
        else:
            change = f"as class {answers[0][row]}, not {expected[0][row]}, counted from 0"
        raise InputError(
            f"{what}: converted, {type(model).__name__} answers {len(wrong)} of {len(differs)} "
            f"probed rows differently; {_described(probed, row)} {change}: {advice}"
        )
    return ProbeFigures(len(differs), int(own_rounding.sum()), probed.kinds)


def _differ(one: Answers, other: Answers) -> NDArray[np.bool_]:
    """Mark rows with another label, or another probability."""
    with np.errstate(invalid="ignore"):
        near: NDArray[np.bool_] = (np.abs(one[1] - other[1]) <= TOLERANCE).all(axis=1)
    differs: NDArray[np.bool_] = (one[0] != other[0]) | ~near
    return differs


def _decided_by_rounding(
    source: Answering, x: Rows, expected: Answers, differs: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Mark the differing rows that the classifier's own rounding decides."""
    turns = np.zeros(len(x), np.bool_)
    if not differs.any():
        return turns
    try:
        rounds = _differ(expected, source(x.astype(np.float64)))
        if not rounds.any():
            return turns
        rng = np.random.default_rng(0)
        turns = rounds & differs
        rows = np.flatnonzero(differs)
        of_rows = expected[0][rows], expected[1][rows]
        for _ in range(N_CHANGED_COPIES):
            factor = 1 + ROUNDING * rng.choice([-1.0, 1.0], (len(rows), x.shape[1]))
            turns[rows] |= _differ(of_rows, source(x[rows].astype(np.float64) * factor))
    except ValueError:  # rows that it does not answer in float64
        return turns
    return turns


def _described(probed: ProbeRows, row: int) -> str:
    """Name a row by its kind and its first values."""
    stops = np.cumsum(list(probed.kinds.values()))
    kind = list(probed.kinds)[int(np.searchsorted(stops, row, side="right"))]
    values = ", ".join(f"{value:.9g}" for value in probed.x[row, :MOST_SHOWN])
    more = ", ..." if probed.x.shape[1] > MOST_SHOWN else ""
    return f"of the kind {kind!r} the row [{values}{more}]"
