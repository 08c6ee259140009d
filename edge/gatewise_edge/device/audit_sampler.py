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
        probability = self.mean_probability
        n_ranked = len(sorted_confidences)
        if n_ranked >= _MIN_RANKED_ANSWERS:
            # Equal confidences share the mean probability of their ranks.
            low_rank = bisect_left(sorted_confidences, confidence) / (n_ranked + 1)
            high_rank = (bisect_right(sorted_confidences, confidence) + 1) / (n_ranked + 1)
            integrals = [
                _integrate_probability(rank, self.mean_probability, self._exponential_factor)
                for rank in (low_rank, high_rank)
            ]
            probability = min(1.0, (integrals[1] - integrals[0]) / (high_rank - low_rank))
        latest_confidences.append(confidence)
        insort(sorted_confidences, confidence)
        if len(latest_confidences) > _MAX_RANKED_ANSWERS:
            del sorted_confidences[bisect_left(sorted_confidences, latest_confidences.popleft())]
        return probability


def _integrate_probability(rank: float, mean_probability: float, factor: float) -> float:
    """Integrate the probability of an audit over the ranks from 0 to `rank`."""
    uniform_part = _UNIFORM_FRACTION * mean_probability
    # the probability is 1 up to the rank u with uniform_part + factor * exp(-u / scale) = 1
    certain_rank = _RANK_SCALE * math.log(max(1.0, factor / (1.0 - uniform_part)))
    certain_rank = min(rank, certain_rank)
    exponential_part = math.exp(-certain_rank / _RANK_SCALE) - math.exp(-rank / _RANK_SCALE)
    return (
        certain_rank
        + uniform_part * (rank - certain_rank)
        + factor * _RANK_SCALE * exponential_part
    )


@cache
def _find_exponential_factor(mean_probability: float) -> float:
    """Find the factor of the exponential that gives this mean probability, by bisection.

    The mean over all ranks grows with the factor.
    """
    low_factor = 0.0
    high_factor = math.exp(1.0 / _RANK_SCALE)  # with it every probability is 1, even at rank 1
    while high_factor - low_factor > 1e-6 * high_factor:
        factor = (low_factor + high_factor) / 2
        if _integrate_probability(1.0, mean_probability, factor) < mean_probability:
            low_factor = factor
        else:
            high_factor = factor
    return high_factor
