"""Check of a bundle's guarantee, accuracy and agreement on the rows of a simulation."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from gatewise.formats import number, percent
from gatewise.operating_point import OperatingPoint
from gatewise_export.bundle.manifest import Manifest
from gatewise_sim.fleet.results import NO_LABEL, RowTable

#: One-sided 95 % quantile of the normal distribution. A promise counts as broken only if the
#: difference is significant, because the rows are a sample.
_Z_ONE_SIDED: Final = 1.645
#: Two-sided 95 % quantile, for the interval in a bundle.
_Z_TWO_SIDED: Final = 1.960


def broken_promise(manifest: Manifest, table: RowTable) -> str | None:
    """Describe the first promise of the bundle that the rows break; None if they break none.

    A guarantee bounds the loss of accuracy, the mean cost or the offload rate. Every bundle also
    promises the accuracy and the agreement with the high-cost model that its operating point had on
    the validation rows.
    """
    operating_point = manifest.active_point
    violation = (
        _describe_broken_guarantee(operating_point, table)
        or _describe_lower_accuracy(operating_point, table, sum(manifest.class_rows or ()))
        or _describe_lower_agreement(table)
    )
    return None if violation is None else f"The rows break the bundle's promise: {violation}."


def _describe_broken_guarantee(operating_point: OperatingPoint, table: RowTable) -> str | None:
    guarantee = operating_point.guarantee or {}
    guarantee_kind = guarantee.get("kind")
    bound = float(guarantee.get("bound", np.inf))
    has_label = table.truth != NO_LABEL
    if guarantee_kind == "max_loss" and has_label.any():
        is_cloud_right = (table.cloud_label == table.truth)[has_label].astype(np.float64)
        loss = is_cloud_right - (table.label == table.truth)[has_label]
        if _exceeds(loss, bound):
            return (
                f"their accuracy is {percent(float(loss.mean()))} below that of the high-cost "
                f"model, but at most {percent(bound)} is guaranteed"
            )
    if guarantee_kind == "budget" and _exceeds(table.cost, bound):
        return (
            f"an instance costs {number(table.cost.mean())} on average, but at most "
            f"{number(bound)} is guaranteed"
        )
    if guarantee_kind == "offload_rate" and _exceeds(table.is_offloaded.astype(np.float64), bound):
        return (
            f"{percent(float(table.is_offloaded.mean()))} of the rows are offloaded, but at most "
            f"{percent(bound)} is guaranteed"
        )
    return None


def _describe_lower_accuracy(
    operating_point: OperatingPoint, table: RowTable, n_validation: int
) -> str | None:
    """Compare with the accuracy on the validation rows, which has a standard error of its own."""
    has_label = table.truth != NO_LABEL
    if operating_point.measured != "accuracy" or not has_label.any():
        return None
    is_wrong = (table.label != table.truth)[has_label].astype(np.float64)
    accuracy = operating_point.accuracy
    bound_error = 0.0
    if operating_point.interval is not None:
        low, high = operating_point.interval
        bound_error = (high - low) / (2 * _Z_TWO_SIDED)
    elif n_validation:
        bound_error = float(np.sqrt(accuracy * (1.0 - accuracy) / n_validation))
    if not _exceeds(is_wrong, 1.0 - accuracy, bound_error=bound_error):
        return None
    return (
        f"{percent(1.0 - float(is_wrong.mean()))} of their answers are correct, but "
        f"{percent(accuracy)} of the answers on the validation rows were"
    )


def _describe_lower_agreement(table: RowTable) -> str | None:
    if not table.has_cloud or table.max_disagreement is None:
        return None
    is_different = (table.label != table.cloud_label)[table.can_offload].astype(np.float64)
    if not _exceeds(is_different, table.max_disagreement):
        return None
    return (
        f"{percent(float(is_different.mean()))} of their answers differ from those of the "
        f"high-cost model, but at most {percent(table.max_disagreement)} is promised"
    )


def _exceeds(values: NDArray[np.float64], bound: float, *, bound_error: float = 0.0) -> bool:
    """Return whether the mean of the values is significantly above a bound.

    For n values of mean m and variance s^2, and a bound with the standard error `bound_error`::

        m - bound > 1.645 * sqrt(s^2 / n + error^2)
    """
    n_values = len(values)
    if n_values < 2:
        return False
    standard_error = np.hypot(float(values.std(ddof=1)) / np.sqrt(n_values), bound_error)
    return bool(values.mean() - bound > _Z_ONE_SIDED * standard_error)
