"""Comparison of a converted classifier with its source on adversarial rows.

Packing and fits call :func:`probe` before they trust a conversion to trees, to an ONNX graph or to
the file of a library. The rows are made from the numbers that the parts of the model store for
each column, such as thresholds, edges, categories, means and training rows. They contain these
numbers, their float32 neighbours and the middles between them. Other rows are pairs of neighbours
with different labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import Link
from gatewise.errors import InputError
from gatewise.models.tree_sources import forest_nodes
from gatewise.models.trees import TreeEnsemble
from gatewise_training.learners.given_models.flat_forms import FOREST_CLASSES, flat_trees
from gatewise_training.learners.given_models.packable import ADVICE, Estimator, library_class_name
from gatewise_training.learners.high_cost_model import HighCostModel

FlatRows = NDArray[np.float32]
PredictRows = Callable[[FlatRows], Any]

#: Approximate number of rows on which packing probes a conversion.
N_ROWS = 4000
#: Maximum number of values in all rows together, so that wide instances get fewer rows.
MAX_TOTAL_VALUES = 4_000_000
#: Maximum number of critical values per column; if there are more, they are sampled.
MAX_CRITICAL_VALUES = 400
#: Maximum number of calls to find the rows that a classifier accepts.
MAX_ACCEPTANCE_CALLS = 200
#: Maximum depth of estimators inside estimators that are searched.
MAX_DEPTH = 6
#: Number of halvings, enough to bring two ordinary float32 numbers next to each other.
N_BISECTIONS = 40
#: Larger critical values are left out, as are NaN and infinity, because sums of them overflow.
MAX_MAGNITUDE = 1e30
#: Numbers that arithmetic may treat differently: zeros of both signs, the smallest subnormal number
#: (1e-45) and about the smallest normal one (1.2e-38), the float32 resolution at 1 (1e-7), and
#: large numbers with finite squares (1e5) and infinite ones (1e20).
EXTREME_VALUES = np.array(
    [0, -0.0, 1, -1, 1e-45, -1e-45, 1.2e-38, 1e-7, -1e-7, 1e5, -1e5, 1e20, -1e20], np.float32
)


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


@dataclass(frozen=True, eq=False)
class ProbeRows:
    """Rows on which two models are compared, and the number of rows of each kind."""

    x: FlatRows
    kinds: dict[str, int]

    @classmethod
    def of_model(
        cls,
        model: Estimator,
        predict: PredictRows,
        sample: FlatRows,
        *,
        allow_missing: bool = False,
        n_rows: int = N_ROWS,
    ) -> ProbeRows:
        """Make about `n_rows` rows from a fitted classifier and a sample of its rows.

        `predict` is a function from rows to labels. Rows have NaN only with `allow_missing`.
        """
        rng = np.random.default_rng(0)
        n_columns = sample.shape[1]
        n = max(min(n_rows, MAX_TOTAL_VALUES // n_columns), 40)  # a few rows of each kind at least
        values_by_column = critical_values(model, sample, rng)
        base_rows = sample[rng.integers(len(sample), size=n // 4)]
        fewer_base_rows = base_rows[: n // 10]
        one_critical = _with_values(base_rows, values_by_column, 1, rng)
        all_critical = _with_values(base_rows, values_by_column, n_columns, rng)
        rows_by_kind: dict[str, FlatRows] = {
            "sample": sample[:n],
            "one critical value": one_critical,
            "several critical values": _with_values(base_rows, values_by_column, 3, rng),
            "only critical values": all_critical,
            "whole and half numbers": np.round(2 * fewer_base_rows) / 2,
            "opposite sign": -base_rows[: n // 20],
            "extremes": _with_values(fewer_base_rows, [EXTREME_VALUES] * n_columns, 2, rng),
            "one number": np.tile(EXTREME_VALUES[:, None], n_columns),
            "middles of rows": fewer_base_rows / 2 + fewer_base_rows[::-1] / 2,
        }
        if allow_missing:
            rows_by_kind["missing values"] = _with_gaps(
                np.concatenate([one_critical, all_critical]), rng
            )
        rows_by_kind["sides of a boundary"] = boundary_rows(
            predict, base_rows, one_critical, n // 20, rng
        )
        return cls.of_kinds(rows_by_kind)

    def without_refused_rows(self, predict: PredictRows) -> ProbeRows:
        """Copy without the rows that a classifier refuses, such as rows that overflow."""
        stops = np.cumsum(list(self.kinds.values()))
        rows_by_kind = dict(zip(self.kinds, np.split(self.x, stops[:-1]), strict=True))
        rows_by_kind = {
            kind: accepted_rows(predict, rows_of_kind)
            for kind, rows_of_kind in rows_by_kind.items()
        }
        return ProbeRows.of_kinds(rows_by_kind)

    @classmethod
    def of_kinds(cls, rows_by_kind: dict[str, FlatRows]) -> ProbeRows:
        """Join rows of several kinds."""
        return cls(
            np.concatenate(list(rows_by_kind.values())),
            {kind: len(rows) for kind, rows in rows_by_kind.items()},
        )


def critical_values(model: Estimator, sample: FlatRows, rng: np.random.Generator) -> list[FlatRows]:
    """List the numbers of each column at which a label may change, and their neighbours."""
    numbers: list[list[NDArray[Any]]] = [[column] for column in sample.T]
    for estimator, columns in first_estimators(model, np.arange(sample.shape[1])):
        numbers_by_column = numbers_per_column(estimator, len(columns))
        for column, column_numbers in zip(columns, numbers_by_column, strict=True):
            numbers[column] += column_numbers
    return [_list_neighbourhood(np.concatenate(column_numbers), rng) for column_numbers in numbers]


def first_estimators(
    model: Estimator, columns: NDArray[np.intp], depth: int = MAX_DEPTH
) -> Iterator[tuple[Estimator, NDArray[np.intp]]]:
    """Yield the estimators inside a classifier that read its columns, and these columns."""
    if not depth or not hasattr(model, "__dict__"):
        return
    if hasattr(model, "transformers_"):
        for name, transformer, _ in model.transformers_:
            transformer_columns = columns[model._transformer_to_input_indices[name]]
            yield from first_estimators(transformer, transformer_columns, depth - 1)
        return
    if hasattr(model, "steps"):
        for _, step in model.steps:
            yield from first_estimators(step, columns, depth - 1)
            if step not in ("passthrough", None):
                return
    yield model, columns
    if library_class_name(model) in FOREST_CLASSES:
        return  # the flat trees of the forest have all thresholds
    members = np.ravel(np.array(getattr(model, "estimators_", ()), object)).tolist()
    member_columns = getattr(model, "estimators_features_", [slice(None)] * len(members))
    for member, features_of_member in zip(members, member_columns, strict=True):
        yield from first_estimators(member, columns[features_of_member], depth - 1)
    inner_estimators = [getattr(model, "best_estimator_", None)]
    if type(model).__name__ in ("FrozenEstimator", "_CalibratedClassifier"):
        inner_estimators.append(model.estimator)
    inner_estimators += getattr(model, "calibrated_classifiers_", [])
    inner_estimators += [transformer for _, transformer in getattr(model, "transformer_list", [])]
    for estimator in inner_estimators:
        yield from first_estimators(estimator, columns, depth - 1)


def _find_exact_trees(estimator: Estimator) -> tuple[TreeEnsemble, Link] | None:
    """Get the flat trees of an estimator, or None if it has no trees with an exact form."""
    try:
        return flat_trees(estimator)
    except InputError:
        return None


def numbers_per_column(estimator: Estimator, n_columns: int) -> list[list[NDArray[Any]]]:
    """List the numbers that a fitted estimator stores for each column, such as thresholds."""
    nodes: Any = estimator if isinstance(estimator, TreeEnsemble) else None
    if hasattr(estimator, "tree_"):
        nodes = forest_nodes([estimator])[0]
    elif nodes is None and (flat_form := _find_exact_trees(estimator)) is not None:
        nodes = flat_form[0]
    if nodes is not None:
        order = np.argsort(nodes.feature, kind="stable")
        starts = np.searchsorted(nodes.feature[order], np.arange(n_columns + 1))
        return [[numbers] for numbers in np.split(nodes.threshold[order], starts)[1:-1]]
    numbers: list[list[NDArray[Any]]] = [[] for _ in range(n_columns)]
    for attribute in vars(estimator).values():
        if isinstance(attribute, float):
            attribute_columns: Any = [[attribute]] * n_columns
        elif isinstance(attribute, np.ndarray) and attribute.ndim == 2:
            attribute_columns = attribute[:MAX_CRITICAL_VALUES].T
        elif isinstance(attribute, np.ndarray | list):
            attribute_columns = attribute
        else:
            continue
        for column_index in range(n_columns if len(attribute_columns) == n_columns else 0):
            column = np.ravel(attribute_columns[column_index])
            if column.dtype.kind in "fiu":
                numbers[column_index].append(column)
    return numbers


def _list_neighbourhood(numbers: NDArray[Any], rng: np.random.Generator) -> FlatRows:
    """List numbers of one column, the middles between them, and their float32 neighbours."""
    with np.errstate(over="ignore", invalid="ignore"):
        distinct_numbers = np.unique(numbers.astype(np.float32))
    distinct_numbers = distinct_numbers[np.abs(distinct_numbers) < MAX_MAGNITUDE]
    if len(distinct_numbers) > MAX_CRITICAL_VALUES:
        distinct_numbers = np.sort(rng.choice(distinct_numbers, MAX_CRITICAL_VALUES, replace=False))
    if not len(distinct_numbers):
        return EXTREME_VALUES
    centres = np.concatenate(
        [distinct_numbers, distinct_numbers[1:] / 2 + distinct_numbers[:-1] / 2]
    )
    lower_neighbours = np.nextafter(centres, np.float32(-np.inf))
    higher_neighbours = np.nextafter(centres, np.float32(np.inf))
    outer_values = np.array([distinct_numbers[0] - 1, distinct_numbers[-1] + 1, 0], np.float32)
    return np.concatenate([centres, lower_neighbours, higher_neighbours, outer_values])


def _with_values(
    rows: FlatRows, values_by_column: list[FlatRows], n_changed: int, rng: np.random.Generator
) -> FlatRows:
    """Replace `n_changed` random columns of each row by random values of the column."""
    new_values = np.column_stack([rng.choice(column, len(rows)) for column in values_by_column])
    column_rank = rng.permuted(np.tile(np.arange(rows.shape[1]), (len(rows), 1)), axis=1)
    return np.where(column_rank < n_changed, new_values, rows)


def _with_gaps(x: FlatRows, rng: np.random.Generator) -> FlatRows:
    """Copy rows with NaN in a random share of the columns of each row."""
    gap_share = rng.random((len(x), 1))
    return np.where(rng.random(x.shape) < gap_share, np.float32(np.nan), x)


def boundary_rows(
    predict: PredictRows,
    base_rows: FlatRows,
    other_rows: FlatRows,
    n_pairs: int,
    rng: np.random.Generator,
) -> FlatRows:
    """Find neighbouring float32 rows with different labels by bisection."""
    start_rows = base_rows[rng.integers(len(base_rows), size=4 * n_pairs)]
    stop_candidates = np.concatenate([other_rows, base_rows])
    stop_rows = stop_candidates[rng.integers(len(stop_candidates), size=4 * n_pairs)]
    start_label = predict(start_rows)
    try:
        stop_label = predict(stop_rows)
    except ValueError:  # the classifier refuses some critical values, such as unseen categories
        stop_rows = rng.permutation(start_rows)
        stop_label = predict(stop_rows)
    pairs = np.flatnonzero(start_label != stop_label)[:n_pairs]
    start_rows, stop_rows, start_label = start_rows[pairs], stop_rows[pairs], start_label[pairs]
    for _ in range(N_BISECTIONS):
        middle_rows = (start_rows / 2 + stop_rows / 2).astype(np.float32)
        if ((middle_rows == start_rows) | (middle_rows == stop_rows)).all():
            break
        try:
            moves_start = predict(middle_rows) == start_label
        except ValueError:  # there is no value between two categories
            break
        start_rows[moves_start] = middle_rows[moves_start]
        stop_rows[~moves_start] = middle_rows[~moves_start]
    return np.concatenate([start_rows, stop_rows])


def accepted_rows(predict: PredictRows, x: FlatRows) -> FlatRows:
    """Select the rows that a classifier accepts; scikit-learn refuses rows that overflow.

    If the classifier refuses a batch, both halves of the batch are tried, up to
    MAX_ACCEPTANCE_CALLS calls.
    """
    pending_batches = [x] if len(x) else []
    accepted_batches = [x[:0]]
    for _ in range(MAX_ACCEPTANCE_CALLS):
        if not pending_batches:
            break
        batch = pending_batches.pop()
        try:
            predict(batch)
        except ValueError:
            half = len(batch) // 2
            pending_batches += [batch[:half], batch[half:]] if half else []
        else:
            accepted_batches.append(batch)
    return np.concatenate(accepted_batches)


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
