"""Warning about a rare class that loses much recall against the reference."""

from __future__ import annotations

import shlex
import warnings
from typing import Any

import numpy as np

from gatewise.errors import RecallWarning
from gatewise_training.operating_points.class_figures import is_rare

MIN_FALL = 0.05
"""Smallest loss of recall that causes a remark."""
MIN_LOST_ROWS = 3
"""Smallest number of lost rows that chance does not explain."""


def recall_remark(system: Any, *, as_options: bool = False) -> str | None:
    """Write a remark on the rare class that loses most recall at the active point.

    Classes with a bound are left out. The remark names remedies as Python parameters or, with
    `as_options`, as options of ``gatewise train``.
    """
    frontier = system._reference_frontier()
    point = system.operating_point_
    reference_recalls = frontier.reference_recall
    bounds = system.class_bounds_
    if reference_recalls is None or point.recall is None:
        return None
    n_rows_of_class = np.array(frontier.class_rows)
    # rare classes whose recall falls, and is not bounded
    falls = []
    for class_index in np.flatnonzero(
        is_rare(n_rows_of_class / max(n_rows_of_class.sum(), 1))
    ).tolist():
        reference_recall = reference_recalls[class_index]
        recall = point.recall[class_index]
        if (
            reference_recall is None
            or recall is None
            or any(
                kind != "precision" and bounded_class == class_index
                for kind, bounded_class, _ in bounds.items()
            )
        ):
            continue
        if (
            reference_recall - recall > MIN_FALL
            and (reference_recall - recall) * n_rows_of_class[class_index] >= MIN_LOST_ROWS
        ):
            falls.append((reference_recall - recall, class_index, reference_recall, recall))
    if not falls:
        return None
    # report the largest fall
    _, class_index, reference_recall, recall = max(falls)
    class_label = frontier.classes[class_index]
    class_share = n_rows_of_class[class_index] / n_rows_of_class.sum()
    model_text = (
        "the high-cost model" if system.high_cost_model_ is not None else "the costliest model"
    )
    remedies = (
        f"min_recall={{{class_label!r}: {reference_recall - MIN_FALL:.2f}}}",
        "class_weight='balanced'",
    )
    if as_options:
        class_option = shlex.quote(f"{class_label}={reference_recall - MIN_FALL:.2f}")
        remedies = f"--min-recall {class_option}", "--class-weight balanced"
    return (
        f"recall of class {str(class_label)!r}, {class_share:.1%} "
        f"of the rows, falls from {reference_recall:.2f} ({model_text}) to {recall:.2f}, "
        f"accuracy from {frontier.reference_accuracy:.3f} to {point.accuracy:.3f}; "
        f"{remedies[0]} keeps it, {remedies[1]} weighs it"
    )


def warn_of_recall(system: Any) -> None:
    """Issue the remark of :func:`recall_remark` as a warning, if there is one."""
    remark = recall_remark(system)
    if remark is not None:
        warnings.warn(remark, RecallWarning, stacklevel=4)
