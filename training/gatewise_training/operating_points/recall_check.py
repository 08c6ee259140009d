"""Warning about a rare class with a much lower recall in a classifier than in its reference.

The reference is the high-cost model or, without one, the last stage of the costliest candidate. A
high accuracy hides such a class, because most rows belong to other classes.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gatewise.errors import RecallWarning, warn_caller
from gatewise.operating_point import OperatingPoint
from gatewise_training.operating_points.class_figures import ClassBounds, is_rare
from gatewise_training.operating_points.frontier import Frontier

#: Smallest loss of recall that causes a remark.
MIN_FALL = 0.05

#: Smallest number of lost rows that causes a remark; one or two rows may be lost by chance.
MIN_LOST_ROWS = 3


class RecallFall(NamedTuple):
    """The recall of a class in the reference and at the active point."""

    size: float  # the first field, because falls are ordered by it
    class_index: int
    reference_recall: float
    recall: float


def recall_remark(system: Any, *, as_options: bool = False) -> str | None:
    """Write a remark on the rare class that loses the most recall at the active point.

    Classes with a bound on their recall, or on their loss, are left out. The remark names remedies
    as Python parameters or, with `as_options`, as options of ``gatewise train``. `system` is a
    fitted classifier, whose type is in a package that imports this module.
    """
    frontier = system._reference_frontier()
    point = system.operating_point_
    falls = list(_list_falls(frontier, point, system.class_bounds_))
    if not falls:
        return None
    fall = max(falls)
    class_label = frontier.classes[fall.class_index]
    class_share = frontier.class_rows[fall.class_index] / sum(frontier.class_rows)
    reference_name = (
        "the high-cost model" if system.high_cost_model_ is not None else "the costliest model"
    )
    min_recall = f"{fall.reference_recall - MIN_FALL:.2f}"
    if as_options:
        bound = f"--min-recall {shlex.quote(f'{class_label}={min_recall}')}"
        weighting = 'class_weight = "balanced" in --settings'
    else:
        bound = f"min_recall={{{class_label!r}: {min_recall}}}"
        weighting = "class_weight='balanced'"
    remedies = f"set {bound} to bound the recall"
    if system.class_weights_ is None:
        remedies += f", or {weighting} to give rare classes more weight"
    return (
        f"recall of class {str(class_label)!r}, {class_share:.1%} of the rows, falls from "
        f"{fall.reference_recall:.2f} ({reference_name}) to {fall.recall:.2f}, accuracy from "
        f"{frontier.reference_accuracy:.3f} to {point.accuracy:.3f}; {remedies}"
    )


def _list_falls(
    frontier: Frontier, point: OperatingPoint, bounds: ClassBounds
) -> Iterator[RecallFall]:
    """Yield the falls of rare classes that have no bound on their recall."""
    if frontier.reference_recall is None or point.recall is None:
        return
    # a bound on the loss of a class is also a bound on its recall
    bounded_classes = {bound.class_index for bound in bounds.as_list() if bound.kind != "precision"}
    n_rows_of_class = np.array(frontier.class_rows)
    rare_classes = np.flatnonzero(is_rare(n_rows_of_class / max(n_rows_of_class.sum(), 1)))
    for class_index in rare_classes.tolist():
        reference_recall = frontier.reference_recall[class_index]
        recall = point.recall[class_index]
        if class_index in bounded_classes or reference_recall is None or recall is None:
            continue
        size = reference_recall - recall
        if size > MIN_FALL and size * n_rows_of_class[class_index] >= MIN_LOST_ROWS:
            yield RecallFall(size, class_index, reference_recall, recall)


def warn_of_recall(system: Any) -> None:
    """Issue the remark of :func:`recall_remark`, if any, as a warning."""
    remark = recall_remark(system)
    if remark is not None:
        warn_caller(remark, RecallWarning)
