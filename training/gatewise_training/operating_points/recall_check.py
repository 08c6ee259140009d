"""A remark where an operating point answers a rare class much worse than its reference does."""

from __future__ import annotations

import shlex
import warnings
from typing import Any

import numpy as np

from gatewise.errors import RecallWarning
from gatewise_training.operating_points.class_figures import is_rare

FALL = 0.05
"""Recall that must be lost before it is worth a remark."""
ROWS = 3
"""Rows of the class that must be lost, so that it is no chance."""


def recall_remark(system: Any, *, as_options: bool = False) -> str | None:
    """Say which rare class loses recall at the active operating point of a fitted system.

    None if there is no such class, or a bound on its recall was given. What mends it is said in
    Python or, with `as_options`, in options of ``gatewise train``.
    """
    frontier = system._reference_frontier()
    point = system.operating_point_
    reference = frontier.reference_recall
    bounds = system.class_bounds_
    if reference is None or point.recall is None:
        return None
    rows = np.array(frontier.class_rows)
    falls = []
    for c in np.flatnonzero(is_rare(rows / max(rows.sum(), 1))).tolist():
        before = reference[c]
        now = point.recall[c]
        if (
            before is None
            or now is None
            or any(k != "precision" and of == c for k, of, _ in bounds.items())
        ):
            continue
        if before - now > FALL and (before - now) * rows[c] >= ROWS:
            falls.append((before - now, c, before, now))
    if not falls:
        return None
    _, c, before, now = max(falls)
    label = frontier.classes[c]
    model = "the high-cost model" if system.high_cost_model_ is not None else "the costliest model"
    ways = f"min_recall={{{label!r}: {before - FALL:.2f}}}", "class_weight='balanced'"
    if as_options:
        share = shlex.quote(f"{label}={before - FALL:.2f}")
        ways = f"--min-recall {share}", "--class-weight balanced"
    return (
        f"recall of class {str(label)!r}, {rows[c] / rows.sum():.1%} of the rows, falls from "
        f"{before:.2f} ({model}) to {now:.2f}, accuracy from {frontier.reference_accuracy:.3f} to "
        f"{point.accuracy:.3f}; "
        f"{ways[0]} keeps it, {ways[1]} weighs it"
    )


def warn_of_recall(system: Any) -> None:
    """Warn with :func:`recall_remark`, if there is one."""
    remark = recall_remark(system)
    if remark is not None:
        warnings.warn(remark, RecallWarning, stacklevel=4)
