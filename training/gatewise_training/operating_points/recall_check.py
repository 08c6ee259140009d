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
    reference = frontier.reference_recall
    bounds = system.class_bounds_
    if reference is None or point.recall is None:
        return None
    rows = np.array(frontier.class_rows)
    # rare classes whose recall falls, and is not bounded
    falls = []
    for c in np.flatnonzero(is_rare(rows / max(rows.sum(), 1))).tolist():
        old_recall = reference[c]
        recall = point.recall[c]
        if (
            old_recall is None
            or recall is None
            or any(
                k != "precision" and bounded_class == c for k, bounded_class, _ in bounds.items()
            )
        ):
            continue
        if old_recall - recall > MIN_FALL and (old_recall - recall) * rows[c] >= MIN_LOST_ROWS:
            falls.append((old_recall - recall, c, old_recall, recall))
    if not falls:
        return None
    # report the largest fall
    _, c, old_recall, recall = max(falls)
    label = frontier.classes[c]
    model = "the high-cost model" if system.high_cost_model_ is not None else "the costliest model"
    remedies = f"min_recall={{{label!r}: {old_recall - MIN_FALL:.2f}}}", "class_weight='balanced'"
    if as_options:
        share = shlex.quote(f"{label}={old_recall - MIN_FALL:.2f}")
        remedies = f"--min-recall {share}", "--class-weight balanced"
    return (
        f"recall of class {str(label)!r}, {rows[c] / rows.sum():.1%} of the rows, falls from "
        f"{old_recall:.2f} ({model}) to {recall:.2f}, accuracy from "
        f"{frontier.reference_accuracy:.3f} to {point.accuracy:.3f}; "
        f"{remedies[0]} keeps it, {remedies[1]} weighs it"
    )


def warn_of_recall(system: Any) -> None:
    """Issue the remark of :func:`recall_remark` as a warning, if there is one."""
    remark = recall_remark(system)
    if remark is not None:
        warnings.warn(remark, RecallWarning, stacklevel=4)
