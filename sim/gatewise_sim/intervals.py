"""Confidence intervals of a run's figures, by batch means.

The run is cut into 2,000 slices of time that are dealt to :data:`N_BATCHES` batches in turn, so
that each batch sees all of the day and of every outage. Rows are a sample as well: the same is done
with the table's rows dealt to batches, and the longer interval counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise_sim.fleet.results import Answers, BoolArray, FloatArray, IntArray
from gatewise_sim.report.document import Figure

N_BATCHES: Final = 20
_SLICES: Final = 2000
#: Quantiles of 0.975: Student's with 19 degrees of freedom, and the normal distribution's.
_T: Final = 2.093
_Z: Final = 1.960


@dataclass(frozen=True, eq=False)
class Batches:
    """Batches of instances by time, and by row if there are enough rows; each shape (n,)."""

    groups: tuple[IntArray, ...]

    @classmethod
    def deal(cls, answers: Answers, seconds: float, n_rows: int) -> Batches:
        """Deal slices of the run, and rows of the table, to batches in turn."""
        slices = (answers.time * (_SLICES / max(seconds, 1e-9))).astype(np.int64)
        groups = [slices % N_BATCHES]
        if n_rows >= N_BATCHES:
            # By chance: rows of a table may stand in an order.
            dealt = np.random.default_rng(0).permutation(n_rows) % N_BATCHES
            groups.append(dealt[answers.row])
        return cls(tuple(groups))

    def mean(
        self, values: NDArray[Any], sizes: NDArray[Any] | None = None, highest: float = np.inf
    ) -> Figure | None:
        """Mean of `values` over all instances, or per unit of `sizes`; None without any."""
        size = float(len(values)) if sizes is None else float(sizes.sum())
        if not size:
            return None
        mean = float(values.sum(dtype=np.float64)) / size
        halves = [0.0]
        for group in self.groups:
            sums = np.bincount(group, values, minlength=N_BATCHES)
            weights = np.bincount(group, sizes, minlength=N_BATCHES).astype(np.float64)
            used = weights > 0
            halves.append(_half_width(sums[used] / weights[used], mean, weights[used]))
        half = max(halves)
        low = max(mean - half, min(0.0, mean))
        return Figure(value=mean, low=low, high=max(mean, min(mean + half, highest)))

    def quantile(self, values: FloatArray, share: float, mask: BoolArray) -> Figure:
        """Quantile of the values under a `mask`."""
        masked = values[mask]
        quantile = float(np.quantile(masked, share))
        halves = [0.0]
        for group in self.groups:
            order = np.argsort(group[mask], kind="stable")
            cuts = np.cumsum(np.bincount(group[mask], minlength=N_BATCHES))[:-1]
            batches = [batch for batch in np.split(masked[order], cuts) if len(batch)]
            quantiles = np.array([np.quantile(batch, share) for batch in batches])
            weights = np.array([len(batch) for batch in batches], np.float64)
            halves.append(_half_width(quantiles, quantile, weights))
        half = max(halves)
        return Figure(value=quantile, low=max(0.0, quantile - half), high=quantile + half)


def _half_width(batch_figures: FloatArray, figure: float, weights: FloatArray) -> float:
    """Half an interval of a figure v of the run, from the figures v_b of its N batches.

    With w_b the instances of a batch relative to their mean, the variance of v is estimated by the
    differences::

        t * sqrt(sum(w_b^2 * (v_b - v)^2) / (N * (N - 1)))
    """
    n = len(batch_figures)
    if n < 2:
        return 0.0
    relative = weights / weights.mean()
    squares = relative**2 * (batch_figures - figure) ** 2
    return _T * float(np.sqrt(squares.sum() / (n * (n - 1))))


def share_interval(figure: Figure, n: float) -> Figure:
    """Widen the interval of a share to Wilson's of a share among `n` independent cases (1927).

    >>> share_interval(Figure(value=1.0, low=1.0, high=1.0), 100).low < 0.97
    True
    """
    share = figure.value
    assert figure.low is not None
    assert figure.high is not None
    centre = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * (share * (1 - share) / n + _Z**2 / (4 * n**2)) ** 0.5 / (1 + _Z**2 / n)
    low = max(0.0, min(figure.low, share, centre - half))
    high = min(1.0, max(figure.high, share, centre + half))
    return Figure(value=share, low=low, high=high)
