"""The feature penalty of Adapt-LIN: a group lasso over the rows of ``[f1, g]``.

``Omega(V) = sum_k own_k ||V_k|| + sum_g shared_g ||V_g||_F`` (Adapt, NIPS 2017, OPT2, with the
shared prices of feature groups added). A feature is paid once, for f1 or g or both. A group is paid
once, for any of its features. Groups contain whole rows, so the norms form a tree. The proximal
step is therefore exact if rows shrink first, and then their groups (Jenatton et al., JMLR 2011,
Proposition 3.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts

Array = NDArray[np.float64]
Rows = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class GroupLasso:
    """``Omega`` of matrices with one row per feature."""

    own: Array  # (n_rows,)
    group: Rows  # (n_rows,): index into `shared`, -1 for no group
    shared: Array  # (n_groups,)

    @classmethod
    def from_costs(cls, costs: FeatureCosts) -> GroupLasso:
        """Make the penalty of all features.

        A group's price includes its required groups, which groups that share one therefore pay
        each. Else the norms would form no tree, and the proximal step would not be exact.
        """
        return cls(costs.own, costs.group, costs.is_paid_with @ costs.shared)

    def select_rows(self, rows: Rows) -> GroupLasso:
        """Get the penalty of some rows and of a last row without a price; other rows are zero."""
        own = np.append(self.own[rows], 0.0)
        return GroupLasso(own, np.append(self.group[rows], -1), self.shared)

    @cached_property
    def _has_shared_prices(self) -> bool:
        return bool(self.shared[self.group[self.group >= 0]].any())

    def value(self, v: Array) -> float:
        """Compute ``Omega(V)`` for V of shape (n_rows, n_outputs)."""
        return float(_compute_penalty(v, self.own, self.group, self.shared))

    def prox(self, v: Array, step: float) -> Array:
        """Compute ``argmin_U ||U - V||^2 / 2 + step * Omega(U)``, in the shape of V."""
        norm = np.sqrt(np.einsum("ij,ij->i", v, v))
        factor = _compute_shrinkage(norm, step * self.own)
        if self._has_shared_prices:
            is_member = self.group >= 0
            member_squares = ((norm * factor) ** 2)[is_member]
            group_square_sums = np.bincount(
                self.group[is_member], member_squares, minlength=len(self.shared)
            )
            group_factor = _compute_shrinkage(np.sqrt(group_square_sums), step * self.shared)
            factor = factor * np.append(group_factor, 1.0)[self.group]
        shrunken_rows: Array = v * factor[:, None]
        return shrunken_rows


@numba.njit(cache=True, nogil=True)
def _compute_penalty(v: Any, own: Any, group: Any, shared: Any) -> Any:
    """Add up the norms of the rows of V and of its groups, times their weights."""
    group_squares = np.zeros(len(shared))
    penalty = 0.0
    for k in range(len(v)):
        square = 0.0
        for c in range(v.shape[1]):
            square += v[k, c] * v[k, c]
        penalty += own[k] * np.sqrt(square)
        if group[k] >= 0:
            group_squares[group[k]] += square
    for group_index in range(len(shared)):
        penalty += shared[group_index] * np.sqrt(group_squares[group_index])
    return penalty


def smallest_zero_penalty(gradient: Array, penalty: GroupLasso) -> float:
    """Find the smallest ``gamma`` at which V = 0 is optimal, from the gradient at 0."""
    is_priced = penalty.own + np.append(penalty.shared, 0.0)[penalty.group] > 0
    if not np.any(gradient[is_priced]):
        return 0.0
    gradient = np.where(is_priced[:, None], gradient, 0.0)
    # V = 0 is optimal if prox(gradient, gamma) = 0; find the smallest such gamma by bisection
    lower_gamma = 0.0
    upper_gamma = 1.0
    while np.any(penalty.prox(gradient, upper_gamma)):
        upper_gamma *= 2.0
    while upper_gamma - lower_gamma > 1e-12 * upper_gamma:
        middle_gamma = 0.5 * (lower_gamma + upper_gamma)
        if middle_gamma in (lower_gamma, upper_gamma):
            break
        if np.any(penalty.prox(gradient, middle_gamma)):
            lower_gamma = middle_gamma
        else:
            upper_gamma = middle_gamma
    return upper_gamma


def _compute_shrinkage(norm: Array, decrease: Array) -> Array:
    """Compute the factor that decreases a length by `decrease`, but not below 0."""
    # 1e-200 avoids a division by 0; no price is so large that the quotient overflows
    return np.maximum(0.0, 1.0 - decrease / np.maximum(norm, 1e-200))
