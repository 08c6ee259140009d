"""Confidence intervals of a run's figures, by batch means.

The run is cut into 2,000 slices of time, which are dealt to :data:`N_BATCHES` batches in turn. Each
batch therefore covers the whole day and every outage. Rows are also a sample, so a second set of
batches is dealt by row. A figure gets the wider of the two intervals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise_sim.fleet.results import Answers, BoolArray, FloatArray, IntArray
from gatewise_sim.report.policy_result import Estimate

#: Number of batches: enough for the estimate of a variance, and few enough that each one has many
#: instances.
N_BATCHES: Final = 20
#: Number of slices of the run. There are many for each batch, so each batch covers the whole day.
_N_SLICES: Final = 2000
#: 97.5 % quantiles of Student's t with 19 degrees of freedom, and of the normal distribution. In
#: short runs, fewer batches may have instances; their interval is then slightly too narrow.
_T_QUANTILE: Final = 2.093
_Z_QUANTILE: Final = 1.960


@dataclass(frozen=True, eq=False)
class Batches:
    """Batch of each instance, dealt by time, and also by row if there are enough rows.

    Each array of `batch_indices` has shape (n,).
    """

    batch_indices: tuple[IntArray, ...]

    @classmethod
    def deal(cls, answers: Answers, seconds: float, n_rows: int) -> Batches:
        """Deal slices of the run, and rows of the table, to batches in turn."""
        # A run of length 0 has its instances in one slice.
        slice_indices = (answers.time * (_N_SLICES / max(seconds, 1e-9))).astype(np.int64)
        batch_indices = [slice_indices % N_BATCHES]
        if n_rows >= N_BATCHES:
            # In random order, because the rows of a table may be sorted.
            batch_of_row = np.random.default_rng(0).permutation(n_rows) % N_BATCHES
            batch_indices.append(batch_of_row[answers.row])
        return cls(tuple(batch_indices))

    def mean(
        self, values: NDArray[Any], weights: NDArray[Any] | None = None, upper_limit: float = np.inf
    ) -> Estimate | None:
        """Estimate the mean of `values` per instance or unit of `weights`, or None without any."""
        total_weight = float(len(values)) if weights is None else float(weights.sum())
        if not total_weight:
            return None
        mean = float(values.sum(dtype=np.float64)) / total_weight
        half_widths = [0.0]
        for batch_of_instance in self.batch_indices:
            sums = np.bincount(batch_of_instance, values, minlength=N_BATCHES)
            batch_weights = np.bincount(batch_of_instance, weights, minlength=N_BATCHES)
            is_used = batch_weights > 0
            used_weights = batch_weights[is_used].astype(np.float64)
            half_widths.append(
                _compute_half_width(sums[is_used] / used_weights, mean, used_weights)
            )
        half_width = max(half_widths)
        # A mean of values above 0 is not negative, and one below `upper_limit` does not exceed it.
        low = max(mean - half_width, min(0.0, mean))
        return Estimate(value=mean, low=low, high=max(mean, min(mean + half_width, upper_limit)))

    def quantile(self, values: FloatArray, probability: float, is_selected: BoolArray) -> Estimate:
        """Estimate a quantile of the values that `is_selected` selects."""
        selected_values = values[is_selected]
        quantile = float(np.quantile(selected_values, probability))
        half_widths = [0.0]
        for batch_of_instance in self.batch_indices:
            selected_batches = batch_of_instance[is_selected]
            order = np.argsort(selected_batches, kind="stable")
            batch_ends = np.cumsum(np.bincount(selected_batches, minlength=N_BATCHES))[:-1]
            batches = [
                batch for batch in np.split(selected_values[order], batch_ends) if len(batch)
            ]
            quantiles = np.array([np.quantile(batch, probability) for batch in batches])
            weights = np.array([len(batch) for batch in batches], np.float64)
            half_widths.append(_compute_half_width(quantiles, quantile, weights))
        half_width = max(half_widths)
        # with few values the batches differ much, but no quantile is below the smallest value
        low = max(float(selected_values.min()), quantile - half_width)
        return Estimate(value=quantile, low=low, high=quantile + half_width)


def _compute_half_width(batch_estimates: FloatArray, estimate: float, weights: FloatArray) -> float:
    """Compute half the width of the interval of a figure v from the figures v_b of N batches.

    Let w_b be the weight of a batch, divided by the mean weight. Then half the width is::

        t * sqrt(sum(w_b^2 * (v_b - v)^2) / (N * (N - 1)))
    """
    n_batches = len(batch_estimates)
    if n_batches < 2:
        return 0.0
    relative_weights = weights / weights.mean()
    squares = relative_weights**2 * (batch_estimates - estimate) ** 2
    return _T_QUANTILE * float(np.sqrt(squares.sum() / (n_batches * (n_batches - 1))))


def widen_share_interval(estimate: Estimate, n_cases: float) -> Estimate:
    """Widen the interval of a share to Wilson's interval (1927) for `n_cases` independent cases.

    With the share p, the number of cases n, and the quantile z::

        (p + z^2 / (2 n) -+ z * sqrt(p (1 - p) / n + z^2 / (4 n^2))) / (1 + z^2 / n)

    >>> widen_share_interval(Estimate(value=1.0, low=1.0, high=1.0), 100).low < 0.97
    True
    """
    share = estimate.value
    assert estimate.low is not None
    assert estimate.high is not None
    centre = (share + _Z_QUANTILE**2 / (2 * n_cases)) / (1 + _Z_QUANTILE**2 / n_cases)
    variance = share * (1 - share) / n_cases + _Z_QUANTILE**2 / (4 * n_cases**2)
    half_width = _Z_QUANTILE * variance**0.5 / (1 + _Z_QUANTILE**2 / n_cases)
    low = max(0.0, min(estimate.low, share, centre - half_width))
    high = min(1.0, max(estimate.high, share, centre + half_width))
    return Estimate(value=share, low=low, high=high)
