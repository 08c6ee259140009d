"""Anytime-valid comparison of two groups of devices by a share of their instances.

The unit is the device: the standard error of a group's share follows from the spread between its
devices. A mixture of normal alternatives tests by how many standard errors z the excess of a
release's share is above a limit. With information V = 1 / error^2 and alternatives of the scale of
:data:`EFFECT`, w = V EFFECT^2, the evidence against "the excess is at most the limit" is

    E = 2 (1 + w)^(-1/2) exp(z^2 w / (2 (1 + w))) Phi(z sqrt(w / (1 + w))).

While the limit is kept, E is a supermartingale of mean at most 1. By Ville's inequality it exceeds
1 / alpha with probability at most alpha, for any number of looks (Robbins 1970; Howard, Ramdas,
McAuliffe and Sekhon 2021, section 3). The error of few devices is uncertain, so that their t value
is converted to the z with the same tail (Wallace 1959).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

#: Cases on one device (errors, for example), and its instances.
Counts = tuple[float, float]

#: Smallest number of devices of each group in a comparison.
MIN_DEVICES: Final = 3
#: Excess above the limit that a comparison can find.
EFFECT: Final = 0.02
#: Probability of withdrawing a release that keeps the limit, over all figures and looks.
ALPHA: Final = 0.05
#: EFFECT in standard errors that is found with probability 0.95: with w = 24, E exceeds 60, the
#: threshold of one figure of three, at z = 3.25, and 0.95 of all z are above their mean less 1.65.
ERRORS_TO_FIND: Final = 4.9
#: Largest number of instances that count of a device, as a multiple of its group's median.
_MAX_WEIGHT: Final = 4.0


class GroupShare(NamedTuple):
    """Share of a group's instances, its standard error, and the number of devices."""

    share: float
    error: float
    n_devices: int

    @classmethod
    def from_counts(cls, devices: Sequence[Counts]) -> GroupShare:
        """Estimate a group's share; share and error are NaN of too few devices."""
        m = len(devices)
        if m < MIN_DEVICES:
            return cls(math.nan, math.nan, m)
        cap = _MAX_WEIGHT * sorted(n for _, n in devices)[m // 2]
        scaled = [(cases * min(1.0, cap / n), min(n, cap)) for cases, n in devices]
        # Ratio estimator: share = sum c / sum n, with the variance
        # m / (m - 1) * sum (c - share * n)^2 / (sum n)^2.
        total = sum(n for _, n in scaled)
        share = sum(cases for cases, _ in scaled) / total
        spread = sum((cases - share * n) ** 2 for cases, n in scaled)
        # if all devices are alike, the error of one more case
        error = math.sqrt(max(spread * m / (m - 1), 1.0)) / total
        return cls(share, error, m)


class Comparison(NamedTuple):
    """Share of a release, and share of the other versions."""

    own: GroupShare
    other: GroupShare

    @property
    def excess(self) -> float:
        """Difference of the two shares; NaN if one is unknown."""
        return self.own.share - self.other.share

    @property
    def error(self) -> float:
        """Standard error of the excess."""
        return math.hypot(self.own.error, self.other.error)

    def evidence(self, limit: float) -> float:
        """Evidence E that the excess is above `limit`; 0 if it is below, or unknown."""
        if not self.excess > limit:
            return 0.0
        z = self._z(self.excess - limit)
        w = (EFFECT / self.error) ** 2
        exponent = z * z * w / (2.0 * (1.0 + w))
        above = 1.0 + math.erf(z * math.sqrt(w / (1.0 + w)) / math.sqrt(2.0))
        return above * math.exp(min(exponent, 500.0)) / math.sqrt(1.0 + w)

    @property
    def power(self) -> float:
        """Information, as a part of the information that finds EFFECT with probability 0.95."""
        return (self._z(EFFECT) / ERRORS_TO_FIND) ** 2

    def _z(self, excess: float) -> float:
        """Standard errors in `excess`, as of a normal variable; 0 if the error is unknown."""
        if math.isnan(self.error):
            return 0.0
        t = excess / self.error
        # Welch's degrees of freedom.
        parts = [(group.error / self.error) ** 4 / (group.n_devices - 1) for group in self]
        n_free = 1.0 / sum(parts)
        scale = (8.0 * n_free + 1.0) / (8.0 * n_free + 3.0)
        return scale * math.sqrt(n_free * math.log1p(t * t / n_free))


def answers_to_find(devices: Sequence[Counts]) -> float:
    """Estimate the answers of a new release that find EFFECT, from counts of the old one; or NaN.

    The error falls with the square root of the answers n: error^2 = variance / n.
    """
    error = GroupShare.from_counts(devices).error
    variance = error * error * sum(n for _, n in devices)
    return variance * (ERRORS_TO_FIND / EFFECT) ** 2
