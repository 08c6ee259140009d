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
from gatewise_edge.link.messages import AuditMark

#: The rank u of an answer among the latest answers is 0 for the least confident one and 1 for the
#: most confident one. The probability of its audit is
#: ``min(1, _UNIFORM_FRACTION * mean_probability + factor * exp(-u / _RANK_SCALE))``. For a small
#: mean, this falls from ten times the mean at u = 0 to a fifth of the mean at u = 1. docs/audit.md
#: compares other choices.
_UNIFORM_FRACTION: Final = 0.2
_RANK_SCALE: Final = 0.08
#: Number of latest answers to rank. It is small, so that the ranks follow a change of the
#: instances. With fewer than _MIN_RANKED_ANSWERS answers the ranks would be coarse, and every
#: probability is `mean_probability`.
_MAX_RANKED_ANSWERS: Final = 400
_MIN_RANKED_ANSWERS: Final = 40


class AuditSampler:
    """A sampler that audits a fixed mean share of the answers, and more of the uncertain ones.

    The confidence of an answer is its largest probability. At every stage, most answers with which
    the high-cost model disagrees are among the least confident of the latest answers. Evidence
    grows fastest if the probability of an audit is proportional to the probability of a
    disagreement. A fixed part of the share is spread evenly over all answers, so that audits also
    detect confident errors.

    Parameters
    ----------
    mean_probability : float
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
    >>> [round(sampler.record_confidence(confidence), 4) for confidence in (0.6, 0.9)]
    [0.02, 0.02]
    """

    def __init__(self, mean_probability: float, rng: random.Random | None = None) -> None:
        if not 0 < mean_probability <= 1:
            raise InputError(
                f"audit: the share is {mean_probability}; it must be above 0 and at most 1"
            )
        self.mean_probability = mean_probability
        self._rng = rng or random.Random()
        self._exponential_factor = _find_exponential_factor(mean_probability)
        self._latest_confidences: deque[float] = deque()
        self._sorted_confidences: list[float] = []

    def choose(self, route: Route, class_index: int, confidence: float) -> AuditMark | None:
        """Return the mark of an audit if the answer is chosen, otherwise None.

        `confidence` is the largest probability of the answer. Only answers of a stage are chosen:
        the high-cost model gave a cloud answer itself, and no stage decided to give a fallback.
        """
        if route != "edge":
            return None
        probability = self.record_confidence(confidence)
        if self._rng.random() < probability:
            return AuditMark(class_index, probability, confidence)
        return None

    def record_confidence(self, confidence: float) -> float:
        """Record the confidence of an answer, and return the probability of its audit."""
        latest_confidences = self._latest_confidences
        sorted_confidences = self._sorted_confidences
        rank = None
        if len(sorted_confidences) >= _MIN_RANKED_ANSWERS:
            # Equal confidences share the mean of their ranks.
            n_smaller = bisect_left(sorted_confidences, confidence)
            n_not_larger = bisect_right(sorted_confidences, confidence)
            rank = (n_smaller + n_not_larger + 1) / 2 / (len(sorted_confidences) + 1)
        latest_confidences.append(confidence)
        insort(sorted_confidences, confidence)
        if len(latest_confidences) > _MAX_RANKED_ANSWERS:
            del sorted_confidences[bisect_left(sorted_confidences, latest_confidences.popleft())]
        if rank is None:
            return self.mean_probability
        return min(
            1.0,
            _UNIFORM_FRACTION * self.mean_probability
            + self._exponential_factor * math.exp(-rank / _RANK_SCALE),
        )


@cache
def _find_exponential_factor(mean_probability: float) -> float:
    """Find the factor of the exponential that gives this mean probability, by bisection.

    The mean over equally spaced ranks grows with the factor.
    """
    ranks = [(index + 0.5) / 1000 for index in range(1000)]
    low_factor = 0.0
    high_factor = math.exp(1.0 / _RANK_SCALE)  # with it every probability is 1, even at rank 1
    while high_factor - low_factor > 1e-6 * high_factor:
        factor = (low_factor + high_factor) / 2
        probabilities = (
            _UNIFORM_FRACTION * mean_probability + factor * math.exp(-rank / _RANK_SCALE)
            for rank in ranks
        )
        if sum(min(1.0, probability) for probability in probabilities) < 1000 * mean_probability:
            low_factor = factor
        else:
            high_factor = factor
    return high_factor
