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
from bisect import bisect_left, insort
from collections import deque
from typing import Final

from gatewise.errors import InputError

#: Bets as parts of the largest allowed, 1 / bound: small ones suit large weights.
_BETS: Final = tuple(0.5 / 3.0**k for k in range(8))
#: Instances between two beginnings of the bets.
_EVERY: Final = 250

#: The least certain part of a stage's answers, and how much more often than the mean it is audited.
_UNCERTAIN: Final = 0.1
_MORE_OFTEN: Final = 6.0
_LESS_OFTEN: Final = (1.0 - _UNCERTAIN * _MORE_OFTEN) / (1.0 - _UNCERTAIN)
_REMEMBERED: Final = 200
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

    A stage's least certain answers are those whose score is in the lowest tenth of its latest:
    most of what the high-cost model answers otherwise is among them.

    >>> sampler = AuditSampler(0.02)
    >>> [round(sampler.probability(0, score), 4) for score in (1.0, 2.0)]
    [0.02, 0.02]
    """

    def __init__(self, share: float) -> None:
        if not 0 < share <= 1:
            raise InputError(f"audit: the share is {share}; give one above 0, up to 1")
        self.share = share
        self._latest: dict[int, deque[float]] = {}
        self._sorted: dict[int, list[float]] = {}

    def probability(self, stage: int, score: float) -> float:
        """Probability to audit an answer of a stage with this stop score; remembers the score."""
        latest = self._latest.setdefault(stage, deque())
        ordered = self._sorted.setdefault(stage, [])
        part = bisect_left(ordered, score) / len(ordered) if len(ordered) >= _WARM else None
        if math.isfinite(score):
            latest.append(score)
            insort(ordered, score)
            if len(latest) > _REMEMBERED:
                del ordered[bisect_left(ordered, latest.popleft())]
        if part is None:
            return self.share
        return min(1.0, self.share * (_MORE_OFTEN if part < _UNCERTAIN else _LESS_OFTEN))
