"""Adversarial rows, on which a converted model is most likely to differ from its source.

The rows are made from the numbers that the parts of the model store for each column, such as
thresholds, edges, categories, means and training rows. They contain these numbers, their float32
neighbours and the middles between them. Other rows are pairs of neighbours with different labels.
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
from gatewise_training.learners.given_models.flat_forms import FORESTS, flat_trees
from gatewise_training.learners.given_models.packable import Estimator, library_name

Rows = NDArray[np.float32]
Labels = Callable[[Rows], Any]

N_ROWS = 4000
"""Approximate number of rows on which packing probes a conversion."""
MAX_TOTAL_VALUES = 4_000_000
"""Maximum number of values in all rows together, so that wide instances get fewer rows."""
MAX_CRITICAL_VALUES = 400
"""Maximum number of critical values per column; if there are more, they are sampled."""
MAX_CALLS = 200
"""Maximum number of calls to find the rows that a classifier accepts."""
MAX_DEPTH = 6
"""Maximum depth of estimators inside estimators that are searched."""
N_BISECTIONS = 40
"""Number of halvings, enough to bring two ordinary float32 numbers next to each other."""
MAX_MAGNITUDE = 1e30
"""Larger critical values are left out, as are NaN and infinity."""
EXTREMES = np.array(
    [0, -0.0, 1, -1, 1e-45, -1e-45, 1.2e-38, 1e-7, -1e-7, 1e5, -1e5, 1e20, -1e20], np.float32
)


@dataclass(frozen=True, eq=False)
class ProbeRows:
    """Rows on which two models are compared, and the number of rows of each kind."""

    x: Rows
    kinds: dict[str, int]

    @classmethod
    def of_model(
        cls,
        model: Estimator,
        labels: Labels,
        sample: Rows,
        *,
        missing: bool = False,
        n_rows: int = N_ROWS,
        seed: int = 0,
    ) -> ProbeRows:
        """Make about `n_rows` rows from a fitted classifier and a sample of its rows.

        `labels` is a function from rows to labels. Rows have NaN only with `missing`.
        """
        rng = np.random.default_rng(seed)
        n_columns = sample.shape[1]
        n = max(min(n_rows, MAX_TOTAL_VALUES // n_columns), 40)
        values = critical_values(model, sample, rng)
        base = sample[rng.integers(len(sample), size=n // 4)]
        base_part = base[: n // 10]
        one_critical = _with_values(base, values, 1, rng)
        all_critical = _with_values(base, values, n_columns, rng)
        rows: dict[str, Rows] = {
            "sample": sample[:n],
            "one critical value": one_critical,
            "several critical values": _with_values(base, values, 3, rng),
            "only critical values": all_critical,
            "whole and half numbers": np.round(2 * base_part) / 2,
            "opposite sign": -base[: n // 20],
            "extremes": _with_values(base_part, [EXTREMES] * n_columns, 2, rng),
            "one number": np.tile(EXTREMES[:, None], n_columns),
            "middles of rows": base_part / 2 + base_part[::-1] / 2,
        }
        if missing:
            rows["missing values"] = _with_gaps(np.concatenate([one_critical, all_critical]), rng)
        rows["sides of a boundary"] = boundary_rows(labels, base, one_critical, n // 20, rng)
        return cls.of_kinds(rows)

    def without_refused_rows(self, answers: Labels) -> ProbeRows:
        """Copy without the rows that a classifier refuses, such as rows that overflow."""
        stops = np.cumsum(list(self.kinds.values()))
        rows = dict(zip(self.kinds, np.split(self.x, stops[:-1]), strict=True))
        rows = {kind: accepted_rows(answers, x) for kind, x in rows.items()}
        return ProbeRows.of_kinds(rows)

    @classmethod
    def of_kinds(cls, rows: dict[str, Rows]) -> ProbeRows:
        """Join rows of several kinds."""
        return cls(np.concatenate(list(rows.values())), {kind: len(x) for kind, x in rows.items()})


def critical_values(model: Estimator, sample: Rows, rng: np.random.Generator) -> list[Rows]:
    """List the numbers of each column at which a label may change, and their neighbours."""
    numbers: list[list[NDArray[Any]]] = [[column] for column in sample.T]
    for estimator, columns in first_estimators(model, np.arange(sample.shape[1])):
        tables = numbers_per_column(estimator, len(columns))
        for column, column_numbers in zip(columns, tables, strict=True):
            numbers[column] += column_numbers
    return [_neighbourhood(np.concatenate(column_numbers), rng) for column_numbers in numbers]


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
    if library_name(model) in FORESTS:
        return  # the flat trees of the forest have all thresholds
    members = np.ravel(np.array(getattr(model, "estimators_", ()), object)).tolist()
    member_columns = getattr(model, "estimators_features_", [slice(None)] * len(members))
    for member, indices in zip(members, member_columns, strict=True):
        yield from first_estimators(member, columns[indices], depth - 1)
    inner = [getattr(model, "best_estimator_", None)]
    if type(model).__name__ in ("FrozenEstimator", "_CalibratedClassifier"):
        inner.append(model.estimator)
    inner += getattr(model, "calibrated_classifiers_", [])
    inner += [transformer for _, transformer in getattr(model, "transformer_list", [])]
    for estimator in inner:
        yield from first_estimators(estimator, columns, depth - 1)


def _exact_trees(estimator: Estimator) -> tuple[TreeEnsemble, Link] | None:
    """Get the flat trees of an estimator, or None if it has no trees with an exact form."""
    try:
        return flat_trees(estimator)
    except InputError:
        return None


def numbers_per_column(estimator: Estimator, n_columns: int) -> list[list[NDArray[Any]]]:
    """List the numbers that a fitted estimator stores for each column, such as thresholds."""
    trees: Any = estimator if isinstance(estimator, TreeEnsemble) else None
    if hasattr(estimator, "tree_"):
        trees = forest_nodes([estimator])[0]
    elif trees is None and (form := _exact_trees(estimator)) is not None:
        trees = form[0]
    if trees is not None:
        order = np.argsort(trees.feature, kind="stable")
        starts = np.searchsorted(trees.feature[order], np.arange(n_columns + 1))
        return [[numbers] for numbers in np.split(trees.threshold[order], starts)[1:-1]]
    numbers: list[list[NDArray[Any]]] = [[] for _ in range(n_columns)]
    for value in vars(estimator).values():
        if isinstance(value, float):
            table: Any = [[value]] * n_columns
        elif isinstance(value, np.ndarray) and value.ndim == 2:
            table = value[:MAX_CRITICAL_VALUES].T
        elif isinstance(value, np.ndarray | list):
            table = value
        else:
            continue
        for k in range(n_columns if len(table) == n_columns else 0):
            column = np.ravel(table[k])
            if column.dtype.kind in "fiu":
                numbers[k].append(column)
    return numbers


def _neighbourhood(numbers: NDArray[Any], rng: np.random.Generator) -> Rows:
    """List numbers of one column, the middles between them, and their float32 neighbours."""
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.unique(numbers.astype(np.float32))
    values = values[np.abs(values) < MAX_MAGNITUDE]
    if len(values) > MAX_CRITICAL_VALUES:
        values = np.sort(rng.choice(values, MAX_CRITICAL_VALUES, replace=False))
    if not len(values):
        return EXTREMES
    inner = np.concatenate([values, values[1:] / 2 + values[:-1] / 2])
    lower = np.nextafter(inner, np.float32(-np.inf))
    higher = np.nextafter(inner, np.float32(np.inf))
    outside = np.array([values[0] - 1, values[-1] + 1, 0], np.float32)
    return np.concatenate([inner, lower, higher, outside])


def _with_values(base: Rows, values: list[Rows], n_changed: int, rng: np.random.Generator) -> Rows:
    """Replace `n_changed` random columns of each row by random entries of the column's `values`."""
    new_values = np.column_stack([rng.choice(column, len(base)) for column in values])
    order = rng.permuted(np.tile(np.arange(base.shape[1]), (len(base), 1)), axis=1)
    return np.where(order < n_changed, new_values, base)


