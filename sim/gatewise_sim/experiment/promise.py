"""Whether the rows of a simulation keep what their bundle promises."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from gatewise.formats import number, percent
from gatewise_export.bundle.manifest import Manifest
from gatewise_sim.fleet.results import RowTable

#: One-sided quantile of the normal distribution at 95 %: rows are a sample, and only what they
#: show beyond chance breaks a promise.
_Z: Final = 1.645


def broken_promise(manifest: Manifest, table: RowTable) -> str | None:
    """Say in a sentence which promise the rows break; None if they keep all of them.

    A guarantee bounds the loss of accuracy, the mean cost or the offload rate; every bundle that
    states how often its answers agreed with the high-cost model promises that, too.
    """
    if not table.has_cloud:
        return None
    guarantee = manifest.active_point.guarantee or {}
    kind = guarantee.get("kind")
    bound = float(guarantee.get("bound", np.inf))
    label = np.where(table.offload, table.cloud_label, table.local_label)
    labelled = table.truth >= 0
    if kind == "max_loss" and labelled.any():
        right = (label == table.truth).astype(np.float64)
        loss = ((table.cloud_label == table.truth) - right)[labelled]
        if _exceeds(loss, bound):
            return (
                "The rows break the bundle's promise: it loses "
                f"{percent(float(loss.mean()))} of accuracy against the high-cost model on them, "
                f"and at most {percent(bound)} is guaranteed."
            )
    if kind == "budget":
        cost = np.where(table.offload, table.request_cost + table.offload_price, table.local_cost)
        if _exceeds(cost, bound):
            return (
                f"The rows break the bundle's promise: an instance costs {number(cost.mean())} on "
                f"average, and at most {number(bound)} is guaranteed."
            )
    if kind == "offload_rate" and _exceeds(table.offload.astype(np.float64), bound):
        return (
            f"The rows break the bundle's promise: {percent(float(table.offload.mean()))} of them "
            f"are offloaded, and at most {percent(bound)} is guaranteed."
        )
    differs = (label != table.cloud_label)[table.can_offload].astype(np.float64)
    if table.promised is not None and _exceeds(differs, table.promised):
        return (
            f"The rows break the bundle's promise: {percent(float(differs.mean()))} of them are "
            "answered otherwise than by the high-cost model, and at most "
            f"{percent(table.promised)} is promised."
        )
    return None


def _exceeds(values: NDArray[np.float64], bound: float) -> bool:
    """Whether the mean of the rows lies above a bound by more than chance."""
    n = len(values)
    if n < 2:
        return False
    error = float(values.std(ddof=1)) / np.sqrt(n)
    return bool(values.mean() - _Z * error > bound)
