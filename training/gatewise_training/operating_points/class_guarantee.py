"""Guarantees by class: tests of bounds on the calibration rows of each class.

The null hypothesis of several bounds is "at least one bound is broken". The test of a broken bound
passes with a probability of at most the level, and so do all tests together. Therefore each bound
is tested at the full level, and all tests must pass. The loss of a class is the high-cost model's
recall minus the system's on the calibration rows of the class. It has the exact test of a paired
difference.

A class needs enough rows. If the true loss were just above `bound`, the probability that none of
`n` rows is lost would be ``(1 - bound) ** n``. It must not exceed the level. The tests of a paired
difference and of means of groups need some more.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.operating_points.class_figures import ClassBounds, ExitAnswers, bound_masks
from gatewise_training.operating_points.risk_tests import loss_limits, mean_pvalue, rate_pvalue

#: Largest number of rows for which the smallest number that certifies a bound is searched.
MAX_TESTED_ROWS = 5000


def check_class_rows(
    bounds: ClassBounds, truth: NDArray[np.int64], splitter: RowSplitter, level: float
) -> None:
    """Raise InputError if calibration rows of the classes `truth` are too few for the bounds."""
    problems = []
    for bound in bounds.as_list():
        # share of the rows of the class
        max_lost_share = bound.limit if bound.kind == "loss" else 1 - bound.limit
        if bound.kind == "precision" or max_lost_share >= 1:
            continue
        bound_text = f"{bounds.name_of(bound)}={bound.limit:g}"
        if max_lost_share <= 0:
            side = "above" if bound.kind == "loss" else "below"
            problems.append(f"{bound_text} cannot be certified, only a bound {side} it")
            continue
        class_splitter = splitter.take(truth == bound.class_index)
        n_units = class_splitter.n_groups or class_splitter.n_rows
        unit_text = "rows of" if class_splitter.n_groups is None else "groups with"
        lowest = -1.0 if bound.kind == "loss" else 0.0
        has_groups = class_splitter.n_groups is not None
        # for a loss, rows that only the system answers rightly may make up for missing rows
        has_enough = n_units >= _fewest_units(max_lost_share, level)
        if bound.kind == "recall":
            has_enough = _passes_without_loss(n_units, has_groups, max_lost_share, lowest, level)
        if not has_enough:
            n_needed = _min_units(has_groups, max_lost_share, lowest, level)
            need_text = f"{n_needed} calibration {unit_text} this class"
            problems.append(f"{bound_text} needs {need_text}, but there are {n_units}")
    if problems:
        raise InputError(
            f"guarantee={1 - level:g}: {'; '.join(problems)}; give more data or a looser bound"
        )


def _passes_without_loss(
    n_units: int, has_groups: bool, bound: float, lowest: float, level: float
) -> bool:
    """Test a bound on rows of which none is lost, or on as many groups of one such row."""
    splitter = RowSplitter(n_units, groups=np.arange(n_units) if has_groups else None)
    return _mean_passes(np.zeros(n_units), splitter, bound, lowest, level)


def _fewest_units(bound: float, level: float) -> int:
    """Get the smallest n with ``(1 - bound) ** n <= level``."""
    return math.ceil(math.log(level) / math.log1p(-bound) - 1e-9)  # rounding must not add a row


def _min_units(has_groups: bool, bound: float, lowest: float, level: float) -> int:
    """Get the smallest number of rows or groups that certify a bound if none is lost.

    Of many rows it is only estimated, from below.
    """
    n_enough = _fewest_units(bound, level)
    n_too_few = n_enough - 1
    if n_enough > MAX_TESTED_ROWS:
        return n_enough
    while not _passes_without_loss(n_enough, has_groups, bound, lowest, level):
        n_too_few = n_enough
        n_enough += max(n_enough // 8, 1)
    while n_enough - n_too_few > 1:
        middle = (n_enough + n_too_few) // 2
        if _passes_without_loss(middle, has_groups, bound, lowest, level):
            n_enough = middle
        else:
            n_too_few = middle
    return n_enough


def highest_recalls_text(
    bounds: ClassBounds, truth: NDArray[np.int64], splitter: RowSplitter, level: float
) -> str:
    """Write the highest recalls that the calibration rows can certify, for an error message."""
    recall_texts = []
    for bound in bounds.as_list():
        if bound.kind == "recall":
            class_splitter = splitter.take(truth == bound.class_index)
            n_units = class_splitter.n_groups or class_splitter.n_rows
            has_groups = class_splitter.n_groups is not None
            unit_text = "groups with" if has_groups else "of"
            highest_recall = _highest_recall(n_units, has_groups, level) if n_units else 0.0
            label = str(bounds.classes[bound.class_index])
            recall_texts.append(
                f"{n_units} {unit_text} class {label!r}: {highest_recall:.3f} if none is missed"
            )
    return f" ({'; '.join(recall_texts)})" if recall_texts else ""


def _highest_recall(n_units: int, has_groups: bool, level: float) -> float:
    """Get the highest recall that rows or groups can certify if none is lost."""
    highest_recall = float(level ** (1 / n_units))
    if not has_groups:
        return highest_recall
    lowest_recall = 0.0
    for _ in range(12):  # bisection to three digits
        middle = 0.5 * (lowest_recall + highest_recall)
        if _passes_without_loss(n_units, True, 1 - middle, 0.0, level):
            lowest_recall = middle
        else:
            highest_recall = middle
    return lowest_recall


def classes_pass(
    bounds: ClassBounds,
    answers: ExitAnswers,
    splitter: RowSplitter,
    exits: NDArray[np.int64],
    losses: NDArray[np.float64],
    level: float,
) -> bool:
    """Test all bounds on classes; `exits` and the losses of :func:`.row_losses` are (n,)."""
    for bound in bounds.as_list():
        if bound.kind == "loss":
            is_counted = answers.truth == bound.class_index
            row_values = losses[is_counted]
            lowest = -1.0
            highest_mean = bound.limit
        else:
            is_counted, is_wrong = bound_masks(answers, exits, bound)
            row_values = is_wrong[is_counted].astype(float)
            lowest = 0.0
            highest_mean = 1 - bound.limit
        if not _mean_passes(row_values, splitter.take(is_counted), highest_mean, lowest, level):
            return False
    return True


def _mean_passes(
    row_values: NDArray[np.float64],
    splitter: RowSplitter,
    bound: float,
    lowest: float,
    level: float,
) -> bool:
    """Test that a mean of values, each from `lowest` to 1, is below a bound."""
    n = len(row_values)
    if bound >= 1 or not n:
        return bound >= 1
    if splitter.n_groups is not None:  # a bet on the means of the groups that have such rows
        group_means = splitter.group_means(row_values)[np.newaxis]
        pvalues = mean_pvalue(group_means, bound, np.array([lowest]), np.ones(1), level)
        return bool(pvalues[0] <= level)
    if lowest == 0.0:  # values 0 or 1: the exact binomial test of their sum
        return bool(rate_pvalue(int(row_values.sum()), n, bound) <= level)
    # values -1, 0 or 1: the exact test of a paired difference, n_worse - n_better <= limit, where
    # the limit depends on the number of rows that differ
    n_worse = int((row_values > 0).sum())
    n_better = int((row_values < 0).sum())
    return bool(n_worse - n_better <= loss_limits(n, bound, level)[n_worse + n_better])


def class_test_names(bounds: ClassBounds) -> str:
    """Name the tests of bounds on classes."""
    test_names = {
        "exact paired difference" if bound.kind == "loss" else "exact binomial"
        for bound in bounds.as_list()
    }
    return ", ".join(sorted(test_names))


def unused_losses(
    bounds: ClassBounds, truth: NDArray[np.int64], losses: NDArray[np.float64]
) -> dict[str, float]:
    """Compute the unused part of each promised loss: 1 - loss on these rows / promised loss."""
    unused_parts = {}
    for bound in bounds.as_list():
        is_of_class = truth == bound.class_index
        if bound.kind == "loss" and bound.limit > 0 and is_of_class.any():
            loss = float(losses[is_of_class].mean())
            unused_parts[f"unused {bounds.name_of(bound)}"] = round(1 - loss / bound.limit, 4)
    return unused_parts
