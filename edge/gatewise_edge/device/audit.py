"""Choose which of a device's answers are audited: more of the answers that are likely to be wrong.

Pure logic: no clock, no link; the random numbers are the caller's.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right, insort
from collections import deque
from functools import cache
from typing import Final

from gatewise.errors import InputError
from gatewise_edge.device.answer import Route
from gatewise_edge.link.messages import MAX_SKIPPED, AuditMark

#: An answer of rank u among the latest ones (0: the least confident, 1: the most confident) is
#: audited with probability ``min(1, EVEN * share + excess * exp(-u / UNCERTAIN))``.
_EVEN: Final = 0.2
_UNCERTAIN: Final = 0.08
#: Number of latest answers that are ranked; with fewer than WARM every probability is `share`.
_REMEMBERED: Final = 400
_WARM: Final = 40


class AuditSampler:
    """The probability to audit an answer: `share` on average, more for the least certain ones.

    The confidence of an answer is its largest probability. Most answers that differ from the
    high-cost model's are among the least confident of the latest, whichever stage gave them.
    Evidence grows fastest if an answer is audited with a probability in proportion to its chance
    of disagreement. A fixed part of the share goes to all answers alike, for the errors that
    confidence does not show.

    Parameters
    ----------
    share : float
        Mean probability, above 0 and up to 1.
    rng : random.Random, optional
        Draws which answers are audited.

    Raises
    ------
    InputError
        If the share is out of range.

    Examples
    --------
    >>> sampler = AuditSampler(0.02)
    >>> [round(sampler.probability(confidence), 4) for confidence in (0.6, 0.9)]
    [0.02, 0.02]
    """

    def __init__(self, share: float, rng: random.Random | None = None) -> None:
        if not 0 < share <= 1:
            raise InputError(f"audit: the share is {share}; give one above 0, up to 1")
        self.share = share
        self._rng = rng or random.Random()
        self._n_skipped = 0  # instances since the last audit
        self._excess = _excess(share)
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def choose(self, route: Route, class_index: int, confidence: float) -> AuditMark | None:
        """Decide whether to audit an answer: the mark of its audit, or None.

        `confidence` is its largest probability. Fallbacks are left out: the device had no
        choice.
        """
        if route == "fallback":
            return None
        if route == "edge":
            probability = self.probability(confidence)
            if self._rng.random() < probability:
                n_skipped = min(self._n_skipped, MAX_SKIPPED)
                self._n_skipped = 0
                return AuditMark(class_index, probability, n_skipped, confidence)
        self._n_skipped += 1
        return None

    def probability(self, confidence: float) -> float:
        """Probability to audit an answer of this confidence, in [0, 1]; remembers it."""
        latest = self._latest
        ordered = self._sorted
        rank = None
        if len(ordered) >= _WARM:
            n_smaller = bisect_left(ordered, confidence)
            n_not_larger = bisect_right(ordered, confidence)
            rank = (n_smaller + n_not_larger + 1) / 2 / (len(ordered) + 1)
        latest.append(confidence)
        insort(ordered, confidence)
        if len(latest) > _REMEMBERED:
            del ordered[bisect_left(ordered, latest.popleft())]
        if rank is None:
            return self.share
        return min(1.0, _EVEN * self.share + self._excess * math.exp(-rank / _UNCERTAIN))


@cache
def _excess(share: float) -> float:
    """Find the factor of the exponential with which the mean probability is `share`."""
    ranks = [(i + 0.5) / 1000 for i in range(1000)]
    low = 0.0
    high = math.exp(1.0 / _UNCERTAIN)
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        probabilities = (_EVEN * share + middle * math.exp(-u / _UNCERTAIN) for u in ranks)
        if sum(min(1.0, p) for p in probabilities) < 1000 * share:
            low = middle
        else:
            high = middle
    return high
