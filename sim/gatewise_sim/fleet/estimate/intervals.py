"""Figures with their 95 % confidence intervals, and means over parts of a run.

Means are ratio estimates over parts that follow each other through the run; their variance is that
of successive differences, which a slow change over the day does not inflate (Wolter, "Introduction
to Variance Estimation", 2007, section 8.2). Nothing is compared across a change of what is up:
parts of one segment follow each other without one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError

LEVEL: Final = 0.95
_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Measurement:
    """A figure, and its confidence interval where there is one."""

    value: float
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if (
            self.low is not None
            and self.high is not None
            and not (self.low <= self.value <= self.high or self.value != self.value)
        ):
            raise InputError("lies outside of its own interval")


def mean(
    sums: _Floats, sizes: _Floats, segments: NDArray[np.int64], *, most: float = np.inf
) -> Measurement:
    """Ratio of two totals over the parts, arrays of shape (n_parts,); `sizes` are not all 0.

    Its interval lies in what the ratio can be, from 0 to `most`.
    """
    value = float(sums.sum() / sizes.sum())
    half = half_width(sums - value * sizes, segments) / float(sizes.sum())
    low, high = max(value - half, 0.0), min(value + half, most)
    return Measurement(value, min(low, value), max(high, value))  # a share may be 1 and a rounding


def half_width(residuals: _Floats, segments: NDArray[np.int64]) -> float:
    """Half a confidence interval of the residuals' sum.

    The degrees of freedom are Satterthwaite's: a segment whose parts hardly differ adds none.
    Among n parts, n - 1 successive differences are worth ``2 (n - 1)^2 / (3 n - 4)`` of them
    (von Neumann 1941).
    """
    variances, worth = [], []
    for segment in np.unique(segments):
        own = residuals[segments == segment]
        n = len(own)
        if n > 1:
            variances.append(n * float((np.diff(own) ** 2).sum()) / (2 * (n - 1)))
            worth.append(2 * (n - 1) ** 2 / (3 * n - 4))
    total = sum(variances)
    if not total:
        return 0.0
    freedom = total**2 / sum(v**2 / w for v, w in zip(variances, worth, strict=True))
    from scipy.special import stdtrit  # scipy.stats takes a second to load

    return float(stdtrit(freedom, 0.5 + LEVEL / 2)) * float(np.sqrt(total))


def sample_interval(value: float, variance: float, n: float) -> tuple[float, float]:
    """Student's interval of the mean of `n` independent cases, none of them negative."""
    from scipy.special import stdtrit

    half = float(stdtrit(max(n - 1.0, 1.0), 0.5 + LEVEL / 2)) * float(np.sqrt(variance / n))
    return max(0.0, value - half), value + half


def binomial_interval(share: float, n: float) -> tuple[float, float]:
    """Wilson's interval of a share among `n` independent cases (Wilson 1927)."""
    from scipy.special import ndtri

    z2 = float(ndtri(0.5 + LEVEL / 2)) ** 2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = (z2 * (share * (1 - share) / n + z2 / (4 * n**2))) ** 0.5 / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)
