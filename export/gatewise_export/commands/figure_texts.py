"""Formatting and sorting helpers of the tables that describe a bundle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest

#: Label under which a point's `accuracy` is printed, by task.
_ACCURACY_LABELS = {"classify": "accuracy", "regress": "R²", "rank": "AP@5"}
#: Largest number of classes in a line or table. A bundle may have too many classes or columns for a
#: terminal.
MAX_CLASSES_SHOWN = 8
#: Largest number of column names in a line; a bundle may have thousands.
MAX_NAMES_SHOWN = 6


def join_names(names: Sequence[str]) -> str:
    """Join the first names, and count the others."""
    n_others = len(names) - MAX_NAMES_SHOWN
    return ", ".join(names[:MAX_NAMES_SHOWN]) + (f" and {n_others} more" if n_others > 0 else "")


def join_values(values: Sequence[object], limit: int) -> str:
    """Join the first `limit` values; dots stand for the others."""
    return ", ".join(map(str, values[:limit])) + (", ..." if len(values) > limit else "")


def sort_by_recall(recall: Sequence[float | None]) -> list[int]:
    """Sort class indices by recall; classes without rows, which have no recall, come last."""
    return sorted(
        range(len(recall)),
        key=lambda class_index: (recall[class_index] is None, recall[class_index] or 0.0),
    )


def format_class_share(shares: Sequence[float | None] | None, class_index: int) -> str:
    """Format a recall or precision, or - for None: the class has no rows or no answers."""
    share = None if shares is None else shares[class_index]
    return "-" if share is None else f"{share:.3f}"


def accuracy_label(manifest: Manifest) -> str:
    """Return the label of the points' `accuracy`: the task's metric, or what replaces it."""
    metric_name = manifest.active_point.measured
    return _ACCURACY_LABELS[manifest.task] if metric_name == "accuracy" else metric_name
