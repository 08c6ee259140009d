"""Distribution of latencies in little memory: a histogram with 1,000 bins a decade.

A bin holds how many values it has and their sum, and stands for their mean: exact where a bin has
one value, or the same many times, and within 0.24 % anywhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise_sim.fleet.estimate.intervals import Measurement, half_width

BINS_A_DECADE: Final = 1000
LEAST_MS: Final = 1e-3
"""All below falls into one bin."""


@dataclass(frozen=True, slots=True, eq=False)
class Sketch:
    """A histogram of latencies; only bins that have values are kept, arrays of shape (k,).

    Bin b of the rising `bins` holds values in ``[10 ** (b / 1000), 10 ** ((b + 1) / 1000))`` ms;
    `counts` are the values in each and `sums` their sums in ms, both weighted.

    >>> sketch = Sketch.from_values([1.0, 2.0, 2.0, 40.0])
    >>> sketch.total, sketch.quantile(0.5), sketch.quantile(1.0)
    (4.0, 2.0, 40.0)
    """

    bins: NDArray[np.int64]
    counts: NDArray[np.float64]
    sums: NDArray[np.float64]

    @classmethod
    def from_values(cls, values: ArrayLike, counts: ArrayLike | None = None) -> Self:
        """Count values (ms), shape (n,), each once or `counts` times."""
        value = np.asarray(values, np.float64)
        times = np.ones(len(value)) if counts is None else np.asarray(counts, np.float64)
        place = np.floor(BINS_A_DECADE * np.log10(np.maximum(value, LEAST_MS))).astype(np.int64)
        return cls._gathered(place, times, times * value)

    @classmethod
    def merge(cls, sketches: Sequence[Sketch], weights: Sequence[float] | None = None) -> Self:
        """Put sketches together, the values of each counted `weights` times."""
        factors = [1.0] * len(sketches) if weights is None else weights
        joined = [
            np.concatenate([f * a for f, a in zip(factors, column, strict=True)] or [np.empty(0)])
            for column in ([s.counts for s in sketches], [s.sums for s in sketches])
        ]
        bins = np.concatenate([s.bins for s in sketches] or [np.empty(0, np.int64)])
        return cls._gathered(bins, *joined)

    @classmethod
    def _gathered(
        cls, place: NDArray[np.int64], counts: NDArray[np.float64], sums: NDArray[np.float64]
    ) -> Self:
        bins, at = np.unique(place, return_inverse=True)
        totals = [
            np.bincount(at, weights=column, minlength=len(bins)).astype(np.float64)
            for column in (counts, sums)
        ]
        return cls(bins, *totals)

    @property
    def total(self) -> float:
        """Number of values, weighted."""
        return float(self.counts.sum())

    def place(self, share: float) -> int:
        """Position in `bins` of the quantile at a share, clipped to [0, 1]; -1 without values."""
        if not len(self.bins):
            return -1
        below = np.cumsum(self.counts)
        # The last sum is the total; a share of it must not lie above it by rounding.
        at = np.searchsorted(below, min(max(share, 0.0), 1.0) * below[-1] * (1 - 1e-12))
        return int(min(at, len(self.bins) - 1))

    def value(self, place: int) -> float:
        """Mean of the bin at a position, in ms."""
        return float(self.sums[place] / self.counts[place])

    def quantile(self, share: float) -> float:
        """Latency in ms that a share of the values lies at or below; NaN without values."""
        place = self.place(share)
        return float("nan") if place < 0 else self.value(place)

    def up_to(self, bin_: int) -> float:
        """Number of values in a bin or below it."""
        return float(self.counts[: np.searchsorted(self.bins, bin_, side="right")].sum())

    def coarse(self, bins_a_decade: int, first: int, n: int) -> list[float]:
        """Count in `n` wider bins from ``10 ** (first / bins_a_decade)`` ms.

        What lies below the first counts there, what lies above the last in the last.
        """
        wide = self.bins // (BINS_A_DECADE // bins_a_decade) - first
        found = np.bincount(np.clip(wide, 0, n - 1), weights=self.counts, minlength=n)
        return [float(count) for count in found]


def quantile(
    share: float, parts: Sequence[Sketch], weights: Sequence[float], segments: NDArray[np.int64]
) -> Measurement:
    """Latency (ms) that a share of the values of all parts, weighted, lies at or below.

    Its interval is Woodruff's: that of the share below, read off the distribution (Woodruff 1952).
    """
    whole = Sketch.merge(parts, weights)
    place = whole.place(share)
    sizes = np.array([w * p.total for w, p in zip(weights, parts, strict=True)])
    bin_ = int(whole.bins[place])
    under = np.array([w * p.up_to(bin_) for w, p in zip(weights, parts, strict=True)])
    # Ties at the quantile, as among instances that never left the device, shift the share.
    centred = under - under.sum() / sizes.sum() * sizes
    half = half_width(centred, segments) / float(sizes.sum())
    return Measurement(
        whole.value(place), whole.quantile(share - half), whole.quantile(share + half)
    )
