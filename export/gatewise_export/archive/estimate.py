"""Estimate true figures from few labels and many answers of the high-cost model.

Each figure is a ratio theta = E[a] / E[d]. For the accuracy, a = 1(answer right) and d = 1. For the
recall of class k, a = 1(y = k, answer = k) and d = 1(y = k). Without a label, the high-cost model's
probabilities give predictions a' and d' of both. An instance in the archive has the weight w. If it
was chosen for labelling with probability c, its label has the weight W = w / c. The estimating
equation is

    sum_archive  w lambda (a' - theta d')
      + sum_labelled  W [(a - theta d) - lambda (a' - theta d')]  =  0.

At the true theta, the expected left side is zero for every fixed lambda and for any model. This is
prediction-powered inference (Angelopoulos et al., Science 2023) with Horvitz-Thompson weights.
The probabilities c grow with the model's doubt (Zrnic and Candes, "Active statistical inference",
2024), and lambda is tuned as in Angelopoulos, Duchi and Zrnic, "PPI++", 2023. With lambda = 0 the
estimate uses labels only.

The interval is an asymptotic confidence sequence (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas,
"Time-uniform central limit theory and asymptotic confidence sequences", 2024, theorem 2.2): it
holds at all times together, so that a user may read it after each label and stop at any time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Number of labels at which the sequence is tightest relative to a fixed-sample interval.
_BEST_LABELS: Final = 100
#: Squared residual of an imaginary additional label with the largest weight. Without this label,
#: the interval would have no width if all labels agree with the predictions. With a smaller
#: residual, intervals from 25 labels missed the truth too often if the model was right for 99 %.
_UNSEEN_RESIDUAL: Final = 0.04
_TUNING_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True)
class TrueFigure:
    """Estimate of a figure with its interval from `low` to `high`, which are NaN without labels.

    `tuning` is lambda, the weight of the high-cost model's predictions. `n_labels` counts the
    labels with d above 0.
    """

    value: float
    low: float
    high: float
    tuning: float
    n_labels: int


@dataclass(frozen=True, eq=False)
class Terms:
    """Numerators a and denominators d of a figure, and their weights, each of shape (n,)."""

    numerators: Floats
    denominators: Floats
    weights: Floats

    def residuals(self, theta: float) -> Floats:
        """``a - theta d``, shape (n,)."""
        return self.numerators - theta * self.denominators


@dataclass(frozen=True, eq=False)
class FigureData:
    """Data of one figure: predictions for the archive, and labels to correct them.

    `archive_predictions` has the predicted terms of all n instances, with weights w. `label_terms`
    has the true terms of the m labelled instances, with weights w / c. `label_predictions` has
    their predicted terms, with weights w.
    """

    archive_predictions: Terms
    label_terms: Terms
    label_predictions: Terms

    def solve(self, tuning: float) -> tuple[float, float]:
        """Solve the estimating equation; return the ratio theta and its denominator."""
        numerator = self._weighted_sum("numerators", tuning)
        denominator = self._weighted_sum("denominators", tuning)
        return (numerator / denominator if denominator > 0 else math.nan), denominator

    def _weighted_sum(self, name: str, tuning: float) -> float:
        """Sum the predictions of a term over the archive, and correct it by the labels."""
        predicted_sum = getattr(self.archive_predictions, name) @ self.archive_predictions.weights
        label_predictions = getattr(self.label_predictions, name)
        corrections = getattr(self.label_terms, name) - tuning * label_predictions
        return float(tuning * predicted_sum + corrections @ self.label_terms.weights)

    def moments(self, theta: float) -> tuple[float, float, float]:
        """Coefficients v0, v1 and v2 of the variance ``v0 - 2 v1 lambda + v2 lambda^2``."""
        r = self.label_terms.residuals(theta)
        r_predicted = self.label_predictions.residuals(theta)
        W = self.label_terms.weights
        w = self.label_predictions.weights
        archive = self.archive_predictions
        r_archive = archive.weights * archive.residuals(theta)
        # a labelled instance is in both sums, which gives W (W - w) in v1 and W (W - 2 w) in v2
        v0 = float((W * r) @ (W * r))
        v1 = float((W * (W - w) * r) @ r_predicted)
        v2 = float(r_archive @ r_archive + (W * (W - 2 * w) * r_predicted) @ r_predicted)
        return v0, v1, v2

    def best_tuning(self) -> float:
        """The lambda from 0 to 1 with the smallest estimated variance."""
        tuning = 0.5
        for _ in range(_TUNING_ROUNDS):
            theta, _ = self.solve(tuning)
            if math.isnan(theta):
                return 1.0
            _, v1, v2 = self.moments(theta)
            tuning = min(max(v1 / v2, 0.0), 1.0) if v2 > 0 else 1.0
        return tuning


def estimate_figure(
    data: FigureData,
    *,
    level: float = 0.05,
    tuning: float | None = None,
    largest_residual: float = 1.0,
    is_read_once: bool = False,
) -> TrueFigure:
    """Estimate a figure and its interval, which misses the truth with probability `level`.

    The interval may be read after each label, because `level` covers all times together; with
    `is_read_once` it is a narrower normal interval, which may be read only once. `tuning` fixes
    lambda, which by default minimises the variance. `largest_residual` is 1 for shares, and 2 for
    differences of shares.
    """
    n_labels = int(np.count_nonzero(data.label_terms.denominators > 0))
    if not n_labels:
        value, _ = data.solve(1.0)
        return TrueFigure(value, math.nan, math.nan, 1.0, 0)
    if tuning is None:
        tuning = data.best_tuning()
    theta, denominator = data.solve(tuning)
    if math.isnan(theta):
        return TrueFigure(theta, math.nan, math.nan, tuning, n_labels)
    v0, v1, v2 = data.moments(theta)
    unseen_variance = (
        _UNSEEN_RESIDUAL * largest_residual**2 * float(data.label_terms.weights.max()) ** 2
    )
    variance = max(v0 - 2 * v1 * tuning + v2 * tuning**2, 0.0) + unseen_variance
    n_standard_errors = (
        NormalDist().inv_cdf(1 - level / 2) if is_read_once else boundary(n_labels, level)
    )
    half_width = n_standard_errors * math.sqrt(variance) / denominator
    return TrueFigure(theta, theta - half_width, theta + half_width, tuning, n_labels)


def boundary(n_labels: int, level: float) -> float:
    """Half-width of the confidence sequence after `n_labels`, in standard errors.

    >>> [round(boundary(n_labels, 0.05), 2) for n_labels in (20, 100, 1000)]
    [3.32, 3.04, 3.26]
    """
    # rho^2 for which the boundary is smallest at _BEST_LABELS labels (equation 24 of the paper)
    log_level = -2 * math.log(level)
    rho2 = (log_level + math.log(log_level) + 1) / _BEST_LABELS
    x = n_labels * rho2 + 1
    return math.sqrt(2 * x / (n_labels * rho2) * math.log(math.sqrt(x) / level))
