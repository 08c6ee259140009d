"""Check of a bundle's guarantee, accuracy and agreement on the rows of a simulation."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from gatewise.formats import number, percent
from gatewise.operating_point import OperatingPoint
from gatewise_export.bundle.manifest import Manifest
from gatewise_sim.fleet.results import RowTable

#: One-sided 95 % quantile of the normal distribution. A promise counts as broken only if the
#: difference is significant, because the rows are a sample.
_Z: Final = 1.645
#: Two-sided 95 % quantile, for the interval in a bundle.
_Z_OF_INTERVAL: Final = 1.960


def broken_promise(manifest: Manifest, table: RowTable) -> str | None:
    """Describe the first promise of the bundle that the rows break; None if they break none.

    A guarantee bounds the loss of accuracy, the mean cost or the offload rate. Every bundle also
    promises the accuracy and the agreement with the high-cost model that its operating point had on
    the validation rows.
    """
    point = manifest.active_point
    reason = (
        _broken_guarantee(point, table)
        or _lower_accuracy(point, table, sum(manifest.class_rows or ()))
        or _lower_agreement(table)
    )
    return None if reason is None else f"The rows break the bundle's promise: {reason}."


def _broken_guarantee(point: OperatingPoint, table: RowTable) -> str | None:
    guarantee = point.guarantee or {}
    kind = guarantee.get("kind")
    bound = float(guarantee.get("bound", np.inf))
    labelled = table.truth >= 0
    if kind == "max_loss" and labelled.any():
        by_cloud = (table.cloud_label == table.truth)[labelled].astype(np.float64)
        loss = by_cloud - (_labels(table) == table.truth)[labelled]
        if _exceeds(loss, bound):
            return (
                f"their accuracy is {percent(float(loss.mean()))} below that of the high-cost "
                f"model, but at most {percent(bound)} is guaranteed"
            )
    if kind == "budget":
        cost = np.where(table.offload, table.request_cost + table.offload_price, table.local_cost)
        if _exceeds(cost, bound):
            return (
                f"an instance costs {number(cost.mean())} on average, but at most {number(bound)} "
                "is guaranteed"
            )
    if kind == "offload_rate" and _exceeds(table.offload.astype(np.float64), bound):
        return (
            f"{percent(float(table.offload.mean()))} of the rows are offloaded, but at most "
            f"{percent(bound)} is guaranteed"
        )
    return None


def _lower_accuracy(point: OperatingPoint, table: RowTable, n_validation: int) -> str | None:
    """Compare with the accuracy on the validation rows, which has a standard error of its own."""
    labelled = table.truth >= 0
    if point.measured != "accuracy" or not labelled.any():
        return None
    is_wrong = (_labels(table) != table.truth)[labelled].astype(np.float64)
    error = 0.0
    if point.interval is not None:
        error = (point.interval[1] - point.interval[0]) / (2 * _Z_OF_INTERVAL)
    elif n_validation:
        error = float(np.sqrt(point.accuracy * (1.0 - point.accuracy) / n_validation))
    if not _exceeds(is_wrong, 1.0 - point.accuracy, error=error):
        return None
    return (
        f"{percent(1.0 - float(is_wrong.mean()))} of their answers are correct, but "
        f"{percent(point.accuracy)} of the answers on the validation rows were"
    )


def _lower_agreement(table: RowTable) -> str | None:
    if not table.has_cloud or table.promised is None:
        return None
    is_different = (_labels(table) != table.cloud_label)[table.can_offload].astype(np.float64)
    if not _exceeds(is_different, table.promised):
        return None
    return (
        f"{percent(float(is_different.mean()))} of their answers differ from those of the "
        f"high-cost model, but at most {percent(table.promised)} is promised"
    )


def _labels(table: RowTable) -> NDArray[np.int64]:
    """Class indices of the answers at the operating point, shape (n,)."""
    return np.where(table.offload, table.cloud_label, table.local_label)


def _exceeds(values: NDArray[np.float64], bound: float, *, error: float = 0.0) -> bool:
    """Whether the mean of the values is significantly above a bound.

    For n values of mean m and variance s^2, and a bound with the standard error `error`::

        m - bound > 1.645 * sqrt(s^2 / n + error^2)
    """
    n = len(values)
    if n < 2:
        return False
    deviation = np.hypot(float(values.std(ddof=1)) / np.sqrt(n), error)
    return bool(values.mean() - bound > _Z * deviation)
