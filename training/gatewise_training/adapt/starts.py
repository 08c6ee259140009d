"""Where an alternation may start: gates on one feature.

OPT is convex in the models for fixed q and in q for fixed models, not in all of them
(Adapt, NIPS 2017, section 3). From models that know nothing the alternation first buys what
tells the classes apart on all rows, as an L1 penalty would; a feature that tells apart only
what is kept, and tells what to keep, has no slope there. The paper's Synthetic-2 is of that
kind. So the alternation is also started from free offload probabilities that send away the
rows above, or below, a quantile of one feature.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gatewise.models.losses import one_hot
from gatewise_training.adapt.base import Sample

__all__ = ["Start", "best_starts"]

Array = NDArray[np.float64]

SURE = 0.98
"""Offload probability of a row that a start sends away; of the others, one minus it."""

SCREENED = 2000
"""Rows at most that features are compared on."""


@dataclass(frozen=True)
class Start:
    """Send away the rows at one end of one feature.

    Attributes
    ----------
    feature : int
    upper : bool
        Whether the upper end is sent away, or the lower one.
    """

    feature: int
    upper: bool

    def offload(self, column: NDArray[np.floating], weight: Array, p_full: float) -> Array:
        """Offload probabilities of rows: near 1 for a share `p_full` of their weight.

        Parameters
        ----------
        column : ndarray of float, shape (n,)
            The feature.
        weight : ndarray of float64, shape (n,)
        p_full : float

        Returns
        -------
        ndarray of float64, shape (n,)
        """
        order = np.argsort(-column if self.upper else column, kind="stable")
        behind = np.cumsum(weight[order]) - 0.5 * weight[order]
        q = np.empty(len(column))
        q[order] = np.where(behind <= p_full * weight.sum(), SURE, 1.0 - SURE)
        return q


def best_starts(sample: Sample, p_full: float, how_many: int) -> list[Start]:
    """Find the features on which a gate and a low-cost model alone do best for their price.

    They are judged by least squares: the squares that remain of the classes' indicators,
    fitted on the rows that are kept by the feature that keeps them, against those that remain
    when as many rows are kept at random and nothing is known of them.

    Parameters
    ----------
    sample : Sample
    p_full : float
    how_many : int
        At most; features without a price are no starts, since all models have them.

    Returns
    -------
    list of Start
        Of different features, the best first; their number depends on the prices alone.
    """
    price = sample.costs.alone
    priced = np.flatnonzero(price > 0)
    if not how_many or not len(priced):
        return []
    rows = np.random.default_rng(0).permutation(len(sample.x))[:SCREENED]
    x, weight = sample.x[rows].astype(np.float64), sample.weight[rows]
    target = one_hot(sample.y[rows], sample.n_classes)
    nothing = (1.0 - p_full) * _squares(np.zeros(len(rows)), target, weight)
    found = []
    for k in priced:
        column = x[:, k] - x[:, k].mean()
        left = []
        for upper in (True, False):
            kept = Start(int(k), upper).offload(column, weight, p_full) < 0.5
            left.append(_squares(column[kept], target[kept], weight[kept]))
        gain = max(nothing - min(left), 0.0) / price[k]
        found.append((gain, Start(int(k), left[0] <= left[1])))
    found.sort(key=lambda entry: -entry[0])
    return [start for _, start in found[:how_many]]


def _squares(column: Array, target: Array, weight: Array) -> float:
    """Weighted sum of squares that a line through one feature leaves of the targets."""
    total = weight.sum()
    if total <= 0.0:
        return 0.0
    z = column - weight @ column / total
    t = target - weight @ target / total
    spread, shared = float(weight @ z**2), (weight * z) @ t
    left = float(weight @ (t**2).sum(axis=1))
    return left - float(shared @ shared) / spread if spread > 1e-12 else left
