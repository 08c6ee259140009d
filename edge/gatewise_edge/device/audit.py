"""Test that a device's answers are still as often the high-cost model's as they should be.

A random share of the answers that stages gave is sent to the high-cost model as well. With
``p`` the probability that an instance was audited, ``X = 1/p`` if it was and the high-cost model
disagreed, else 0, has as its mean the share of instances that are answered otherwise than the
high-cost model would: offloaded instances count, with 0, and answers that are more likely to be
wrong may be audited more often (:class:`AuditSampler`), since the weight takes that back.

The bound b on that share is tested by betting (Waudby-Smith & Ramdas, "Estimating means of
bounded random variables by betting", 2023, section 4): each factor ``1 + l (X - b)``, with l fixed
before X is seen, has a mean of at most 1 as long as the bound holds, whatever came before. Bets
begin anew every few instances, each with a part of one unit of money, so that a loss of
agreement is found soon whenever it begins. The sum is a test supermartingale: by Ville's
inequality it ever reaches ``1 / level`` with probability `level` at most, however long it runs.

Pure logic: no clock, no randomness of its own, no link.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from functools import cache
from typing import Final

from gatewise.errors import InputError

#: Bets as parts of the largest allowed, 1 / bound. Weights 1 / p of 1 to 100 call for these; larger
#: ones would only win where half of all answers are wrong, and that is found at once anyway.
_BETS: Final = tuple(0.5 / 3.0**k for k in range(2, 7))
#: Instances between two beginnings of the bets.
_EVERY: Final = 250

#: What of the share goes to all answers alike, and the part of the latest answers over which the
#: rest falls by a factor of e, from the least certain ones on.
_EVEN: Final = 0.2
_UNCERTAIN: Final = 0.08
_REMEMBERED: Final = 400
_WARM: Final = 40


class AgreementTest:
    """Test that at most `bound` of the instances are answered otherwise than by the large model.

    `bound`: share of the instances, between 0 and 1. `level`: probability that it ever raises a
    false alarm, at most. `instances`, `audits`, `disagreed`: instances observed, how many were
    audited, and how many of these disagreed. `weighted`: sum of X over the instances. `evidence`:
    the test supermartingale, 1 at first; `alarm` is set once it has reached ``1 / level``, and
    `alarm_at` is how many instances had been observed then.

    >>> test = AgreementTest(0.01)
    >>> for i in range(100):
    ...     test.skip(49)
    ...     test.audit(disagrees=i % 3 == 0, probability=0.02)
    >>> test.alarm, test.instances, test.disagreed
    (True, 5000, 34)
    """

    def __init__(self, bound: float, *, level: float = 0.05) -> None:
        if not 0 < bound < 1:
            raise InputError(f"audit: the bound is {bound}; give a share between 0 and 1")
        if not 0 < level < 1:
            raise InputError(f"audit: the level is {level}; give a probability between 0 and 1")
        self.bound = bound
        self.level = level
        self.instances = self.audits = self.disagreed = 0
        self.alarm_at: int | None = None
        self.weighted = 0.0
        self._stakes = [bet / bound for bet in _BETS]
        self._sums = [0.0] * len(_BETS)
        self._begun = 0

    @property
    def alarm(self) -> bool:
        """Whether the alarm was raised."""
        return self.alarm_at is not None

    @property
    def evidence(self) -> float:
        """Money that betting against the bound has made of one unit."""
        return sum(self._sums) / len(self._sums) + 1.0 / (1 + self._begun)

    @property
    def estimate(self) -> float:
        """Estimated share of the instances answered otherwise; NaN before the first instance."""
        return self.weighted / self.instances if self.instances else math.nan

    def skip(self, instances: int = 1) -> None:
        """Observe instances that were not audited, or that the large model answered."""
        while instances > 0:
            until_next = -self.instances % _EVERY
            if until_next == 0:
                # The j-th beginning stakes 1 / (j (j + 1)); they sum to 1.
                self._begun += 1
                stake = 1.0 / (self._begun * (self._begun + 1))
                self._sums = [total + stake for total in self._sums]
                until_next = _EVERY
            run = min(instances, until_next)
            self._sums = [
                total * (1.0 - stake * self.bound) ** run
                for total, stake in zip(self._sums, self._stakes, strict=True)
            ]
            self.instances += run
            instances -= run

    def audit(self, *, disagrees: bool, probability: float) -> None:
        """Observe an instance that was audited with that probability.

        Raises InputError if the probability is not in (0, 1].
        """
        if not 0 < probability <= 1:
            raise InputError(f"audit: a probability of {probability}")
        self.skip()
        self.audits += 1
        if not disagrees:
            return
        self.disagreed += 1
        self.weighted += 1.0 / probability
        self._sums = [
            total * (1.0 + stake * (1.0 / probability - self.bound)) / (1.0 - stake * self.bound)
            for total, stake in zip(self._sums, self._stakes, strict=True)
        ]
        if self.alarm_at is None and self.evidence >= 1.0 / self.level:
            self.alarm_at = self.instances


class AuditSampler:
    """The probability to audit an answer: `share` on average, more for the least certain ones.

    Most of what the high-cost model answers otherwise is among the answers with the smallest
    confidence (largest probability) of the latest, whichever stage gave them. Evidence grows
    fastest with a probability in proportion to the chance of disagreement; a fixed part stays for
    the errors that confidence does not show.

    >>> sampler = AuditSampler(0.02)
    >>> [round(sampler.probability(confidence), 4) for confidence in (0.6, 0.9)]
    [0.02, 0.02]
    """

    def __init__(self, share: float) -> None:
        if not 0 < share <= 1:
            raise InputError(f"audit: the share is {share}; give one above 0, up to 1")
        self.share = share
        self._excess = _excess(share)
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def probability(self, confidence: float) -> float:
        """Probability to audit an answer of this confidence, in [0, 1]; remembers it."""
        latest, ordered = self._latest, self._sorted
        part = None
        if len(ordered) >= _WARM:
            below, upto = bisect_left(ordered, confidence), bisect_right(ordered, confidence)
            part = (below + upto + 1) / 2 / (len(ordered) + 1)
        latest.append(confidence)
        insort(ordered, confidence)
        if len(latest) > _REMEMBERED:
            del ordered[bisect_left(ordered, latest.popleft())]
        if part is None:
            return self.share
        return min(1.0, _EVEN * self.share + self._excess * math.exp(-part / _UNCERTAIN))


@cache
def _excess(share: float) -> float:
    """What the least certain answer is audited more often, so that the mean is `share`."""
    parts = [(i + 0.5) / 1000 for i in range(1000)]
    low, high = 0.0, math.exp(1.0 / _UNCERTAIN)
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        probabilities = (_EVEN * share + middle * math.exp(-u / _UNCERTAIN) for u in parts)
        if sum(min(1.0, p) for p in probabilities) < 1000 * share:
            low = middle
        else:
            high = middle
    return high
