"""Anytime-valid comparison of two groups of devices, for example by their shares of errors.

The excess of a release is its share less the share of the other versions. The standard error of a
group's share is estimated from the spread between its devices. Let z be the number of standard
errors by which the excess lies above a limit. The test mixes normal alternatives with the scale
:data:`EFFECT`. With the information V = 1 / error^2 and w = V EFFECT^2, the evidence against the
hypothesis "the excess is at most the limit" is

    E = 2 (1 + w)^(-1/2) exp(z^2 w / (2 (1 + w))) Phi(z sqrt(w / (1 + w))).

If the hypothesis is true, E is a supermartingale with a mean of at most 1. By Ville's inequality it
exceeds 1 / alpha with probability at most alpha, for any number of comparisons (Robbins 1970;
Howard, Ramdas, McAuliffe and Sekhon 2021, section 3). With few devices the standard error is
uncertain. The t value is therefore converted to the z with the same tail (Wallace 1959).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

#: Number of cases on one device, for example errors, and number of its answers.
Counts = tuple[float, float]

#: Smallest number of devices in each group of a comparison.
MIN_DEVICES: Final = 3
#: Excess above the limit that a comparison should detect.
EFFECT: Final = 0.02
#: Largest probability of withdrawing a release that keeps the limit, over all metrics and reports.
ALPHA: Final = 0.05
#: Ratio of EFFECT to the standard error at which EFFECT is detected with probability 0.95. Here
#: w = 24, and E exceeds 60, the threshold for one of three metrics, at z = 3.25. With probability
#: 0.95, z is at least its mean less 1.65.
EFFECT_IN_STANDARD_ERRORS: Final = 4.9
#: Largest weight of a device: its answers count up to this multiple of its group's median.
_MAX_WEIGHT: Final = 4.0


class GroupShare(NamedTuple):
    """Share of cases among a group's answers, its standard error, and the number of devices."""

    share: float
    standard_error: float
    n_devices: int

    @classmethod
    def from_counts(cls, device_counts: Sequence[Counts]) -> GroupShare:
        """Estimate a share; share and standard error are NaN if the group has too few devices."""
        n_devices = len(device_counts)
        if n_devices < MIN_DEVICES:
            return cls(math.nan, math.nan, n_devices)
        limited_counts = _limit_weights(device_counts)
        # Ratio estimator: share = sum c / sum n, with the variance
        # m / (m - 1) * sum (c - share * n)^2 / (sum n)^2 for m devices.
        n_group_answers = sum(n_answers for _, n_answers in limited_counts)
        share = sum(n_cases for n_cases, _ in limited_counts) / n_group_answers
        squared_deviations = sum(
            (n_cases - share * n_answers) ** 2 for n_cases, n_answers in limited_counts
        )
        # if all devices are alike, use the effect of one more case as the standard error
        standard_error = (
            math.sqrt(max(squared_deviations * n_devices / (n_devices - 1), 1.0)) / n_group_answers
        )
        return cls(share, standard_error, n_devices)


def _limit_weights(device_counts: Sequence[Counts]) -> list[Counts]:
    """Limit the answers of each device to a multiple of the median, and its cases in proportion."""
    sorted_answers = sorted(n_answers for _, n_answers in device_counts)
    max_answers = _MAX_WEIGHT * sorted_answers[len(sorted_answers) // 2]
    return [
        (n_cases * min(1.0, max_answers / n_answers), min(n_answers, max_answers))
        for n_cases, n_answers in device_counts
    ]


class Comparison(NamedTuple):
    """Shares of two groups of devices: with the release, and with other versions."""

    release: GroupShare
    other_versions: GroupShare

    @property
    def excess(self) -> float:
        """Difference of the two shares; NaN if a share is unknown."""
        return self.release.share - self.other_versions.share

    @property
    def standard_error(self) -> float:
        """Standard error of the excess."""
        return math.hypot(self.release.standard_error, self.other_versions.standard_error)

    def evidence(self, limit: float) -> float:
        """Compute the evidence E that the excess is above `limit`.

        It is 0 if the estimated excess is at most `limit`, or unknown.
        """
        if not self.excess > limit:
            return 0.0
        z = self._compute_z_value(self.excess - limit)
        w = (EFFECT / self.standard_error) ** 2
        exponent = z * z * w / (2.0 * (1.0 + w))
        # 2 Phi(a) = 1 + erf(a / sqrt(2)); the exponent is limited so that exp cannot overflow
        twice_phi = 1.0 + math.erf(z * math.sqrt(w / (1.0 + w)) / math.sqrt(2.0))
        return twice_phi * math.exp(min(exponent, 500.0)) / math.sqrt(1.0 + w)

    @property
    def information_fraction(self) -> float:
        """Information as a share of the information that detects EFFECT with probability 0.95."""
        return (self._compute_z_value(EFFECT) / EFFECT_IN_STANDARD_ERRORS) ** 2

    def _compute_z_value(self, excess: float) -> float:
        """Compute the normal z value of `excess`; 0 if the error is unknown."""
        if math.isnan(self.standard_error):
            return 0.0
        t = excess / self.standard_error
        # Welch's degrees of freedom
        welch_terms = [
            (group.standard_error / self.standard_error) ** 4 / (group.n_devices - 1)
            for group in self
        ]
        degrees_of_freedom = 1.0 / sum(welch_terms)
        # Wallace's approximation of the z with the same tail as t
        scale = (8.0 * degrees_of_freedom + 1.0) / (8.0 * degrees_of_freedom + 3.0)
        return scale * math.sqrt(degrees_of_freedom * math.log1p(t * t / degrees_of_freedom))


def answers_to_detect(device_counts: Sequence[Counts]) -> float:
    """Estimate how many answers of a new release are needed to detect EFFECT.

    `device_counts` are the counts of the old release. The result is NaN if these are too few
    devices.
    """
    standard_error = GroupShare.from_counts(device_counts).standard_error
    if math.isnan(standard_error):
        return math.nan
    # error^2 = variance / n for n answers, of which the error counts the limited ones
    n_counted_answers = sum(n_answers for _, n_answers in _limit_weights(device_counts))
    variance = standard_error * standard_error * n_counted_answers
    return variance * (EFFECT_IN_STANDARD_ERRORS / EFFECT) ** 2
