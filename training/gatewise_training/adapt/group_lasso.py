"""The feature penalty of Adapt-LIN: a group lasso over the rows of ``[f1, g]``.

``Omega(V) = sum_k own_k ||V_k|| + sum_g shared_g ||V_g||_F`` (Adapt, NIPS 2017, OPT2, with
the shared prices of feature groups added): a feature is bought once, by f1 or by g or by
both; a group once, by any of its features. Groups hold rows, so the norms form a tree and the
proximal step is exact when rows shrink first and their groups after them (Jenatton et al.,
JMLR 2011, Proposition 3.1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewise_training.costs import FeatureCosts

__all__ = ["group_lasso", "prox_group_lasso", "smallest_zero_penalty"]

Array = NDArray[np.float64]


def group_lasso(v: Array, costs: FeatureCosts) -> float:
    """``Omega(V)`` for V of shape (n_features, n_outputs)."""
    rows = np.linalg.norm(v, axis=1)
    total = float(costs.own @ rows)
    for g in np.flatnonzero(costs.shared):
        total += float(costs.shared[g] * np.linalg.norm(rows[costs.group == g]))
    return total


def prox_group_lasso(v: Array, costs: FeatureCosts, step: float) -> Array:
    """``argmin_U ||U - V||^2 / 2 + step * Omega(U)``, of V's shape."""
    out = _shrink(v, step * costs.own)
    for g in np.flatnonzero(costs.shared):
        members = costs.group == g
        norm = np.linalg.norm(out[members])
        out[members] *= max(0.0, 1.0 - step * costs.shared[g] / norm) if norm > 0 else 0.0
    return out


def smallest_zero_penalty(gradient: Array, costs: FeatureCosts) -> float:
    """Critical ``gamma``: the smallest at which V = 0 is optimal.

    Parameters
    ----------
    gradient : ndarray of float64, shape (n_features, n_outputs)
        Of the smooth loss at V = 0. Rows of free features do not count.
    """
    shared = np.append(costs.shared, 0.0)[costs.group]
    priced = costs.own + shared > 0
    if not priced.any() or not np.any(gradient[priced]):
        return 0.0
    gradient = np.where(priced[:, None], gradient, 0.0)
    low, high = 0.0, 1.0
    while np.any(prox_group_lasso(gradient, costs, high)):
        high *= 2.0
    while high - low > 1e-12 * high:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (
            (middle, high)
            if np.any(prox_group_lasso(gradient, costs, middle))
            else (
                low,
                middle,
            )
        )
    return high


def _shrink(v: Array, by: Array) -> Array:
    norm = np.linalg.norm(v, axis=1)
    factor = np.maximum(0.0, 1.0 - by / np.where(norm > 0, norm, 1.0))
    out: Array = v * np.where(norm > 0, factor, 0.0)[:, None]
    return out
