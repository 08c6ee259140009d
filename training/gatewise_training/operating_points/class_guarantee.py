"""Guarantees by class: tests of bounds on the calibration rows of each class.

The null hypothesis of several bounds is "at least one bound is broken". The test of a broken bound
passes with a probability of at most the level, and so do all tests together. Therefore each bound
is tested at the full level, and all tests must pass. The loss of a class is the high-cost model's
recall minus the system's on the calibration rows of the class. It has the exact test of a paired
difference.

A class needs enough rows. If the true loss were just above `bound`, the probability that none of
`n` rows is lost would be ``(1 - bound) ** n``. It must not exceed the level.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.operating_points.class_figures import (
    ClassBounds,
    ExitAnswers,
    bound_masks,
)
from gatewise_training.operating_points.risk_tests import (
    loss_limits,
    mean_pvalue,
    rate_pvalue,
)


def check_class_rows(
    bounds: ClassBounds, truth: NDArray[np.int64], splitter: RowSplitter, level: float
) -> None:
    """Raise InputError if calibration rows of the classes `truth` are too few for the bounds."""
    problems = []
    for kind, c, bound in bounds.items():
        max_share = bound if kind == "loss" else 1 - bound  # of the class's rows that are lost
        if kind == "precision" or max_share >= 1:
            continue
        name = f"{bounds.name(kind, c)}={bound:g}"
        if max_share <= 0:
            side = "above" if kind == "loss" else "below"
            problems.append(f"{name} cannot be certified, only a bound {side} it")
            continue
        of_class = splitter.take(truth == c)
        needed = min_rows(max_share, level)
        groups = of_class.n_groups
        n, units = (of_class.n, "rows of") if groups is None else (groups, "groups with")
        if n < needed:
            needs = f"{needed} calibration {units} this class"
            problems.append(f"{name} takes {needs}, and there are {n}")
    if problems:
        raise InputError(
            f"guarantee={1 - level:g}: {'; '.join(problems)}; give more data or a looser bound"
        )


def min_rows(bound: float, level: float) -> int:
    """Get the smallest number of rows that certify a bound if none of them is lost.

    This is the smallest n with ``(1 - bound) ** n <= level``.
    """
    return math.ceil(math.log(level) / math.log1p(-bound) - 1e-9)


def highest_recalls(bounds: ClassBounds, truth: NDArray[np.int64], level: float) -> str:
    """Write the highest recalls that the calibration rows can certify, for an error message."""
    texts = []
    for kind, c, _ in bounds.items():
        if kind == "recall":
            rows = int((truth == c).sum())
            highest = level ** (1 / rows) if rows else 0.0
            label = str(bounds.classes[c])
            texts.append(f"{rows} of class {label!r}: {highest:.3f} if none is missed")
    return f" ({'; '.join(texts)})" if texts else ""


def classes_pass(
    bounds: ClassBounds,
    answers: ExitAnswers,
    splitter: RowSplitter,
    exits: NDArray[np.int64],
    lost: NDArray[np.float64],
    level: float,
) -> bool:
    """Test all bounds on classes; `exits` and the losses of :func:`.lost_rows` are (n,)."""
    for kind, c, bound in bounds.items():
        if kind == "loss":
            of_class = answers.truth == c
            is_passed = _loss_passes(lost[of_class], splitter.take(of_class), bound, level)
        else:
            counted, missed = bound_masks(answers, exits, kind, c)
            is_passed = _share_passes(missed[counted], splitter.take(counted), bound, level)
        if not is_passed:
            return False
    return True


def _loss_passes(
    lost: NDArray[np.float64], splitter: RowSplitter, bound: float, level: float
) -> bool:
    """Test a loss on the rows of its class."""
    if bound >= 1 or not len(lost):
        return bound >= 1
    if splitter.n_groups is not None:
        return _bet_passes(lost, splitter, bound, -1.0, level)
    worse = int((lost > 0).sum())
    better = int((lost < 0).sum())
    return bool(worse - better <= loss_limits(len(lost), bound, level)[worse + better])


def _share_passes(
    missed: NDArray[np.bool_], splitter: RowSplitter, bound: float, level: float
) -> bool:
    """Test a recall or precision on the rows that it counts."""
    if splitter.n_groups is None:
        return bool(rate_pvalue(int(missed.sum()), len(missed), 1 - bound) <= level)
    # a bet on the means of the groups that have such rows
    return len(missed) > 0 and _bet_passes(missed.astype(float), splitter, 1 - bound, 0.0, level)


def _bet_passes(
    values: NDArray[np.float64], splitter: RowSplitter, bound: float, lowest: float, level: float
) -> bool:
    """Test by betting that the mean of groups, each at most 1, is below a bound."""
    means = splitter.group_means(values)[np.newaxis]
    highest = np.ones(1)
    return bool(mean_pvalue(means, bound, lowest * highest, highest, level)[0] <= level)


def class_tests(bounds: ClassBounds) -> str:
    """Name the tests of bounds on classes."""
    kinds = {
        "exact paired difference" if k == "loss" else "exact binomial" for k, *_ in bounds.items()
    }
    return ", ".join(sorted(kinds))


def unused_losses(
    bounds: ClassBounds, truth: NDArray[np.int64], lost: NDArray[np.float64]
) -> dict[str, float]:
    """Compute the unused part of each promised loss: 1 - loss on these rows / promised loss."""
    return {
        f"unused {bounds.name(kind, c)}": round(1 - float(lost[truth == c].mean()) / bound, 4)
        for kind, c, bound in bounds.items()
        if kind == "loss" and bound > 0 and (truth == c).any()
    }
