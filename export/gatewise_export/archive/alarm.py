"""Test by betting whether the error rate is above the tolerated rate, with few labels.

Let beta be the tolerated error rate: one minus the promised accuracy, plus a tolerance. For an
instance of the archive, let z be 1 if the answer is wrong and 0 otherwise, and let q be the
probability that it is wrong by the high-cost model. The test computes

    g = w (lambda q - beta) + L W (z - lambda q),

where w, c and lambda are those of :mod:`.estimate`, L is 1 if the instance was labelled, and
W = w / c. The mean of g is the error rate less beta, however good or bad the high-cost model is.
While the promise holds, this mean is at most zero, so each factor 1 + b g has a mean of at most 1
if the bet b is fixed before the instance is seen. Ville's inequality then bounds the product of the
factors: it reaches 1 / level with a probability of at most `level`, even if it is checked after
each label (Waudby-Smith and Ramdas, 2023, section 4).

The smallest possible g of an instance is -w beta - lambda q (W - w). The largest allowed bet is the
one with which the smallest g so far would make a factor zero; each bet is a fraction of it. A bet
must not depend on later instances. Answers to instances with a large weight are mostly right, so
that larger bets on samples that happen to lack these instances would gain even while the promise
holds. Therefore nothing is bet on the first instances of the first choice. Only the largest q
(W - w) is taken from the whole choice, because the archive does not record the c of instances that
were not chosen. It had no visible influence in 1,000 simulated streams at the tolerated rate, where
the mean product of each bet was at most 1.03.

The capital of 1 is divided among several bets and several lambda. Each choice of labels starts new
bets, and the j-th choice gets 1 / (j (j + 1)) of the capital. Because of this, the test also finds
a loss of accuracy that begins late.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_TUNINGS: Final = np.array([0.0, 1.0])
#: Bets as fractions of the largest allowed bet.
_BETS: Final = np.array([0.05, 0.15, 0.35])
#: Share of the first choice's instances that only show how small g can be.
_SHARE_WITHOUT_BETS: Final = 0.2
#: Loss of accuracy, compared with the validation rows, that raises no alarm.
TOLERANCE: Final = 0.01


@dataclass(frozen=True, eq=False)
class LabelBatch:
    """The n instances from which one choice was made, in the order of time.

    Attributes
    ----------
    weights : ndarray of shape (n,)
        The w.
    label_weights : ndarray of shape (n,)
        The W of labelled instances, and 0 for the others.
    wrong_probability : ndarray of shape (n,)
        The q: probability, by the high-cost model, that the answer is wrong.
    is_wrong : ndarray of shape (n,)
        1 for a labelled instance with a wrong answer, and 0 otherwise.
    largest_correction : float
        Upper bound of q (W - w).
    """

    weights: Floats
    label_weights: Floats
    wrong_probability: Floats
    is_wrong: Floats
    largest_correction: float


def log_growth(batch: LabelBatch, tolerated_rate: float, earlier_weight: float | None) -> Floats:
    """Sum of the logarithms of a batch's factors, of shape (n_lambdas, n_bets).

    `earlier_weight` is the largest weight in earlier batches, or None for the first batch.
    """
    n_without_bets = 0
    if earlier_weight is None:
        n_without_bets = int(np.ceil(_SHARE_WITHOUT_BETS * len(batch.weights)))
        earlier_weight = 0.0
    weights_before = np.concatenate([[earlier_weight], batch.weights[:-1]])
    largest_weight = np.maximum.accumulate(weights_before)[n_without_bets:, None]
    w = batch.weights[n_without_bets:, None]
    W = batch.label_weights[n_without_bets:, None]
    lambda_q = batch.wrong_probability[n_without_bets:, None] * _TUNINGS
    g = w * (lambda_q - tolerated_rate) + W * (batch.is_wrong[n_without_bets:, None] - lambda_q)
    scaled_g = g / (largest_weight * tolerated_rate + batch.largest_correction * _TUNINGS)
    # a bet is lost if g is much smaller than it could be so far
    growth = [np.log1p(np.maximum(bet * scaled_g, -1 + 1e-12)).sum(axis=0) for bet in _BETS]
    return np.stack(growth, axis=1)


def evidence(batches: Iterable[LabelBatch], tolerated_rate: float) -> float:
    """Evidence that more answers are wrong than tolerated; 20 is an alarm at the level 0.05."""
    # the capital that the bets of each choice have now, by lambda and bet
    stakes: list[Floats] = []
    largest_weight: float | None = None
    for choice_number, batch in enumerate(batches, 1):
        growth = np.exp(log_growth(batch, tolerated_rate, largest_weight))
        largest_weight = max(largest_weight or 0.0, float(batch.weights.max()))
        new_capital = 1 / (choice_number * (choice_number + 1))
        stakes.append(np.full(growth.shape, new_capital / growth.size))
        stakes = [stake * growth for stake in stakes]
    capital = sum(float(stake.sum()) for stake in stakes)
    # the part of the capital that is reserved for later choices
    reserved_capital = 1 / (len(stakes) + 1)
    return capital + reserved_capital
