"""Estimate true figures from few labels and many answers of the high-cost model.

Each figure is a ratio theta = E[a] / E[d]: for accuracy a = 1(answer right) and d = 1, for the
recall of class k a = 1(y = k, answer = k) and d = 1(y = k). Without a label, the high-cost model's
probabilities predict both: a' and d'. With the weights w of the instances in the archive and
W = w / c of those labelled, chosen with probability c, the estimating equation is

    sum_archive  w lambda (a' - theta d')
      + sum_labelled  W [(a - theta d) - lambda (a' - theta d')]  =  0,

whose mean is zero at the true theta for every fixed lambda and whatever the model is worth: this is
prediction-powered inference (Angelopoulos et al., Science 2023) with the weights of Horvitz and
Thompson, chances that follow the model's doubt (Zrnic and Candes, "Active statistical inference",
2024) and the power tuning of lambda (Angelopoulos, Duchi and Zrnic, "PPI++", 2023). With lambda = 0
it uses labels alone.

The interval is an asymptotic confidence sequence (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas,
"Time-uniform central limit theory and asymptotic confidence sequences", 2024, theorem 2.2): it
holds at all looks together, so one may look after each label and stop at will.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Number of labels at which the interval is narrowest in comparison with one for a single look.
_BEST_LABELS: Final = 100
#: Square of the residual that is assumed of one label more than there are, of the largest weight:
#: without it, labels that all agree with the predictions would leave no width at all.
_UNSEEN: Final = 0.25
_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True)
class TrueFigure:
    """Estimate of a figure, its interval, and how much the high-cost model's answers count.

    `low` and `high` are NaN without labels, `tuning` is lambda, and `n_labels` the labels with d
    above 0.
    """

    value: float
    low: float
    high: float
    tuning: float
    n_labels: int


@dataclass(frozen=True, eq=False)
class Terms:
    """Numerators `a` and denominators `d` of a figure, and `weights`, each of shape (n,)."""

    a: Floats
    d: Floats
    weights: Floats

    def residuals(self, theta: float) -> Floats:
        """``a - theta d``, shape (n,)."""
        return self.a - theta * self.d


@dataclass(frozen=True, eq=False)
class FigureData:
    """Data of one figure.

    `archive`: predictions of all n instances. `labelled`: truth of the m labelled ones, with
    weights w / c. `predicted`: predictions of these, with weights w.
    """

    archive: Terms
    labelled: Terms
    predicted: Terms

    def solved(self, tuning: float) -> tuple[float, float]:
        """Solve the estimating equation: the ratio theta, and its denominator."""
        sums = []
        for name in ("a", "d"):
            predictions = getattr(self.archive, name) @ self.archive.weights
            corrections = getattr(self.labelled, name) - tuning * getattr(self.predicted, name)
            sums.append(float(tuning * predictions + corrections @ self.labelled.weights))
        return (sums[0] / sums[1] if sums[1] > 0 else math.nan), sums[1]

    def moments(self, theta: float) -> tuple[float, float, float]:
        """Coefficients of the variance in lambda: ``v0 - 2 v1 lambda + v2 lambda^2``."""
        r = self.labelled.residuals(theta)
        r_predicted = self.predicted.residuals(theta)
        W = self.labelled.weights
        w = self.predicted.weights
        archive = self.archive.weights * self.archive.residuals(theta)
        # An instance with a label is in both sums: hence W (W - w), and w W once more.
        v0 = float((W * r) @ (W * r))
        v1 = float((W * (W - w) * r) @ r_predicted)
        v2 = float(archive @ archive + (W * (W - 2 * w) * r_predicted) @ r_predicted)
        return v0, v1, v2

    def tuned(self) -> float:
        """Lambda, from 0 to 1, with the smallest estimated variance."""
        tuning = 0.5
        for _ in range(_ROUNDS):
            theta, _ = self.solved(tuning)
            if math.isnan(theta):
                return 1.0
            _, v1, v2 = self.moments(theta)
            tuning = min(max(v1 / v2, 0.0), 1.0) if v2 > 0 else 1.0
        return tuning


def estimated(
    data: FigureData,
    *,
    level: float = 0.05,
    tuning: float | None = None,
    span: float = 1.0,
    one_look: bool = False,
) -> TrueFigure:
    """Estimate a figure; its interval fails with probability `level`, over all looks together.

    `tuning` fixes lambda; by default it is chosen. `span` is the largest residual: 1 for shares, 2
    for differences of them. With `one_look` the interval is a normal one, for rows that are looked
    at once.
    """
    n_labels = int(np.count_nonzero(data.labelled.d > 0))
    if not n_labels:
        value, _ = data.solved(1.0)
        return TrueFigure(value, math.nan, math.nan, 1.0, 0)
    chosen = data.tuned() if tuning is None else tuning
    theta, denominator = data.solved(chosen)
    if math.isnan(theta):
        return TrueFigure(theta, math.nan, math.nan, chosen, n_labels)
    v0, v1, v2 = data.moments(theta)
    unseen = _UNSEEN * span**2 * float(data.labelled.weights.max()) ** 2
    variance = max(v0 - 2 * v1 * chosen + v2 * chosen**2, 0.0) + unseen
    n_errors = NormalDist().inv_cdf(1 - level / 2) if one_look else boundary(n_labels, level)
    half_width = n_errors * math.sqrt(variance) / denominator
    return TrueFigure(theta, theta - half_width, theta + half_width, chosen, n_labels)


def boundary(n: int, level: float) -> float:
    """Standard errors of the confidence sequence after n labels.

    >>> [round(boundary(n, 0.05), 2) for n in (20, 100, 1000)]
    [3.32, 3.04, 3.26]
    """
    # rho^2 for which the boundary is smallest at _BEST_LABELS (their equation 24)
    log_level = -2 * math.log(level)
    rho2 = (log_level + math.log(log_level) + 1) / _BEST_LABELS
    x = n * rho2 + 1
    return math.sqrt(2 * x / (n * rho2) * math.log(math.sqrt(x) / level))