def _with_gaps(x: Rows, rng: np.random.Generator) -> Rows:
    """Copy rows with NaN in a random share of the columns of each row."""
    share = rng.random((len(x), 1))
    return np.where(rng.random(x.shape) < share, np.float32(np.nan), x)


def boundary_rows(
    labels: Labels, base: Rows, others: Rows, n_pairs: int, rng: np.random.Generator
) -> Rows:
    """Find neighbouring float32 rows with different labels by bisection."""
    start = base[rng.integers(len(base), size=4 * n_pairs)]
    candidates = np.concatenate([others, base])
    stop = candidates[rng.integers(len(candidates), size=4 * n_pairs)]
    label = labels(start)
    try:
        stop_label = labels(stop)
    except ValueError:  # the classifier refuses some critical values, such as unseen categories
        stop = rng.permutation(start)
        stop_label = labels(stop)
    pairs = np.flatnonzero(label != stop_label)[:n_pairs]
    start, stop, label = start[pairs], stop[pairs], label[pairs]
    for _ in range(N_BISECTIONS):
        middle = (start / 2 + stop / 2).astype(np.float32)
        if ((middle == start) | (middle == stop)).all():
            break
        try:
            moves_start = labels(middle) == label
        except ValueError:  # there is no value between two categories
            break
        start[moves_start] = middle[moves_start]
        stop[~moves_start] = middle[~moves_start]
    return np.concatenate([start, stop])


def accepted_rows(answers: Labels, x: Rows) -> Rows:
    """Select the rows that a classifier accepts; scikit-learn refuses rows that overflow.

    If the classifier refuses a batch, both halves of the batch are tried, up to MAX_CALLS calls.
    """
    pending = [x] if len(x) else []
    accepted = [x[:0]]
    for _ in range(MAX_CALLS):
        if not pending:
            break
        rows = pending.pop()
        try:
            answers(rows)
        except ValueError:
            middle = len(rows) // 2
            pending += [rows[:middle], rows[middle:]] if middle else []
        else:
            accepted.append(rows)
    return np.concatenate(accepted)
