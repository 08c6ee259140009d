"""Confidence intervals of a run's figures, by batch means.

The run is cut into 2,000 slices of time, which are dealt to :data:`N_BATCHES` batches in turn, so
that each batch covers the whole day and every outage. The rows are a sample as well, so they are
also dealt to batches. A figure gets the wider of the two intervals.
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
#: 97.5 % quantiles of Student's t with 19 degrees of freedom, and of the normal distribution.
_T_QUANTILE: Final = 2.093
_Z_QUANTILE: Final = 1.960


@dataclass(frozen=True, eq=False)
class Batches:
    """Batch of each instance, dealt by time, and also by row if there are enough rows.

    Each array of `groups` has shape (n,).
    """

    groups: tuple[IntArray, ...]

    @classmethod
    def deal(cls, answers: Answers, seconds: float, n_rows: int) -> Batches:
        """Deal slices of the run, and rows of the table, to batches in turn."""
        slices = (answers.time * (_SLICES / max(seconds, 1e-9))).astype(np.int64)
        groups = [slices % N_BATCHES]
        if n_rows >= N_BATCHES:
            # In random order, because the rows of a table may be sorted.
            batch_of_row = np.random.default_rng(0).permutation(n_rows) % N_BATCHES
            groups.append(batch_of_row[answers.row])
        return cls(tuple(groups))

    def mean(
        self, values: NDArray[Any], sizes: NDArray[Any] | None = None, highest: float = np.inf
    ) -> Figure | None:
        """Estimate the mean of `values` per instance, or per unit of `sizes`; None without any."""
        size = float(len(values)) if sizes is None else float(sizes.sum())
        if not size:
            return None
        mean = float(values.sum(dtype=np.float64)) / size
        half_widths = [0.0]
        for group in self.groups:
            sums = np.bincount(group, values, minlength=N_BATCHES)
            weights = np.bincount(group, sizes, minlength=N_BATCHES).astype(np.float64)
            used = weights > 0
            half_widths.append(_half_width(sums[used] / weights[used], mean, weights[used]))
        half_width = max(half_widths)
        low = max(mean - half_width, min(0.0, mean))
        return Figure(value=mean, low=low, high=max(mean, min(mean + half_width, highest)))

    def quantile(self, values: FloatArray, share: float, mask: BoolArray) -> Figure:
        """Estimate a quantile of the values that `mask` selects."""
        masked = values[mask]
        quantile = float(np.quantile(masked, share))
        half_widths = [0.0]
        for group in self.groups:
            order = np.argsort(group[mask], kind="stable")
            cuts = np.cumsum(np.bincount(group[mask], minlength=N_BATCHES))[:-1]
            batches = [batch for batch in np.split(masked[order], cuts) if len(batch)]
            quantiles = np.array([np.quantile(batch, share) for batch in batches])
            weights = np.array([len(batch) for batch in batches], np.float64)
            half_widths.append(_half_width(quantiles, quantile, weights))
        half_width = max(half_widths)
        low = max(0.0, quantile - half_width)
        return Figure(value=quantile, low=low, high=quantile + half_width)


def _half_width(batch_figures: FloatArray, figure: float, weights: FloatArray) -> float:
    """Half the width of the interval of a figure v, from the figures v_b of the N batches.

    w_b is the number of instances in a batch, divided by its mean over the batches::

        t * sqrt(sum(w_b^2 * (v_b - v)^2) / (N * (N - 1)))
    """
    n = len(batch_figures)
    if n < 2:
        return 0.0
    relative = weights / weights.mean()
    squares = relative**2 * (batch_figures - figure) ** 2
    return _T_QUANTILE * float(np.sqrt(squares.sum() / (n * (n - 1))))


def share_interval(figure: Figure, n: float) -> Figure:
    """Widen the interval of a share to Wilson's interval (1927) for `n` independent cases.

    >>> share_interval(Figure(value=1.0, low=1.0, high=1.0), 100).low < 0.97
    True
    """
    share = figure.value
    assert figure.low is not None
    assert figure.high is not None
    centre = (share + _Z_QUANTILE**2 / (2 * n)) / (1 + _Z_QUANTILE**2 / n)
    variance = share * (1 - share) / n + _Z_QUANTILE**2 / (4 * n**2)
    half_width = _Z_QUANTILE * variance**0.5 / (1 + _Z_QUANTILE**2 / n)
    low = max(0.0, min(figure.low, share, centre - half_width))
    high = min(1.0, max(figure.high, share, centre + half_width))
    return Figure(value=share, low=low, high=high)
