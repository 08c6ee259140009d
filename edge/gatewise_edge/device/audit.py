"""The choice of the answers to audit, which prefers answers that are likely to be wrong.

Pure logic without clock or link; the caller may pass the random generator.
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

#: The rank u of an answer among the latest answers is 0 for the least confident one and 1 for the
#: most confident one. The probability of its audit is
#: ``min(1, _EVEN_PART * share + excess * exp(-u / _RANK_SCALE))``.
_EVEN_PART: Final = 0.2
_RANK_SCALE: Final = 0.08
#: Number of latest answers to rank. With fewer than _MIN_RANKED every probability is `share`.
_MAX_RANKED: Final = 400
_MIN_RANKED: Final = 40


class AuditSampler:
    """A sampler that audits a mean `share` of the answers, and more of the uncertain ones.

    The confidence of an answer is its largest probability. Most answers that the high-cost model
    would not give are among the least confident of the latest answers, for every stage. Evidence
    grows fastest if the probability of an audit is proportional to the chance of a disagreement. A
    fixed part of the share goes to all answers equally, to detect errors with high confidence.

    Parameters
    ----------
    share : float
        Mean probability of an audit, above 0 and up to 1.
    rng : random.Random, optional
        Generator of the random choices.

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
            raise InputError(f"audit: the share is {share}; it must be above 0 and at most 1")
        self.share = share
        self._rng = rng or random.Random()
        self._n_skipped = 0  # instances since the last audit
        self._excess = _excess(share)
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def choose(self, route: Route, class_index: int, confidence: float) -> AuditMark | None:
        """Return the mark of an audit if the answer is chosen, otherwise None.

        `confidence` is the largest probability of the answer. Fallbacks are never chosen, because
        the device did not decide to stop.
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
        """Compute the probability to audit an answer, and add its confidence to the latest."""
        latest = self._latest
        ordered = self._sorted
        rank = None
        if len(ordered) >= _MIN_RANKED:
            n_smaller = bisect_left(ordered, confidence)
            n_not_larger = bisect_right(ordered, confidence)
            rank = (n_smaller + n_not_larger + 1) / 2 / (len(ordered) + 1)
        latest.append(confidence)
        insort(ordered, confidence)
        if len(latest) > _MAX_RANKED:
            del ordered[bisect_left(ordered, latest.popleft())]
        if rank is None:
            return self.share
        return min(1.0, _EVEN_PART * self.share + self._excess * math.exp(-rank / _RANK_SCALE))


@cache
def _excess(share: float) -> float:
    """Find the factor of the exponential for which the mean probability is `share`."""
    ranks = [(i + 0.5) / 1000 for i in range(1000)]
    low = 0.0
    high = math.exp(1.0 / _RANK_SCALE)
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        probabilities = (_EVEN_PART * share + middle * math.exp(-u / _RANK_SCALE) for u in ranks)
        if sum(min(1.0, p) for p in probabilities) < 1000 * share:
            low = middle
        else:
            high = middle
    return high
